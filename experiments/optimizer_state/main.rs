//! What an optimizer keeps and needs: state for each parameter, temporaries of its step, and the time that the step takes.
//!
//! Guide 4 says that Adam's state is twice the model and RMSProp's once; and a tutorial of PyTorch's, that a step needs temporaries as
//! large as the model, in one implementation. All three are here: the loop over the parameters, foreach, which is PyTorch's default on a GPU,
//! and the fused kernels. Only the optimizer's step is measured, with gradients that stay the same. PyTorch in Python runs every cell
//! (`experiments/optimizer_state/step.py`).

mod bytes;
mod others;

use harness::lab::*;

const STATE: Metric = Metric::counted("state", "optimizer state", "B");
const CLAIMED: Metric = Metric::counted("claimed", "state by the guide", "B");
const STATE_RATIO: Metric = Metric::counted("state_ratio", "optimizer state, relative to the model", "1").ratio();
/// Peak of the step above what lives before it, over the model.
const TEMPORARY_RATIO: Metric =
    Metric::counted("temporary_ratio", "temporaries of the optimizer step, relative to the model", "1").ratio();
/// What a step must read and write at least: each parameter, its gradient and its state once.
const TRAFFIC: Metric = Metric::counted("traffic", "memory traffic", "B");

levels! {
    Method as "optimizer" "optimizer, with PyTorch's defaults":
    Sgd "",
    Momentum "SGD with momentum 0.9",
    Rmsprop "RMSProp; PyTorch has no fused one",
    Adam "",
    Adamw "",
}
levels! {
    How as "implementation" "how the step goes through the tensors":
    Loop "one tensor after another, PyTorch's default on a CPU" => "the loop",
    Foreach "one operation after another, over all tensors: PyTorch's default on a GPU" => "the foreach step",
    Fused "one kernel over all tensors" => "the fused step",
    Copy "no optimizer: copies the bytes that the step must move, which is the memory's own limit" => "only copying as many bytes",
}

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("optimizer_state", "Optimizer state and temporaries")
        .question("How much memory does an optimizer keep and need for its step, and how fast is the step in a loop, foreach or fused?")
        .hypothesis(
            "State is as many numbers for each parameter as the algorithm says, in each implementation. A step's temporaries are as large \
             as the model with foreach, as the largest tensor in a loop, and none when fused. The fused step is nearest to what the \
             memory's bandwidth allows; the loop pays for every tensor, so it is slowest where tensors are small and many.",
        )
        .grid(bytes::grid())
        .grid(bytes::time())
        .grid(others::bytes())
        .grid(others::same_step())
        .shows(Shown::new("Fused AdamW instead of a loop").at(Method::Adamw).at(How::Fused).time(TIME))
        .threat("The copy runs over a few large buffers however many tensors there are: it is a limit of the memory, not of launches.")
        .threat("Lion is written for this lab over all tensors at once, as PyTorch's foreach steps are: PyTorch has none.")
        .threat("There is no fused RMSProp in PyTorch, so none is shown.")
        .threat("The model is parameters and buffers in fp32. Parameters of 16 bits with state of 32 would double the ratios.")
}

/// A copy moves no parameter: its update is zero, and apart from the real one by the whole of that. Steps are the same sums in another
/// order, and the update is the difference of parameters that are larger than it.
fn relation(how: How) -> Relation {
    match how {
        How::Copy => missing(0.999),
        How::Loop | How::Foreach | How::Fused => equal(2e-5),
    }
}
