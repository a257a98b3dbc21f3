//! Can memory be predicted before the run? Guide 3's formula against the meter.
//!
//! The formula is M = P·D_param + B·A·D_act + O·D_opt. What A, 'the activations', counts is left to the reader; it is read here in the
//! formula's favour, as everything that a forward pass really leaves alive for the backward pass. So what the formula still misses is
//! what it has no term for: gradients, and what lives only for a moment. How far the simulated GPU is off is told beside real GPUs
//! (`records/gpus`). PyTorch in Python runs every cell (`experiments/memory_model/step.py`).

mod budget;
mod configurations;

use harness::lab::*;

levels! { Optimizer "optimizer, with PyTorch's defaults": Sgd "", Adam "", Adamw "" }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("memory_model", "Predicting memory")
        .question("How well does the guide's formula predict the peak memory of a training step?")
        .hypothesis("The formula underestimates wherever gradients or temporaries matter: everywhere that parameters do.")
        .grid(configurations::grid())
        .grid(budget::grid())
        .threat("Requested bytes are what tensors ask for. What a GPU's allocator reserves, and what context and libraries take, comes on top.")
        .threat(
            "Whether a run fits is asked of 17 sizes of GPU memory, from a quarter of the measured peak to four times as much, a quarter of \
             an octave apart.",
        )
}
