//! What lives at the peak, block by block as far as blocks differ: what two answers are compared by.

use super::facts::Facts;
use super::place::{alike, module_of};
use crate::capture::process::Trace;
use serde::{Deserialize, Serialize};
use sim::trace::Kind;
use std::collections::{BTreeMap, HashMap};

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
pub fn contents(facts: &Facts) -> Vec<BlockGroup> {
    let (trace, events, moment) = (facts.trace, facts.events(), facts.moment);
    let Some(step) = events.get(moment).map(|event| event.step) else { return Vec::new() };
    // By stack its line and function: different stacks lead to the same line.
    let mut lines: HashMap<u32, (String, String)> = HashMap::new();
    let mut groups: BTreeMap<(String, String, &str, &str, i64), BlockGroup> = BTreeMap::new();
    let mut total = 0;
    for block in facts.blocks().filter(|block| block.made() <= moment) {
        let made = &events[block.made()];
        let (lives, is_of_step) = (block.is_live_after(moment), made.step == step);
        if !lives && !is_of_step {
            continue;
        }
        let stack = facts.stack_of(block);
        let (line, function) = lines.entry(stack).or_insert_with(|| match trace.line(stack) {
            Some(frame) => (frame.place(), frame.function.clone()),
            None => ("elsewhere".to_string(), String::new()),
        });
        let module = module_of(trace, block).map_or_else(|| "elsewhere".to_string(), |name| alike(&name));
        let operator = facts.operator(made);
        let key = (line.clone(), module, block.category.name(), operator, block.bytes);
        let group = groups.entry(key).or_insert_with_key(|(line, module, category, operator, bytes)| BlockGroup {
            line: line.clone(),
            function: function.clone(),
            module: module.clone(),
            category: category.to_string(),
            operator: operator.to_string(),
            bytes: *bytes,
            ..BlockGroup::default()
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
    let mut found: Vec<BlockGroup> = groups.into_values().collect();
    found.retain(|group| {
        group.blocks > 0 || group.freed.is_some() && group.bytes * i64::try_from(group.made).unwrap_or(1) * LEAST_PART >= total
    });
    // Those of as many bytes stay in the order of their lines.
    found.sort_by_key(|group| std::cmp::Reverse((group.allocated, group.bytes)));
    let living = found.iter().filter(|group| group.blocks > 0).count();
    found.truncate(living + MOST_FREED);
    found
}

/// A free has no stack of its own: what was at work is what had last asked for memory.
fn freed_at(trace: &Trace, event: usize) -> String {
    let phase = trace.events[event].phase.name();
    let last = trace.events[..event].iter().rev().find(|event| event.kind == Kind::Alloc);
    let frame = last.and_then(|event| trace.line(if event.origin != 0 { event.origin } else { event.stack }));
    frame.map_or_else(|| phase.to_string(), |frame| format!("{phase}, {}", frame.place()))
}
