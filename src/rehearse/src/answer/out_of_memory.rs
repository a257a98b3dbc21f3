//! Where memory ran out: for good, or in tries that the script caught.

use super::place::Line;
use crate::capture::process::Trace;
use serde::Serialize;
use sim::trace::{Event, Kind};
use std::ops::Range;

#[derive(Debug, Clone, Serialize)]
pub struct OutOfMemory {
    pub tried: i64,
    pub free: i64,
    pub message: Option<String>,
}

/// Out of memory, caught by the script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Caught {
    pub line: Option<Line>,
    pub times: usize,
    /// The most that the script then had and asked for.
    pub largest: i64,
}

/// The event at which memory ran out for good: the script's own end was that exception, or it did not end well and allocated nothing more.
pub fn ran_out(trace: &Trace, device: u16, command_failed: bool) -> Option<usize> {
    let events = trace.events.as_slice();
    let last = events.iter().rposition(|event| event.kind == Kind::OutOfMemory && event.device == device)?;
    let went_on = || events[last..].iter().any(|event| event.kind == Kind::Alloc);
    let ended_by_it = match &trace.exception {
        Some(exception) => exception.out_of_memory || !went_on(),
        None => trace.stopped.is_none() && command_failed && !went_on(),
    };
    ended_by_it.then_some(last)
}

/// What a try held that ran out of memory and was caught: the events in which more was allocated than when all of it was given back.
pub fn failed_tries(events: &[Event], levels: &[i64], tries: &[usize], device: u16) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (n, at) in tries.iter().copied().enumerate() {
        let end = tries.get(n + 1).copied().unwrap_or(events.len());
        let had = levels[at];
        // It is given back until much is asked for again; a script that does no more frees the rest when it ends.
        let (mut least, mut over) = (at, None);
        for next in at..end {
            if levels[next] > levels[least] + (had - levels[least]) / 8 + (1 << 20) {
                over = Some(least);
                break;
            }
            if levels[next] < levels[least] {
                least = next;
            }
        }
        let is_alloc = |event: &Event| event.kind == Kind::Alloc && event.device == device;
        let over = over.unwrap_or_else(|| match events[at..end].iter().position(is_alloc) {
            Some(next) => at + next - 1,
            None if end == events.len() => at,
            None => end - 1,
        });
        let level = levels[over];
        let begin = levels[..at].iter().rposition(|now| *now <= level).map_or(0, |before| before + 1);
        match found.last_mut() {
            Some(last) if last.end >= begin => *last = last.start.min(begin)..over + 1,
            _ => found.push(begin..over + 1),
        }
    }
    found
}

pub fn caught(trace: &Trace, levels: &[i64], tries: &[usize]) -> Vec<Caught> {
    let mut found: Vec<Caught> = Vec::new();
    for at in tries {
        let event = &trace.events[*at];
        let line = trace.own_line(event.stack).or_else(|| trace.line(event.stack)).map(Line::from);
        let largest = levels[*at].saturating_add(event.bytes);
        match found.iter_mut().find(|known| known.line == line) {
            Some(known) => (known.times, known.largest) = (known.times + 1, known.largest.max(largest)),
            None => found.push(Caught { line, times: 1, largest }),
        }
    }
    found
}
