//! Where memory ran out: for good, or in tries that the script caught.

use super::facts::Facts;
use crate::capture::process::Frame;
use base::order::grouped;
use serde::Serialize;

#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct OutOfMemory {
    pub tried: i64,
    pub free: i64,
    pub message: Option<String>,
}

/// Out of memory, caught by the script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Caught {
    pub line: Option<Frame>,
    pub times: usize,
    /// The most that tensors would have taken: those that the script had, and the one that it asked for.
    pub largest: i64,
    /// What it then asked for, and what was free.
    pub tried: i64,
    pub free: i64,
}

pub fn caught(facts: &Facts) -> Vec<Caught> {
    let trace = facts.trace;
    let asked = facts.tries.iter().map(|at| {
        let event = &trace.events[*at];
        let line = trace.own_line(event.stack).or_else(|| trace.line(event.stack)).cloned();
        (line, (facts.levels[*at].allocated.saturating_add(event.bytes), event.bytes, event.address.cast_signed()))
    });
    let caught = |(line, asked): (Option<Frame>, Vec<(i64, i64, i64)>)| {
        let (times, (largest, tried, free)) = (asked.len(), asked.into_iter().max().unwrap_or_default());
        Caught { line, times, largest, tried, free }
    };
    grouped(asked).into_iter().map(caught).collect()
}
