//! Memory that other streams may still use when it is given back: free at the next allocation here, and later on a GPU that is behind its host.

use crate::capture::process::Trace;
use base::units::Bytes;
use serde::Serialize;
use sim::trace::Kind;
use std::collections::BTreeMap;

/// Less than this is not worth a word.
const NOTED: i64 = 64 << 20;

/// What other streams might still use when it was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct HeldByStreams {
    pub blocks: usize,
    /// Of one step, the most.
    pub bytes: i64,
}

impl HeldByStreams {
    /// None where the process gave back little of it.
    pub fn of(trace: &Trace) -> Option<HeldByStreams> {
        let (mut blocks, mut by_step) = (0, BTreeMap::new());
        for event in trace.events.iter().filter(|event| event.kind == Kind::FreeCompleted && event.rounded == 1) {
            blocks += 1;
            *by_step.entry((event.device, event.step)).or_insert(0) += event.bytes;
        }
        let bytes = by_step.into_values().max().unwrap_or(0);
        (bytes >= NOTED).then_some(HeldByStreams { blocks, bytes })
    }

    pub fn note(&self, lag: u32) -> String {
        let (blocks, most) = (self.blocks, Bytes(self.bytes.unsigned_abs()));
        let what = format!("{blocks} blocks were given back while another stream might use them, {most} in one step at most");
        match lag {
            0 => format!(
                "{what}: here they are free at the next allocation, on a GPU that is behind its host later. --lag 1000 shows what it would reserve then"
            ),
            _ => format!("{what}; with --lag {lag} they are free {lag} kernels later"),
        }
    }
}
