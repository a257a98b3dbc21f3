//! What a configuration is predicted to need.

use super::follower::Follower;
use crate::dry::{self, Dry, HeldBlock};
use crate::torch::{self, Categories, Held, Mark, Phase, Stage, Timeline, attempt};
use crate::training::{Configuration, Onward, OutOfMemory, Trainer};
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

/// Iterations that are followed: the second is the first that has optimizer state from its beginning.
const FOLLOWED: u32 = 2;

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

/// Runs steps on the dry device and says what they need. `steps` tells the follower of the end of each phase; where it calls
/// [`Follower::ended`] never, only the peaks are known. Everything that it made must be gone when it returns, or the next prediction in
/// this process begins with it.
///
/// The allocator's cache is empty before and after, and cuBLAS has no workspace, so a prediction does not depend on those before it.
///
/// # Errors
/// What `steps` fails with, except for memory that runs out, which is a finding.
pub fn follow(dry: &Dry, steps: impl FnOnce(&mut Follower) -> Result<()>) -> Result<Prediction> {
    dry::clear_workspaces()?;
    torch::empty_cuda_cache()?;
    let mut follower = Follower::begin(dry)?;
    let result = attempt(|| steps(&mut follower));
    let failed = result.is_err();
    let prediction = follower.finish(result.err());
    if failed {
        forget_failed_pass()?;
    }
    dry::clear_workspaces()?;
    torch::empty_cuda_cache()?;
    prediction
}

/// Where a backward pass fails inside of another one, as in a checkpointed segment, autograd keeps the tensors of what was still to do
/// until the next pass of the thread. This is the next pass.
fn forget_failed_pass() -> Result<()> {
    let leaf = Tensor::f_ones([1], (Kind::Float, Device::Cpu))?.f_set_requires_grad(true)?;
    Ok(leaf.f_sum(Kind::Float)?.f_backward()?)
}

/// Predicts a configuration: two iterations on the dry device. Micro-batches that would do the same as the one before are left out, which
/// changes no figure.
///
/// # Errors
/// A configuration that cannot be trained; an operation that the dry device does not know.
pub fn predict(dry: &Dry, configuration: &Configuration) -> Result<Prediction> {
    configuration.validate()?;
    dry::clear_workspaces()?;
    let kept = torch::cuda_memory(0)?.requested;
    ensure!(kept == 0, "{kept} bytes of the dry device are in use already, so a prediction would begin with them");
    follow(dry, |follower| {
        let mut trainer = Trainer::load(configuration, follower.device())?;
        let mut ended = |mark: Mark, trainer: &Trainer| {
            let batch = trainer.batch();
            let onward = follower.ended(mark, &trainer.model().store, &[&batch.inputs, &batch.targets])?;
            if mark.phase == Phase::Backward && (onward == Onward::ToStep || mark.micro_batch + 1 == configuration.accumulate) {
                follower.steps_next();
            }
            Ok(onward)
        };
        ended(Mark::LOADED, &trainer)?;
        for _ in 0..FOLLOWED {
            trainer.iterate_onward(&mut ended)?;
        }
        Ok(())
    })
}
