//! Plays a trace of allocations on PyTorch's own caching allocator, over the simulated GPU.

use super::Dry;
use crate::native::dry::{self, TraceEvent, TraceKind};
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::collections::HashMap;
use std::io::BufRead;

/// A trace that can be played: each free is that of a live allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayTrace {
    events: Vec<TraceEvent>,
    /// Line of each event in its file, the header being line 1.
    lines: Vec<u64>,
    slots: u32,
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
        let mut trace = ReplayTrace { events: Vec::new(), lines: Vec::new(), slots: 1 };
        let mut live: HashMap<i64, u32> = HashMap::new();
        let mut free_slots: Vec<u32> = Vec::new();
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

fn event(fields: &[&str], live: &mut HashMap<i64, u32>, free_slots: &mut Vec<u32>, slots: &mut u32) -> Result<TraceEvent> {
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
            let slot = match free_slots.pop() {
                Some(slot) => slot,
                None => {
                    *slots = slots.checked_add(1).context("more live allocations than a trace can have")?;
                    *slots - 1
                }
            };
            live.insert(id, slot);
            Ok(TraceEvent { kind: TraceKind::Alloc, slot, bytes })
        }
        "free" => {
            let id = id()?;
            let slot = live.remove(&id).with_context(|| format!("id {id} is freed and is not allocated"))?;
            free_slots.push(slot);
            Ok(TraceEvent { kind: TraceKind::Free, slot, bytes: 0 })
        }
        "empty_cache" => Ok(TraceEvent { kind: TraceKind::EmptyCache, slot: 0, bytes: 0 }),
        other => bail!("'{other}' is no op; there are alloc, free and empty_cache"),
    }
}

/// Plays a trace on a fresh allocator: before anything else was allocated in this process.
///
/// # Errors
/// libtorch's message, where it is another than that memory ran out; that is an outcome.
pub fn replay(_device: &Dry, trace: &ReplayTrace) -> Result<Replayed> {
    let [allocated, peak_allocated, reserved, peak_reserved, inactive_split, segments, retries, failed] =
        dry::replay(&trace.events, trace.slots)?;
    let oom = usize::try_from(failed).ok().and_then(|position| trace.lines.get(position).copied());
    Ok(Replayed { allocated, peak_allocated, reserved, peak_reserved, inactive_split, segments, retries, oom })
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
        let slots: Vec<u32> = trace.events.iter().map(|e| e.slot).collect();
        assert_eq!(slots, [1, 2, 1, 1, 0, 2]);
        assert_eq!(trace.lines, [2, 4, 5, 6, 7, 8]);
        assert_eq!(trace.slots, 3);
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
