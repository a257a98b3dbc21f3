//! The lab against PyTorch in Python: the same steps, from the same parameters on the same data, with the same settings, in the same rounds.
//!
//! Readers use Python, so figures taken through Rust count for them as far as PyTorch gives the same. Here both run the same training
//! steps, from a start that ours hands to the PyTorch reference: losses, gradients and updated parameters are compared across the two
//! processes, bytes are counted on both sides by the same allocator, and times stand side by side.

mod bytes;
mod claims;
mod training;

use harness::lab::*;

const LIVE_FORWARD: Metric = Metric::counted("live_forward", "live after forward", "B");
const LIVE_BACKWARD: Metric = Metric::counted("live_backward", "live after backward", "B");
const LIVE_STEP: Metric = Metric::counted("live_step", "live after the step", "B");

// What must be equal to the byte: the three figures above and the peak, with the stated differences taken out.
const MATCHED_PEAK: Metric = Metric::counted("matched_requested_peak", "peak memory, less what is stated", "B").detail();
const MATCHED_FORWARD: Metric = Metric::counted("matched_live_forward", "live after forward, less what is stated", "B").detail();
const MATCHED_BACKWARD: Metric = Metric::counted("matched_live_backward", "live after backward, less what is stated", "B").detail();
const MATCHED_STEP: Metric = Metric::counted("matched_live_step", "live after the step, less what is stated", "B").detail();

levels! { Optimizer "optimizer, in a loop over the parameters on both sides": Sgd "", Adamw "" }
levels! {
    Technique "what is done":
    Nothing as "none" "a training step",
    Autocast "the forward pass in bf16",
    Accumulate "four micro-batches",
    Inplace "activations that overwrite their input",
    NoGrad "a forward pass that keeps nothing",
    OptimizerStep "the optimizer's step alone",
}

cell! { Side { model: ModelName, batch: Batch, optimizer: Optimizer, technique: Technique, threads: Threads, by: By } }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("agreement", "Agreement with PyTorch")
        .question("Does the lab compute what PyTorch in Python computes, take as many bytes, and as little time?")
        .hypothesis(
            "Kernels, autograd and allocator are the same library, so values and bytes are the same. Between operations there is no \
             interpreter, so steps of small operations take less time, and those of large ones as much.",
        )
        .grid(claims::all(grid()))
        .kind(SubjectKind::SelfCheck)
        .threat(
            "While bytes are counted, both sides have the lab's counting allocator; while time is taken, PyTorch has its own, as its users \
             have, and the lab counts on.",
        )
        .threat(
            "AdamW steps in a loop over the parameters on both sides, as libtorch does; PyTorch's other implementations are measured in Python \
             (`optimizer_state`).",
        )
        .threat("PyTorch is eager: torch.compile is another program.")
        .threat("A Python that waits for nothing but this loop: data loading, logging and hooks would come on top on either side.")
}

fn grid() -> Grid<Side> {
    use {Optimizer::*, Technique::*};
    const TECHNIQUES: [Technique; 4] = [Autocast, Accumulate, Inplace, NoGrad];
    fn sides(
        model: &'static str,
        batch: i64,
        optimizer: impl Many<Optimizer>,
        technique: impl Many<Technique>,
        threads: impl Many<Threads>,
    ) -> Vec<Side> {
        Side::cross(model, batch, optimizer, technique, threads, [By::Pytorch, By::Vramlab])
    }
    Grid::new("side by side", training::step)
        .compare::<By>()
        .quick(sides("mlp-8x64", 32, Sgd, Nothing, "1").passes(CHECK | COUNT))
        .quick(sides("mlp-8x64", 32, Adamw, Nothing, "1"))
        .quick(sides("mlp-9x128", 256, Sgd, TECHNIQUES, "1").passes(CHECK | COUNT))
        .quick(sides("mlp-8x512", 32, Adamw, OptimizerStep, "1"))
        .quick(sides("mlp-4x1024", 256, Sgd, Nothing, "1"))
        .quick(sides("gpt-3x256", 4, Sgd, Nothing, "1"))
        .quick(sides("resnet-2x32-gn", 8, Sgd, Nothing, "1"))
        // On a GPU.
        .full(sides("mlp-8x64", 32, Sgd, Nothing, "all").passes(CHECK | COUNT))
        .full(sides("mlp-8x64", 32, Adamw, Nothing, "1"))
        .full(sides("mlp-16x1024", 4096, Sgd, TECHNIQUES, "all").passes(CHECK | COUNT))
        .full(sides("mlp-16x4096", 32, Adamw, OptimizerStep, "1"))
        .full(sides("mlp-8x4096", 8192, Sgd, Nothing, "all"))
        .full(sides("gpt-12x768", 128, Sgd, Nothing, "all"))
        .full(sides("resnet-8x64-gn", 256, Sgd, Nothing, "all"))
        .smoke(sides("mlp-2x16", 8, Sgd, Nothing, "1").passes(CHECK))
        .on(&[Platform::Cpu, Platform::Gpu])
        .check(|_| equal(1e-6)) // the same kernels on the same numbers
        .no_plots()
}
