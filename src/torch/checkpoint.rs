//! Activation checkpointing: a segment keeps its inputs only, and is run again in the backward pass.

use crate::native::{self, NativeError};
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
    /// without gradient; where none needs one, the outputs say that they need one all the same, because parameters inside may.
    /// Segments nest. Under `tch::no_grad` nothing is saved and the closure just runs.
    ///
    /// # Errors
    /// What the closure gives back as an error or panics with: here from the first run, from `Tensor::f_backward` for the second.
    pub fn run<F>(self, inputs: &[&Tensor], segment: F) -> Result<Vec<Tensor>, NativeError>
    where
        F: Fn(&[Tensor]) -> anyhow::Result<Vec<Tensor>> + Send + 'static,
    {
        native::checkpoint(Box::new(segment), inputs, self.preserve_random)
    }
}
