//! Dry runs: of any steps, and of a configuration's.

use super::follower::Follower;
use super::prediction::Prediction;
use crate::dry::{self, Dry};
use crate::torch::{self, Mark, Phase, attempt};
use crate::training::{Configuration, Onward, Trainer};
use anyhow::{Result, ensure};
use tch::{Device, Kind, Tensor};

/// Iterations that are followed: the second is the first that has optimizer state from its beginning.
const FOLLOWED: u32 = 2;

/// Runs steps on the simulated GPU and says what they need. `steps` tells the follower of the end of each phase; where it calls
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

/// Predicts a configuration: two iterations on the simulated GPU. Micro-batches that would do the same as the one before are left out,
/// which changes no figure.
///
/// # Errors
/// A configuration that cannot be trained; an operation that the simulated GPU does not know.
pub fn predict(dry: &Dry, configuration: &Configuration) -> Result<Prediction> {
    configuration.validate()?;
    dry::clear_workspaces()?;
    let kept = torch::cuda_memory(0)?.requested;
    ensure!(kept == 0, "{kept} bytes of the simulated GPU are in use already, so a prediction would begin with them");
    follow(dry, |follower| {
        let mut trainer = Trainer::load(configuration, follower.device())?;
        let mut ended = |mark: Mark, trainer: &Trainer| {
            let batch = trainer.batch();
            let onward = follower.ended(mark, &trainer.model().store, &[&batch.inputs, &batch.targets])?;
            if mark.phase == Phase::Backward && (onward == Onward::ToStep || mark.micro_batch + 1 == configuration.accumulate) {
                follower.steps_next();
            }
            if mark.phase == Phase::Step && mark.iteration == FOLLOWED {
                follower.hold()?;
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
