//! The allocator's history and what it held in the end, in PyTorch's form.

use super::course::{MOST_EVENTS, View};
use super::pickle::{Action, BlockState, Segment, Snapshot, SnapshotBlock, SnapshotFrame};
use crate::capture::process::{Frame, Trace};
use sim::trace::{Event, Kind};
use std::collections::{BTreeMap, HashMap};

/// A process's snapshot as `torch.cuda.memory._snapshot()` would give it at its end, of one card; `time_us` counts events.
pub fn of(view: &View) -> Snapshot {
    let mut stacks = Stacks { trace: view.trace, numbers: HashMap::new(), stacks: vec![Vec::new()] };
    let device = usize::from(view.process.device);
    let stream_of = |event: &Event| view.trace.streams[usize::from(event.stream)];
    let history = view.events.iter().enumerate().filter(|(_, event)| event.device == view.process.device);
    let mut actions: Vec<Action> = Vec::new();
    for (at, event) in history.clone() {
        let name = match event.kind {
            Kind::Alloc => "alloc",
            Kind::FreeRequested => "free_requested",
            Kind::FreeCompleted => "free_completed",
            Kind::SegmentAlloc => "segment_alloc",
            Kind::SegmentFree => "segment_free",
            Kind::SegmentMap => "segment_map",
            Kind::SegmentUnmap => "segment_unmap",
            Kind::OutOfMemory => "oom",
            Kind::Mark | Kind::Pass | Kind::Label | Kind::Placeholder | Kind::Outside | Kind::Ended => continue,
        };
        let (address, bytes, stream) = (event.address, event.bytes, stream_of(event));
        actions.push(Action { name, address, bytes, stream, time: at as i64, frames: stacks.number(event.stack) });
    }
    actions.drain(..actions.len().saturating_sub(MOST_EVENTS));
    let mut ranges = SegmentRanges::default();
    for (_, event) in history {
        let bytes = event.bytes.unsigned_abs();
        match event.kind {
            Kind::SegmentAlloc | Kind::SegmentMap => {
                let range = SegmentRange {
                    bytes,
                    stream: stream_of(event),
                    is_expandable: event.kind == Kind::SegmentMap,
                    frames: stacks.number(event.stack),
                };
                ranges.0.insert(event.address, range);
            }
            Kind::SegmentFree | Kind::SegmentUnmap => ranges.cut(event.address, event.address + bytes),
            _ => {}
        }
    }
    let mut held: BTreeMap<u64, SnapshotBlock> = BTreeMap::new();
    for block in &view.blocks {
        let state = match (block.freed(), block.completed()) {
            (None, _) => BlockState::Allocated,
            (Some(_), None) => BlockState::Pending,
            (Some(_), Some(_)) => continue,
        };
        let frames = stacks.number(view.events[block.made()].stack);
        let own = SnapshotBlock { address: block.address, bytes: block.rounded, requested: block.bytes, state, frames };
        held.insert(block.address, own);
    }
    let segments = ranges.joined().into_iter().map(|(address, range)| segment(device as i64, address, range, &mut held)).collect();
    let settings = view.trace.process.alloc_conf.iter().map(|set| ("PYTORCH_ALLOC_CONF".to_string(), set.clone())).collect();
    let mut device_traces: Vec<Vec<Action>> = (0..=device).map(|_| Vec::new()).collect();
    device_traces[device] = actions;
    Snapshot { segments, device_traces, settings, stacks: stacks.stacks }
}

/// Stacks by their place in the snapshot; the first is empty.
struct Stacks<'a> {
    trace: &'a Trace,
    numbers: HashMap<u32, usize>,
    stacks: Vec<Vec<SnapshotFrame>>,
}

impl Stacks<'_> {
    fn number(&mut self, stack: u32) -> usize {
        if stack == 0 {
            return 0;
        }
        *self.numbers.entry(stack).or_insert_with(|| {
            let frame =
                |frame: &Frame| SnapshotFrame { function: frame.function.clone(), file: frame.file.clone(), line: frame.line };
            self.stacks.push(self.trace.stack(stack).map(frame).collect());
            self.stacks.len() - 1
        })
    }
}

/// The size of a segment of small blocks.
const SMALL: u64 = 2 << 20;

/// Memory that the allocator has of the card.
#[derive(Debug, Clone, Copy)]
struct SegmentRange {
    bytes: u64,
    stream: u64,
    is_expandable: bool,
    frames: usize,
}

/// By address.
#[derive(Debug, Default)]
struct SegmentRanges(BTreeMap<u64, SegmentRange>);

impl SegmentRanges {
    /// Takes away what lies from `from` to `to`.
    fn cut(&mut self, from: u64, to: u64) {
        let touched: Vec<(u64, SegmentRange)> =
            self.0.range(..to).rev().take_while(|(at, range)| *at + range.bytes > from).map(|(at, range)| (*at, *range)).collect();
        for (at, range) in touched {
            self.0.remove(&at);
            let end = at + range.bytes;
            if at < from {
                self.0.insert(at, SegmentRange { bytes: from - at, ..range });
            }
            if end > to {
                self.0.insert(to, SegmentRange { bytes: end - to, ..range });
            }
        }
    }

    /// Pages of an expandable segment that lie side by side are one.
    fn joined(&self) -> Vec<(u64, SegmentRange)> {
        let mut joined: Vec<(u64, SegmentRange)> = Vec::new();
        for (at, range) in &self.0 {
            match joined.last_mut() {
                Some((from, last))
                    if last.is_expandable && range.is_expandable && *from + last.bytes == *at && last.stream == range.stream =>
                {
                    last.bytes += range.bytes;
                }
                _ => joined.push((*at, *range)),
            }
        }
        joined
    }
}

/// A segment with the blocks in it, and what lies between them.
fn segment(device: i64, address: u64, range: SegmentRange, held: &mut BTreeMap<u64, SnapshotBlock>) -> Segment {
    let end = address + range.bytes;
    let mut later = held.split_off(&address);
    held.append(&mut later.split_off(&end));
    let mut blocks: Vec<SnapshotBlock> = Vec::new();
    let mut at = address;
    let gap = |from: u64, to: u64| SnapshotBlock {
        address: from,
        bytes: (to - from).cast_signed(),
        requested: 0,
        state: BlockState::Inactive,
        frames: 0,
    };
    for (from, block) in later {
        if from > at {
            blocks.push(gap(at, from));
        }
        at = from + block.bytes.unsigned_abs();
        blocks.push(block);
    }
    if at < end {
        blocks.push(gap(at, end));
    }
    Segment {
        device,
        address,
        bytes: range.bytes.cast_signed(),
        stream: range.stream,
        is_large: range.is_expandable || range.bytes != SMALL,
        is_expandable: range.is_expandable,
        frames: range.frames,
        blocks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_joined_and_taken_away() {
        let page = SegmentRange { bytes: 20, stream: 0, is_expandable: true, frames: 0 };
        let mut ranges = SegmentRanges(BTreeMap::from([(100, page), (120, page), (140, page), (200, page)]));
        let spans = |ranges: &SegmentRanges| ranges.joined().iter().map(|(at, range)| (*at, range.bytes)).collect::<Vec<_>>();
        assert_eq!(spans(&ranges), [(100, 60), (200, 20)]);
        ranges.cut(110, 150);
        assert_eq!(spans(&ranges), [(100, 10), (150, 10), (200, 20)]);
        ranges.cut(100, 110);
        assert_eq!(spans(&ranges), [(150, 10), (200, 20)]);
    }
}
