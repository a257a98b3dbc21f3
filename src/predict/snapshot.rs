//! A prediction as PyTorch's own memory snapshot, which <https://pytorch.org/memory_viz> opens.
//!
//! Where PyTorch gives a Python stack, the frames say what an allocation is for and when it was made. There is no time on a simulated GPU:
//! `time_us` counts the events.

use super::prediction::Prediction;
use crate::dry::HeldBlock;
use crate::snapshot::{Action, Block, Frame, Segment, Snapshot, State};
use crate::torch::Made;
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Writes a prediction's timeline as a pickled snapshot.
///
/// # Errors
/// What `output` fails with.
pub fn write(prediction: &Prediction, output: &mut dyn std::io::Write) -> Result<()> {
    let timeline = &prediction.timeline;
    // Each allocation has a stack of its own; the last one is empty.
    let mut stacks: Vec<Vec<Frame>> = timeline.made.iter().map(|made| vec![frame(made)]).collect();
    stacks.push(Vec::new());
    let mut trace = Vec::with_capacity(2 * timeline.events.len());
    let mut live: BTreeMap<u64, usize> = BTreeMap::new();
    for event in &timeline.events {
        let made = &timeline.made[event.made];
        let names: &[&'static str] = if event.freed { &["free_requested", "free_completed"] } else { &["alloc"] };
        if event.freed {
            live.remove(&made.address);
        } else {
            live.insert(made.address, event.made);
        }
        for name in names {
            let time = trace.len() as i64;
            trace.push(Action { name, address: made.address, bytes: made.bytes, stream: 0, time, frames: event.made });
        }
    }
    let settings = std::env::var("PYTORCH_ALLOC_CONF").map(|set| ("PYTORCH_ALLOC_CONF".to_string(), set));
    let segments = segments(&prediction.held, &live, timeline.made.len());
    let snapshot = Snapshot { segments, device_traces: vec![trace], settings: settings.into_iter().collect(), stacks };
    snapshot.write(output).context("writing a snapshot")
}

fn segments(held_blocks: &[HeldBlock], live: &BTreeMap<u64, usize>, no_frames: usize) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for held in held_blocks {
        if segments.last().is_none_or(|segment| segment.address != held.segment) {
            segments.push(Segment {
                device: 0,
                address: held.segment,
                bytes: held.segment_bytes,
                stream: 0,
                is_large: held.large,
                is_expandable: false,
                frames: no_frames,
                blocks: Vec::new(),
            });
        }
        let Some(segment) = segments.last_mut() else { continue };
        segment.blocks.push(Block {
            address: held.address,
            bytes: held.bytes,
            requested: held.requested,
            state: if held.requested > 0 { State::Allocated } else { State::Inactive },
            frames: live.get(&held.address).copied().unwrap_or(no_frames),
        });
    }
    segments
}

/// What an allocation is for, where PyTorch says who made it.
fn frame(made: &Made) -> Frame {
    let when = match made.iteration {
        0 => "load".to_string(),
        n => format!("{} of iteration {n}", made.phase),
    };
    let file = made.parameter.as_deref().unwrap_or_else(|| made.category.name()).to_string();
    Frame { function: format!("{} made in {when}", made.category.name()), file, line: made.iteration }
}
