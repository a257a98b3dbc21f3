//! Where memory ran out: for good, or in tries that the script caught.

use super::facts::Facts;
use super::meter::Meter;
use crate::capture::process::Frame;
use base::order::grouped;
use serde::Serialize;
use sim::trace::{Event, Kind, Phase};
use std::ops::Range;

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

/// Whether memory ran out and the script received the error. An operator may deal with it by itself, as cuDNN's do that try another algorithm.
pub fn reached_script(event: &Event, device: u16) -> bool {
    event.kind == Kind::OutOfMemory && event.device == device && event.rounded == 0
}

/// The event at which memory ran out for good: the script's end was that exception, or it did not go on on the GPU with less.
pub fn ran_out(facts: &Facts, ends_by_it: bool, command_failed: bool) -> Option<usize> {
    let last = *facts.tries.last()?;
    (ends_by_it || !went_on(facts, last, command_failed)).then_some(last)
}

/// Whether a step ended after memory had run out that asked the GPU for something. Of a script that trains nothing: whether it came to its end
/// and allocated again, more than what tells somebody of it.
fn went_on(facts: &Facts, last: usize, command_failed: bool) -> bool {
    let (trace, levels) = (facts.trace, allocated(&facts.levels));
    let (before, after) = trace.events.split_at(last);
    let trains = |events: &[Event]| events.iter().any(|event| event.phase == Phase::Backward || event.step > 0);
    if trains(before) || trains(after) {
        let is_work = |event: &Event| event.kind == Kind::Alloc && event.device == facts.device && event.phase != Phase::Load;
        let work = after.iter().position(is_work);
        return work.is_some_and(|work| after[work..].iter().any(|event| event.step > after[work].step));
    }
    const SHARE: i64 = 64;
    let (mut least, mut rise) = (levels(last), 0);
    for level in (last..trace.events.len()).map(&levels) {
        least = least.min(level);
        rise = rise.max(level - least);
    }
    let tried = levels(last).saturating_add(trace.events[last].bytes);
    !command_failed && trace.exception.is_none() && rise > tried / SHARE
}

/// Bytes that are allocated after each event.
fn allocated(levels: &[Meter]) -> impl Fn(usize) -> i64 {
    |at| levels[at].allocated
}

/// What a try held that ran out of memory and was caught: the events in which more was allocated than when all of it was given back.
pub fn failed_tries(facts: &Facts) -> Vec<Range<usize>> {
    let (events, tries, levels) = (facts.events(), &facts.tries, allocated(&facts.levels));
    let mut found: Vec<Range<usize>> = Vec::new();
    for (n, at) in tries.iter().copied().enumerate() {
        let end = tries.get(n + 1).copied().unwrap_or(events.len());
        let had = levels(at);
        // It is given back until much is asked for again; a script that does no more frees the rest when it ends.
        let (mut least, mut over) = (at, None);
        for next in at..end {
            if levels(next) > levels(least) + (had - levels(least)) / 8 + (1 << 20) {
                over = Some(least);
                break;
            }
            if levels(next) < levels(least) {
                least = next;
            }
        }
        let is_alloc = |event: &Event| event.kind == Kind::Alloc && event.device == facts.device;
        let over = over.unwrap_or_else(|| match events[at..end].iter().position(is_alloc) {
            Some(next) => at + next - 1,
            None if end == events.len() => at,
            None => end - 1,
        });
        let level = levels(over);
        let begin = (0..at).rfind(|before| levels(*before) <= level).map_or(0, |before| before + 1);
        match found.last_mut() {
            Some(last) if last.end >= begin => *last = last.start.min(begin)..over + 1,
            _ => found.push(begin..over + 1),
        }
    }
    found
}

pub fn caught(facts: &Facts) -> Vec<Caught> {
    let (trace, levels) = (facts.trace, allocated(&facts.levels));
    let asked = facts.tries.iter().map(|at| {
        let event = &trace.events[*at];
        let line = trace.own_line(event.stack).or_else(|| trace.line(event.stack)).cloned();
        (line, (levels(*at).saturating_add(event.bytes), event.bytes, event.address.cast_signed()))
    });
    let caught = |(line, asked): (Option<Frame>, Vec<(i64, i64, i64)>)| {
        let (times, (largest, tried, free)) = (asked.len(), asked.into_iter().max().unwrap_or_default());
        Caught { line, times, largest, tried, free }
    };
    grouped(asked).into_iter().map(caught).collect()
}
