//! What lives at the peak, block by block as far as blocks differ: what two answers are compared by.

use super::place::{alike, module_of};
use crate::capture::process::Trace;
use serde::{Deserialize, Serialize};
use sim::trace::{Kind, MemoryBlock};
use std::collections::BTreeMap;

/// Blocks of one size that the same operator made at the same line, for the same purpose.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema, Deserialize)]
pub struct BlockGroup {
    /// `FILE:LINE` outside of PyTorch, in a backward pass that of the forward pass; `elsewhere` where Python knew none.
    pub line: String,
    pub function: String,
    /// What is written there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    pub module: String,
    pub category: String,
    pub operator: String,
    /// Of each block, as asked for.
    pub bytes: i64,
    /// How many live at the peak, and what the allocator gave to them together.
    pub blocks: usize,
    pub allocated: i64,
    /// How many were made in the step of the peak.
    pub made: usize,
    /// Where the first of them was freed before the peak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freed: Option<String>,
}

/// Of those that do not live at the peak, groups of fewer bytes than this part of it are left out, and lines beyond so many.
const LEAST_PART: i64 = 100;
const MOST_FREED: usize = 64;

/// The groups of a peak, those with most bytes first; and those that were freed before it in its own step.
pub fn contents(trace: &Trace, blocks: &[MemoryBlock], device: u16, moment: usize) -> Vec<BlockGroup> {
    let events = trace.events.as_slice();
    let Some(step) = events.get(moment).map(|event| event.step) else { return Vec::new() };
    let mut groups: BTreeMap<(u32, u32, String, &str, u16, i64), BlockGroup> = BTreeMap::new();
    let mut total = 0;
    for block in blocks.iter().filter(|block| block.device == device && block.made() <= moment) {
        let made = &events[block.made()];
        let (lives, is_of_step) = (block.lives_after(moment), made.step == step);
        if !lives && !is_of_step {
            continue;
        }
        let module = module_of(trace, block).map_or_else(|| "elsewhere".to_string(), |name| alike(&name));
        let key = (made.stack, made.origin, module, block.category.name(), made.operator, block.bytes);
        let group = groups.entry(key).or_insert_with_key(|(_, _, module, category, operator, bytes)| {
            let frame = trace.line(if made.origin != 0 { made.origin } else { made.stack });
            BlockGroup {
                line: frame.map_or_else(|| "elsewhere".to_string(), |frame| format!("{}:{}", frame.file, frame.line)),
                function: frame.map(|frame| frame.function.clone()).unwrap_or_default(),
                module: module.clone(),
                category: category.to_string(),
                operator: trace.operators.get(&(*operator).into()).cloned().unwrap_or_default(),
                bytes: *bytes,
                ..BlockGroup::default()
            }
        });
        group.made += usize::from(is_of_step);
        if lives {
            group.blocks += 1;
            group.allocated += block.rounded;
            total += block.rounded;
        } else if group.freed.is_none() {
            group.freed = block.freed().map(|freed| freed_at(trace, freed));
        }
    }
    let mut found: Vec<BlockGroup> = merged(groups.into_values());
    found.retain(|group| {
        group.blocks > 0 || group.freed.is_some() && group.bytes * i64::try_from(group.made).unwrap_or(1) * LEAST_PART >= total
    });
    // Those of as many bytes stay in the order of their lines.
    found.sort_by_key(|group| std::cmp::Reverse((group.allocated, group.bytes)));
    let living = found.iter().filter(|group| group.blocks > 0).count();
    found.truncate(living + MOST_FREED);
    found
}

/// Different stacks lead to the same line.
fn merged(groups: impl Iterator<Item = BlockGroup>) -> Vec<BlockGroup> {
    let mut found: BTreeMap<(String, String, String, String, i64), BlockGroup> = BTreeMap::new();
    for group in groups {
        let key = (group.line.clone(), group.module.clone(), group.category.clone(), group.operator.clone(), group.bytes);
        match found.get_mut(&key) {
            Some(known) => {
                known.blocks += group.blocks;
                known.allocated += group.allocated;
                known.made += group.made;
                known.freed = known.freed.take().or(group.freed);
            }
            None => {
                found.insert(key, group);
            }
        }
    }
    found.into_values().collect()
}

/// A free has no stack of its own: what was at work is what had last asked for memory.
fn freed_at(trace: &Trace, event: usize) -> String {
    let phase = trace.events[event].phase.name();
    let last = trace.events[..event].iter().rev().find(|event| event.kind == Kind::Alloc);
    let frame = last.and_then(|event| trace.line(if event.origin != 0 { event.origin } else { event.stack }));
    match frame {
        Some(frame) => format!("{phase}, {}:{}", frame.file, frame.line),
        None => phase.to_string(),
    }
}
