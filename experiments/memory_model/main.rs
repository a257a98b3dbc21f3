//! Can memory be predicted before the run? Guide 3's formula, and the simulated GPU, against the meter.
//!
//! The formula is M = P·D_param + B·A·D_act + O·D_opt. What A, 'the activations', counts is left to the reader; it is read here in the
//! formula's favour, as everything that a forward pass really leaves alive for the backward pass. So what the formula still misses is
//! what it has no term for: gradients, and what lives only for a moment. The simulated GPU runs the same step on PyTorch's own
//! allocator and counts.

mod budget;
mod configurations;

use harness::lab::*;
use models::training::{Configuration, OptimizerKind, Trainer};

number! { Batch "samples of a step" }

fn main() -> ExitCode {
    harness::run(protocol())
}

pub fn protocol() -> Protocol {
    Protocol::new("memory_model", "Predicting memory")
        .question("How well do the guide's formula and the simulated GPU predict the peak memory of a training step?")
        .hypothesis(
            "The formula underestimates wherever gradients or temporaries matter: everywhere that parameters do. A dry run counts what \
             PyTorch allocates, so it agrees but for kernels that allocate otherwise on another device.",
        )
        .grid(configurations::grid())
        .grid(budget::grid())
        .threat("CPU kernels are not those that the simulated GPU runs: convolutions, attention and norms may need other temporaries.")
        .threat("Requested bytes are what tensors ask for. What a GPU's allocator reserves, and what context and libraries take, comes on top.")
        .threat(
            "Whether a run fits is asked of 17 sizes of GPU memory, from a quarter of the measured peak to four times as much, a quarter of \
             an octave apart.",
        )
}
