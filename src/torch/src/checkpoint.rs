//! Activation checkpointing: a segment keeps its inputs only, and is run again in the backward pass.
//!
//! Outputs, gradients, random numbers and how often a segment is run, nested ones included, are those of `torch.utils.checkpoint` with
//! `use_reentrant=False` (held by `tests/torch/checkpoint_scenes.rs`). That one is built on hooks for saved tensors, which libtorch offers to
//! Python only; this one is a function with a backward pass of its own, as `use_reentrant=True` is there. So it differs from the former
//! where that shows:
//!
//! - All outputs of a floating-point type say that they need a gradient, because parameters inside may need theirs; also those that the
//!   segment has detached, and those of a segment in which nothing needs one.
//! - A backward pass for the gradients of some tensors only (`Tensor::run_backward`, Python's `torch.autograd.grad`) is refused, as it is
//!   with `use_reentrant=True`: inside of a segment it would add to the gradients of all parameters. Gradients of gradients, which tch
//!   asks for in the same way, are refused with it.
//! - A segment is always run to its end again. Python's stops after the last tensor that is needed, which leaves out what follows it.

use super::native::{self, NativeError};
use anyhow::ensure;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tch::Tensor;

/// How a segment is checkpointed. The default is PyTorch's: random numbers are replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// Save the random number generators' state (the CPU's, and that of each input's device; some 5 kB of CPU memory for each segment)
    /// and replay it, so that dropout drops the same elements in the recomputation. Without it a segment with random operations gets
    /// wrong gradients.
    pub preserve_random: bool,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Checkpoint { preserve_random: true }
    }
}

/// Runs `segment` as a checkpointed segment with the default options; see [`Checkpoint::run`].
///
/// # Errors
/// See [`Checkpoint::run`].
pub fn checkpoint<F>(inputs: &[&Tensor], segment: F) -> Result<Vec<Tensor>, NativeError>
where
    F: Fn(&[Tensor]) -> anyhow::Result<Vec<Tensor>> + Send + 'static,
{
    Checkpoint::default().run(inputs, segment)
}

impl Checkpoint {
    /// Runs `segment` on `inputs` without keeping what its backward pass needs; the backward pass runs it again, with the same random
    /// numbers and the same autocast state.
    ///
    /// The closure owns what it uses (shallow clones of parameters are handles, not copies) and must compute the same from the same
    /// inputs. It may use parameters that are not inputs; they get their gradients. Inputs may be of any number, device and kind, with or
    /// without gradient; where none needs a gradient, the outputs say that they need one all the same, because parameters inside may. An
    /// undefined input or output stands for Python's `None`. Segments nest. Under `tch::no_grad` nothing is saved and the closure just
    /// runs.
    ///
    /// # Errors
    /// What the closure gives back as an error or panics with: here from the first run, from `Tensor::f_backward` for the second. From the
    /// backward pass also: it was asked for the gradients of some tensors only.
    pub fn run<F>(self, inputs: &[&Tensor], segment: F) -> Result<Vec<Tensor>, NativeError>
    where
        F: Fn(&[Tensor]) -> anyhow::Result<Vec<Tensor>> + Send + 'static,
    {
        let again = AtomicBool::new(false);
        // libtorch's functions take and give tensors that are there; the others keep their places here.
        let taken = SavedPlaces::of(inputs.iter().copied());
        let given: Arc<OnceLock<SavedPlaces>> = Arc::default();
        let first = given.clone();
        let segment = move |inputs: &[Tensor]| {
            // From the second time on it is a backward pass that calls.
            ensure!(
                !again.swap(true, Ordering::Relaxed) || native::backward_is_whole(),
                "a checkpointed segment cannot be run for the gradients of some tensors only (run_backward), because its parameters \
                 would get theirs all the same; call backward, and read the gradients from the leaves"
            );
            let outputs = segment(&taken.fill(inputs.iter().map(Tensor::shallow_clone)))?;
            first.get_or_init(|| SavedPlaces::of(&outputs));
            Ok(outputs.into_iter().filter(Tensor::defined).collect())
        };
        let inputs: Vec<&Tensor> = inputs.iter().copied().filter(|input| input.defined()).collect();
        let outputs = native::checkpoint(Box::new(segment), &inputs, self.preserve_random)?;
        Ok(given.get().map_or_else(Vec::new, |given| given.fill(outputs.into_iter())))
    }
}

/// Which of some tensors are defined.
#[derive(Debug)]
struct SavedPlaces(Vec<bool>);

impl SavedPlaces {
    fn of<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> SavedPlaces {
        SavedPlaces(tensors.into_iter().map(Tensor::defined).collect())
    }

    /// The defined tensors at their places, undefined ones between them.
    fn fill(&self, mut defined: impl Iterator<Item = Tensor>) -> Vec<Tensor> {
        let mut next = |there: &bool| if *there { defined.next() } else { None };
        self.0.iter().map(|there| next(there).unwrap_or_else(Tensor::new)).collect()
    }
}
