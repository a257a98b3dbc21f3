//! The allocator's history and what it held in the end, as `torch.cuda.memory._snapshot()` of PyTorch 2.11 gives it, pickled: what
//! <https://pytorch.org/memory_viz> and `torch/cuda/_memory_viz.py` read.

use super::course::{MOST_EVENTS, View};
use super::pickle::Pickle;
use sim::trace::{Event, Kind};
use std::collections::BTreeMap;
use std::io::{self, Write};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockState {
    Allocated,
    /// Given back, and another stream may still use it.
    Pending,
    Inactive,
}

/// A block of a segment, or a gap between two.
#[derive(Debug)]
struct SnapshotBlock {
    address: u64,
    bytes: i64,
    requested: i64,
    state: BlockState,
    stack: u32,
}

/// Writes what a process would have of one card at its end; `time_us` counts events.
pub fn write(view: &View, output: &mut dyn Write) -> io::Result<()> {
    let device = view.process.device;
    let history: Vec<(usize, &Event)> = view.events.iter().enumerate().filter(|(_, event)| event.device == device).collect();
    let stream_of = |event: &Event| view.trace.streams[usize::from(event.stream)];
    let mut ranges = SegmentRanges::default();
    for (_, event) in history.iter().copied() {
        let bytes = event.bytes.unsigned_abs();
        match event.kind {
            Kind::SegmentAlloc | Kind::SegmentMap => {
                let is_expandable = event.kind == Kind::SegmentMap;
                let range = SegmentRange { bytes, stream: stream_of(event), is_expandable, stack: event.stack };
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
        let (address, stack) = (block.address, view.events[block.made()].stack);
        held.insert(address, SnapshotBlock { address, bytes: block.rounded, requested: block.bytes, state, stack });
    }
    let actions: Vec<(usize, &Event)> = history.into_iter().filter(|(_, event)| action(event.kind).is_some()).collect();
    // One list for each device.
    let mut histories: Vec<&[(usize, &Event)]> = vec![&[][..]; usize::from(device)];
    histories.push(&actions[actions.len().saturating_sub(MOST_EVENTS)..]);
    Pickle::write(output, |p| {
        p.dict(|p| {
            p.key("segments", |p| p.list(&ranges.joined(), |p, of| segment(p, view, *of, &mut held)))?;
            p.key("device_traces", |p| {
                p.list(&histories, |p, history| {
                    p.list(history, |p, &(at, event)| {
                        p.dict(|p| {
                            p.key("action", |p| p.text(action(event.kind).unwrap_or_default()))?;
                            // Of memory that ran out, what the device had free.
                            let address = if event.kind == Kind::OutOfMemory { "device_free" } else { "addr" };
                            p.key(address, |p| p.integer(event.address.cast_signed()))?;
                            p.key("size", |p| p.integer(event.bytes))?;
                            p.key("stream", |p| p.integer(stream_of(event).cast_signed()))?;
                            p.key("time_us", |p| p.integer(at as i64))?;
                            frames(p, view, event.stack)
                        })
                    })
                })
            })?;
            p.key("allocator_settings", |p| {
                p.dict(|p| match &view.trace.process.alloc_conf {
                    Some(set) => p.key("PYTORCH_ALLOC_CONF", |p| p.text(set)),
                    None => Ok(()),
                })
            })?;
            p.key("external_annotations", |p| p.list::<()>(&[], |_, _| Ok(())))
        })
    })
}

/// As PyTorch names it; none of what is no action of its allocator.
fn action(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Alloc => Some("alloc"),
        Kind::FreeRequested => Some("free_requested"),
        Kind::FreeCompleted => Some("free_completed"),
        Kind::SegmentAlloc => Some("segment_alloc"),
        Kind::SegmentFree => Some("segment_free"),
        Kind::SegmentMap => Some("segment_map"),
        Kind::SegmentUnmap => Some("segment_unmap"),
        Kind::OutOfMemory => Some("oom"),
        Kind::Mark | Kind::Pass | Kind::Label | Kind::Placeholder | Kind::Outside | Kind::Ended | Kind::Pool | Kind::Asked => None,
    }
}

fn frames(p: &mut Pickle, view: &View, stack: u32) -> io::Result<()> {
    p.key("frames", |p| {
        p.numbered(stack, view.trace.stack(stack), |p, frame| {
            p.dict(|p| {
                p.key("name", |p| p.text(&frame.function))?;
                p.key("filename", |p| p.text(&frame.file))?;
                p.key("line", |p| p.integer(frame.line.into()))
            })
        })
    })
}

/// The size of a segment of small blocks.
const SMALL: u64 = 2 << 20;

/// Memory that the allocator has of the card.
#[derive(Debug, Clone, Copy)]
struct SegmentRange {
    bytes: u64,
    stream: u64,
    is_expandable: bool,
    stack: u32,
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
fn segment(
    p: &mut Pickle,
    view: &View,
    (address, range): (u64, SegmentRange),
    held: &mut BTreeMap<u64, SnapshotBlock>,
) -> io::Result<()> {
    let end = address + range.bytes;
    let mut later = held.split_off(&address);
    held.append(&mut later.split_off(&end));
    let mut blocks: Vec<SnapshotBlock> = Vec::new();
    let mut at = address;
    let gap = |from: u64, to: u64| {
        let bytes = to.saturating_sub(from).cast_signed();
        (bytes > 0).then_some(SnapshotBlock { address: from, bytes, requested: 0, state: BlockState::Inactive, stack: 0 })
    };
    for (from, block) in later {
        blocks.extend(gap(at, from));
        at = from + block.bytes.unsigned_abs();
        blocks.push(block);
    }
    blocks.extend(gap(at, end));
    let sum = |of: fn(&SnapshotBlock) -> i64, states: &[BlockState]| {
        blocks.iter().filter(|block| states.contains(&block.state)).map(of).sum::<i64>()
    };
    let active = [BlockState::Allocated, BlockState::Pending];
    let is_large = range.is_expandable || range.bytes != SMALL;
    p.dict(|p| {
        p.key("device", |p| p.integer(view.process.device.into()))?;
        p.key("address", |p| p.integer(address.cast_signed()))?;
        p.key("total_size", |p| p.integer(range.bytes.cast_signed()))?;
        p.key("allocated_size", |p| p.integer(sum(|block| block.bytes, &[BlockState::Allocated])))?;
        p.key("active_size", |p| p.integer(sum(|block| block.bytes, &active)))?;
        p.key("requested_size", |p| p.integer(sum(|block| block.requested, &active)))?;
        p.key("stream", |p| p.integer(range.stream.cast_signed()))?;
        p.key("segment_type", |p| p.text(if is_large { "large" } else { "small" }))?;
        // The pool that is none of a CUDA graph's.
        p.key("segment_pool_id", |p| p.pair([0, 0]))?;
        p.key("is_expandable", |p| p.flag(range.is_expandable))?;
        frames(p, view, range.stack)?;
        p.key("blocks", |p| {
            p.list(&blocks, |p, block| {
                let state = match block.state {
                    BlockState::Allocated => "active_allocated",
                    BlockState::Pending => "active_pending_free",
                    BlockState::Inactive => "inactive",
                };
                p.dict(|p| {
                    p.key("address", |p| p.integer(block.address.cast_signed()))?;
                    p.key("size", |p| p.integer(block.bytes))?;
                    p.key("requested_size", |p| p.integer(block.requested))?;
                    p.key("state", |p| p.text(state))?;
                    frames(p, view, block.stack)
                })
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_joined_and_taken_away() {
        let page = SegmentRange { bytes: 20, stream: 0, is_expandable: true, stack: 0 };
        let mut ranges = SegmentRanges(BTreeMap::from([(100, page), (120, page), (140, page), (200, page)]));
        let spans = |ranges: &SegmentRanges| ranges.joined().iter().map(|(at, range)| (*at, range.bytes)).collect::<Vec<_>>();
        assert_eq!(spans(&ranges), [(100, 60), (200, 20)]);
        ranges.cut(110, 150);
        assert_eq!(spans(&ranges), [(100, 10), (150, 10), (200, 20)]);
        ranges.cut(100, 110);
        assert_eq!(spans(&ranges), [(150, 10), (200, 20)]);
    }
}
