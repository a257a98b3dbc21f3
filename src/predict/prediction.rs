//! What a configuration is predicted to need.

use crate::dry::HeldBlock;
use crate::torch::{Categories, Held, Phase, Stage, Timeline};
use crate::training::OutOfMemory;
use serde::{Deserialize, Serialize};

/// Bytes of a training step on a GPU, as a dry run gives them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// How many numbers are trained; none where memory ran out before that was known.
    pub parameters: Option<usize>,
    /// Most bytes that tensors asked for at once, by PyTorch's meter `requested_bytes`.
    pub requested: i64,
    /// The same with each tensor rounded up as the allocator does.
    pub allocated: i64,
    /// Most bytes that the allocator had of the card, in use or cached.
    pub reserved: i64,
    /// `reserved`, and what was taken of the card beside the allocator: what `nvidia-smi` would show at most.
    pub device_used: i64,
    /// How often the allocator had to give its cache back to go on.
    pub retries: i64,
    pub peak: Peak,
    /// Phases that ended, in order.
    pub phases: Vec<Stage>,
    /// Where memory ran out, if it did. The other figures are then those up to there.
    pub out_of_memory: Option<OutOfMemory>,
    /// Every allocation, for pictures.
    #[serde(skip)]
    pub timeline: Timeline,
    /// What the allocator held in the end, for snapshots.
    #[serde(skip)]
    pub held: Vec<HeldBlock>,
}

/// The moment at which most bytes lived.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Peak {
    pub bytes: i64,
    pub iteration: u32,
    pub phase: Phase,
    /// Exact: each allocation is known by what it turns out to be for.
    pub categories: Categories,
    /// The kinds of tensors with most of the bytes, the most first.
    pub tensors: Vec<Held>,
}

/// A whole iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whole {
    pub live: i64,
    pub peak: i64,
}

impl Prediction {
    /// Whether memory sufficed.
    pub fn fits(&self) -> bool {
        self.out_of_memory.is_none()
    }

    /// The second iteration as a whole, where it came to its end.
    pub fn second_iteration(&self) -> Option<Whole> {
        let second = self.phases.iter().filter(|stage| stage.iteration == 2);
        let last = second.clone().find(|stage| stage.phase == Phase::Step)?;
        Some(Whole { live: last.live, peak: second.map(|stage| stage.peak).max().unwrap_or(last.peak) })
    }
}
