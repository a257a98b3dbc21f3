//! The moment at which most bytes were allocated, and what fills it.

use super::contents::{BlockGroup, contents};
use super::facts::Facts;
use super::passes::{pass_of, phase_name};
use super::place::{BEFORE_FORWARD, LiveBytes, MOST_ROWS, alike, module_of};
use crate::capture::process::Frame;
use serde::Serialize;
use sim::trace::{Event, Kind, MemoryBlock, Phase};
use std::collections::HashMap;

/// The moment at which most bytes were allocated, or at which memory ran out.
#[derive(Debug, Clone, Default, Serialize, schemars::JsonSchema)]
pub struct Peak {
    /// Of a training script: the step, and for what is no training the last one that ended.
    pub step: u32,
    pub phase: &'static str,
    /// Number of the forward pass, of all that outermost modules made; 0 before the first.
    pub pass: i64,
    /// What ran then: the innermost line outside of PyTorch, and the script's own that led there, where that is another.
    pub line: Option<Frame>,
    pub called_from: Option<Frame>,
    /// In a backward pass: the line of the forward pass that is gone back through.
    pub forward_line: Option<Frame>,
    pub module: Option<String>,
    pub operator: Option<String>,
    pub bytes: i64,
    pub categories: Vec<LiveBytes>,
    /// Modules of the same place in repeated blocks are one: `h.*.mlp`.
    pub modules: Vec<LiveBytes>,
    /// Lines outside of PyTorch, all of them.
    pub lines: Vec<LiveBytes>,
    /// What two answers are compared by.
    pub contents: Vec<BlockGroup>,
}

pub fn peak(facts: &Facts) -> Peak {
    let (trace, events, moment) = (facts.trace, facts.events(), facts.moment);
    let Some(event) = events.get(moment) else {
        return Peak { phase: Phase::Load.name(), ..Peak::default() };
    };
    let live: Vec<&MemoryBlock> = facts.live(moment).collect();
    let line = |stack: u32| trace.line(stack).cloned();
    let by = |name: &dyn Fn(&MemoryBlock) -> Option<String>| {
        let mut held: HashMap<String, LiveBytes> = HashMap::new();
        for block in &live {
            let name = name(block).unwrap_or_else(|| "elsewhere".to_string());
            let entry = held.entry(name.clone()).or_insert(LiveBytes { name, bytes: 0, blocks: 0, source: None });
            entry.bytes += block.rounded;
            entry.blocks += 1;
        }
        let mut held: Vec<LiveBytes> = held.into_values().collect();
        held.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        held
    };
    let mut modules = by(&|block| module_of(trace, block).map(|name| alike(&name)));
    modules.truncate(MOST_ROWS);
    Peak {
        step: facts.step_of(event),
        phase: if is_before_forward(events, moment) { BEFORE_FORWARD } else { phase_name(event.phase, facts.trains) },
        pass: pass_of(events, moment),
        line: line(event.stack),
        called_from: trace.own_line(event.stack).cloned(),
        forward_line: line(event.origin),
        module: trace.modules.get(&event.module).cloned(),
        operator: trace.operators.get(&event.operator.into()).cloned(),
        bytes: live.iter().map(|block| block.rounded).sum(),
        contents: contents(facts),
        categories: by(&|block| Some(block.category.name().to_string())),
        modules,
        lines: by(&|block| {
            let frame = trace.line(facts.stack_of(block))?;
            Some(if frame.line > 0 { frame.place() } else { frame.file.clone() })
        }),
    }
}

/// Whether an event after a step comes before the first forward pass of the next, of a script whose models are modules.
pub fn is_before_forward(events: &[Event], moment: usize) -> bool {
    let (event, has_begun) = (&events[moment], |event: &Event| event.kind == Kind::Pass);
    let begin = events.partition_point(|other| other.step < event.step);
    event.phase == Phase::Forward
        && event.step > 0
        && events[..begin].iter().any(has_begun)
        && !events[begin..moment].iter().any(has_begun)
}
