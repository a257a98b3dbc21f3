//! A prediction as PyTorch's own memory snapshot, which <https://pytorch.org/memory_viz> opens.
//!
//! The form is that of `torch.cuda.memory._snapshot()` of PyTorch 2.11, pickled. Where PyTorch gives a Python stack, the frames say what an
//! allocation is for and when it was made. There is no time on a dry device: `time_us` counts the events.
//!
//! The page reads a part of pickle's language only: lists stand where PyTorch writes tuples, which it would not read from another writer.

use super::prediction::Prediction;
use crate::dry::HeldBlock;
use crate::torch::Made;
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Debug, Serialize)]
struct Snapshot {
    segments: Vec<Segment>,
    /// One list for each device.
    device_traces: Vec<Vec<Action>>,
    allocator_settings: BTreeMap<String, String>,
    external_annotations: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Segment {
    device: i32,
    address: u64,
    total_size: i64,
    allocated_size: i64,
    active_size: i64,
    requested_size: i64,
    stream: i64,
    segment_type: &'static str,
    segment_pool_id: Vec<i64>,
    is_expandable: bool,
    frames: Vec<Frame>,
    blocks: Vec<Block>,
}

#[derive(Debug, Serialize)]
struct Block {
    address: u64,
    size: i64,
    requested_size: i64,
    state: &'static str,
    frames: Vec<Frame>,
}

#[derive(Debug, Serialize)]
struct Action {
    action: &'static str,
    addr: u64,
    size: i64,
    stream: i64,
    time_us: u64,
    frames: Vec<Frame>,
}

#[derive(Debug, Serialize)]
struct Frame {
    name: String,
    filename: String,
    line: u32,
}

/// Writes a prediction's timeline as a pickled snapshot.
///
/// # Errors
/// What `output` fails with.
pub fn write(prediction: &Prediction, output: &mut dyn std::io::Write) -> Result<()> {
    let timeline = &prediction.timeline;
    let mut trace = Vec::with_capacity(2 * timeline.events.len());
    let mut live: BTreeMap<u64, &Made> = BTreeMap::new();
    for event in &timeline.events {
        let made = &timeline.made[event.made];
        let actions: &[&'static str] = if event.freed { &["free_requested", "free_completed"] } else { &["alloc"] };
        if event.freed {
            live.remove(&made.address);
        } else {
            live.insert(made.address, made);
        }
        for action in actions {
            let time_us = trace.len() as u64;
            trace.push(Action { action, addr: made.address, size: made.bytes, stream: 0, time_us, frames: frames(made) });
        }
    }
    let snapshot = Snapshot {
        segments: segments(&prediction.held, &live),
        device_traces: vec![trace],
        allocator_settings: std::env::var("PYTORCH_ALLOC_CONF")
            .map(|set| BTreeMap::from([("PYTORCH_ALLOC_CONF".to_string(), set)]))
            .unwrap_or_default(),
        external_annotations: Vec::new(),
    };
    let options = serde_pickle::SerOptions::new().proto_v2();
    let bytes = serde_pickle::to_vec(&snapshot, options).context("pickling a snapshot")?;
    output.write_all(&bytes).context("writing a snapshot")
}

fn segments(held_blocks: &[HeldBlock], live: &BTreeMap<u64, &Made>) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for held in held_blocks {
        if segments.last().is_none_or(|segment| segment.address != held.segment) {
            segments.push(Segment {
                device: 0,
                address: held.segment,
                total_size: held.segment_bytes,
                allocated_size: 0,
                active_size: 0,
                requested_size: 0,
                stream: 0,
                segment_type: if held.large { "large" } else { "small" },
                segment_pool_id: vec![0, 0],
                is_expandable: false,
                frames: Vec::new(),
                blocks: Vec::new(),
            });
        }
        let Some(segment) = segments.last_mut() else { continue };
        let allocated = held.requested > 0;
        if allocated {
            segment.allocated_size += held.bytes;
            segment.active_size += held.bytes;
            segment.requested_size += held.requested;
        }
        segment.blocks.push(Block {
            address: held.address,
            size: held.bytes,
            requested_size: held.requested,
            state: if allocated { "active_allocated" } else { "inactive" },
            frames: live.get(&held.address).map(|made| frames(made)).unwrap_or_default(),
        });
    }
    segments
}

/// What an allocation is for, where PyTorch says who made it.
fn frames(made: &Made) -> Vec<Frame> {
    let when = match made.iteration {
        0 => "load".to_string(),
        n => format!("{} of iteration {n}", made.phase),
    };
    let filename = made.parameter.clone().unwrap_or_else(|| made.category.name().to_string());
    vec![Frame { name: format!("{} made in {when}", made.category.name()), filename, line: made.iteration }]
}
