//! What lives in memory as a training step goes on: after load, forward, backward and step, and in the next iteration.
//!
//! Guide 4 describes it in five statements: the model; then model + activations; then model + gradients, twice the model; then also the
//! optimizer's moments; and from the second iteration on a peak of everything together. Each allocation is followed here by what it turns
//! out to be for, so each statement is put against the bytes it names. The batch itself, which the guide does not count, is left out
//! of every ratio and stands beside them. What the step leaves behind is judged by `optimizer_state`.

mod curves;
mod figures;
mod phases;

use harness::lab::*;
use models::training::OptimizerKind;
use torch::{Phase, Timeline};

number! { Batch "samples of a step" }
levels! {
    ZeroGrad "what happens to the last iteration's gradients":
    Dropped as "none" "dropped before the forward pass, PyTorch's default since 2.0",
    Zeroed as "zero" "kept, and filled with zeros: set_to_none=False",
}

cell! { Phases { model: ModelName, batch: Batch, optimizer: OptimizerKind, zero_grad: ZeroGrad } }

fn main() -> ExitCode {
    harness::run(protocol())
}

pub fn protocol() -> Protocol {
    Protocol::new("step_timeline", "Where memory goes in a training step")
        .question("What lives in memory after each phase of a training step, and what makes the peak?")
        .hypothesis(
            "After load, forward and the first backward pass lives what the guide says. The peak is the sum of everything only where \
             gradients are kept: a backward pass frees activations while it makes gradients, so where they were dropped both never live in \
             full at once.",
        )
        .grid(phases::grid())
        .threat("Bytes are what tensors ask for. The allocator rounds them up and caches, and the CUDA context and libraries come on top.")
        .threat(
            "The loss is dropped when the backward pass is done. A Python loop that keeps `loss` and `output` until the next iteration \
             keeps their bytes, though not what the graph had saved.",
        )
        .threat("Whole iterations run before the recorded ones, so what libraries allocate once, as cuBLAS's workspaces, is not in the figures.")
        .threat(
            "The optimizers are libtorch's C++ loops, which work on one parameter after the other; PyTorch's Python ones may hold \
             temporaries of all parameters at once.",
        )
}
