//! Memory that grows from step to step: blocks that each step makes and nothing frees.

use super::place::Held;
use crate::capture::process::{Keeper, Trace};
use serde::Serialize;
use sim::trace::{Category, MemoryBlock};
use std::collections::BTreeMap;

/// What each step leaves behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Growth {
    /// Allocated bytes that stay, on average over the steps before the last.
    pub bytes_per_step: i64,
    /// Of each line of the script the bytes and blocks of all these steps that live at the end, the most first.
    pub lines: Vec<Held>,
    /// Variables that hold tensors of several steps.
    pub kept_by: Vec<Keeper>,
}

/// What grew until the last step of these. A line counts where blocks live at the end that it made in each step before the last: what the
/// last one made is its own still, and what is made once (an optimizer's state, a cache) is not made again.
pub fn growth(
    trace: &Trace,
    blocks: &[MemoryBlock],
    device: u16,
    steps: u32,
    name: impl Fn(&MemoryBlock) -> Option<String>,
) -> Option<Growth> {
    if steps < 3 {
        return None;
    }
    let events = &trace.events;
    let lasting = |block: &&MemoryBlock| {
        let stays = !matches!(block.category, Category::Parameters | Category::OptimizerState | Category::Workspaces);
        block.device == device && stays && block.lives_after(events.len() - 1)
    };
    // By line, the bytes and blocks of each step before the last.
    let mut made: BTreeMap<String, BTreeMap<u32, (i64, usize)>> = BTreeMap::new();
    for block in blocks.iter().filter(lasting) {
        let step = events[block.made()].step;
        let Some(line) = name(block).filter(|_| step + 1 < steps) else { continue };
        let of_step = made.entry(line).or_default().entry(step).or_default();
        *of_step = (of_step.0 + block.rounded, of_step.1 + 1);
    }
    let mut lines: Vec<Held> = made
        .into_iter()
        .filter(|(_, of_steps)| of_steps.len() + 1 == steps as usize)
        .map(|(name, of_steps)| {
            let (bytes, blocks) = of_steps.into_values().fold((0, 0), |sum, step| (sum.0 + step.0, sum.1 + step.1));
            Held { name, bytes, blocks, source: None }
        })
        .collect();
    lines.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    let bytes: i64 = lines.iter().map(|line| line.bytes).sum();
    (bytes > 0).then(|| Growth { bytes_per_step: bytes / i64::from(steps - 1), lines, kept_by: trace.keepers.clone() })
}
