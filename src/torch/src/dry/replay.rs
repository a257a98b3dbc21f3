//! Plays a trace of allocations on PyTorch's own caching allocator, over the simulated GPU.

use super::Dry;
use crate::native::dry::DeviceAllocation;
use crate::native::{cuda_memory, empty_cuda_cache};
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::collections::HashMap;
use std::io::BufRead;

/// A trace that can be played: each free is that of a live allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayTrace {
    events: Vec<ReplayEvent>,
    /// Line of each event in its file, the header being line 1.
    lines: Vec<u64>,
    slots: usize,
}

/// An event: what is allocated stays in a slot until its free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplayEvent {
    Alloc { slot: usize, bytes: u64 },
    Free { slot: usize },
    EmptyCache,
}

/// What the allocator's statistics say at the end of a trace, in bytes and counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Replayed {
    pub allocated: i64,
    pub peak_allocated: i64,
    pub reserved: i64,
    pub peak_reserved: i64,
    pub inactive_split: i64,
    /// Pieces of device memory that the allocator holds.
    pub segments: i64,
    /// Allocations that succeeded only after the cache was given back.
    pub retries: i64,
    /// Line at which memory ran out and the trace ended, the header being line 1.
    pub oom: Option<u64>,
}

impl ReplayTrace {
    /// Reads a trace: a header line `op,id,bytes`, then one event a line, `alloc,ID,BYTES`, `free,ID` or `empty_cache`. Ids are whole
    /// numbers and may be used again after their free; further fields of `free` and `empty_cache` may be empty or left out.
    ///
    /// # Errors
    /// A line that is none of these, a free of an id that is not allocated, an id that is allocated twice; the line is named.
    pub fn read(input: impl BufRead) -> Result<ReplayTrace> {
        let mut trace = ReplayTrace { events: Vec::new(), lines: Vec::new(), slots: 0 };
        let mut live: HashMap<i64, usize> = HashMap::new();
        let mut free_slots: Vec<usize> = Vec::new();
        let mut begun = false;
        for (line, text) in (1..).zip(input.lines()) {
            let text = text.with_context(|| format!("line {line}: the trace cannot be read"))?;
            let fields: Vec<&str> = text.split(',').map(str::trim).collect();
            if !begun {
                ensure!(fields == ["op", "id", "bytes"], NO_HEADER);
                begun = true;
            } else if !text.trim().is_empty() {
                let event = event(&fields, &mut live, &mut free_slots, &mut trace.slots).with_context(|| format!("line {line}"))?;
                trace.events.push(event);
                trace.lines.push(line);
            }
        }
        ensure!(begun, NO_HEADER);
        Ok(trace)
    }
}

const NO_HEADER: &str = "line 1: a trace begins with the header op,id,bytes";

fn event(fields: &[&str], live: &mut HashMap<i64, usize>, free_slots: &mut Vec<usize>, slots: &mut usize) -> Result<ReplayEvent> {
    let field = |position: usize| fields.get(position).copied().unwrap_or_default();
    ensure!(fields.len() <= 3, "{} fields where op,id,bytes are three", fields.len());
    let id = || field(1).parse::<i64>().map_err(|_| anyhow::anyhow!("'{}' is no id; ids are whole numbers", field(1)));
    let bytes = || field(2).parse::<u64>().map_err(|_| anyhow::anyhow!("'{}' is no number of bytes", field(2)));
    // What an event does not need may be left out, but not be nonsense.
    if !field(2).is_empty() {
        bytes()?;
    }
    match field(0) {
        "alloc" => {
            let (id, bytes) = (id()?, bytes()?);
            if live.contains_key(&id) {
                bail!("id {id} is allocated already");
            }
            let slot = free_slots.pop().unwrap_or_else(|| {
                *slots += 1;
                *slots - 1
            });
            live.insert(id, slot);
            Ok(ReplayEvent::Alloc { slot, bytes })
        }
        "free" => {
            let id = id()?;
            let slot = live.remove(&id).with_context(|| format!("id {id} is freed and is not allocated"))?;
            free_slots.push(slot);
            Ok(ReplayEvent::Free { slot })
        }
        "empty_cache" => Ok(ReplayEvent::EmptyCache),
        other => bail!("'{other}' is no op; there are alloc, free and empty_cache"),
    }
}

/// Plays a trace on a fresh allocator: before anything else was allocated in this process.
///
/// # Errors
/// libtorch's message. That memory ran out is an outcome.
pub fn replay(_device: &Dry, trace: &ReplayTrace) -> Result<Replayed> {
    // PyTorch takes an exbibyte for out of memory before it asks its allocator.
    const EXBIBYTE: u64 = 1 << 60;
    let mut slots: Vec<Option<DeviceAllocation>> = std::iter::repeat_with(|| None).take(trace.slots).collect();
    let mut oom = None;
    for (event, line) in trace.events.iter().zip(&trace.lines) {
        match *event {
            ReplayEvent::Alloc { bytes: 0, .. } => {}
            ReplayEvent::Alloc { slot, bytes } => {
                slots[slot] = if bytes < EXBIBYTE { DeviceAllocation::take(bytes) } else { None };
                if slots[slot].is_none() {
                    oom = Some(*line);
                    break;
                }
            }
            ReplayEvent::Free { slot } => slots[slot] = None,
            ReplayEvent::EmptyCache => empty_cuda_cache()?,
        }
    }
    let now = cuda_memory(0)?;
    Ok(Replayed {
        allocated: now.allocated,
        peak_allocated: now.allocated_peak,
        reserved: now.reserved,
        peak_reserved: now.reserved_peak,
        inactive_split: now.inactive_split,
        segments: now.segments,
        retries: now.retries,
        oom,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        format!("{:#}", ReplayTrace::read(text.as_bytes()).unwrap_err())
    }

    #[test]
    fn traces_are_read_and_ids_used_again() {
        let trace =
            ReplayTrace::read("op,id,bytes\nalloc,7,100\n\nalloc,-8,0\nfree,7\nalloc,7,5\nempty_cache,,\nfree,-8,0\n".as_bytes())
                .unwrap();
        use ReplayEvent::{Alloc, EmptyCache, Free};
        let again = [Alloc { slot: 0, bytes: 5 }, EmptyCache, Free { slot: 1 }];
        assert_eq!(trace.events[..3], [Alloc { slot: 0, bytes: 100 }, Alloc { slot: 1, bytes: 0 }, Free { slot: 0 }]);
        assert_eq!(trace.events[3..], again);
        assert_eq!(trace.lines, [2, 4, 5, 6, 7, 8]);
        assert_eq!(trace.slots, 2);
        assert_eq!(ReplayTrace::read("op,id,bytes\n".as_bytes()).unwrap().events, []);
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, part) in [
            ("", "line 1: a trace begins with the header"),
            ("alloc,1,2\n", "line 1: a trace begins with the header"),
            ("op,id,bytes\nalloc,1,2\nfree,2,\n", "line 3: id 2 is freed and is not allocated"),
            ("op,id,bytes\nalloc,1,2\n\nalloc,1,2\n", "line 4: id 1 is allocated already"),
            ("op,id,bytes\nalloc,1,2\nfree,1\nfree,1\n", "line 4: id 1 is freed"),
            ("op,id,bytes\nalloc,1,-2\n", "line 2: '-2' is no number of bytes"),
            ("op,id,bytes\nalloc,1,99999999999999999999\n", "line 2: '99999999999999999999' is no number of bytes"),
            ("op,id,bytes\nalloc,1\n", "line 2: '' is no number of bytes"),
            ("op,id,bytes\nalloc,a,1\n", "line 2: 'a' is no id"),
            ("op,id,bytes\nalloc,1.5,1\n", "line 2: '1.5' is no id"),
            ("op,id,bytes\nmalloc,1,1\n", "line 2: 'malloc' is no op"),
            ("op,id,bytes\nalloc,1,1,1\n", "line 2: 4 fields"),
            ("op,id,bytes\nfree,1,x\n", "line 2: 'x' is no number of bytes"),
        ] {
            assert!(error(text).contains(part), "{text:?}: {}", error(text));
        }
    }
}
