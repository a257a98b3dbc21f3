//! Activation checkpointing: keep a segment's input only, and compute the rest again when the backward pass needs it.
//!
//! Guides 3 and 4 promise activation memory for compute. With segments of sqrt(n) blocks the need should grow with the square root
//! of the depth (Chen et al., arXiv 1604.06174), for at most one more forward pass.

mod budget;
mod depth;
mod gradients;

use harness::lab::*;
use models::{Block, Model};
use tch::nn::{OptimizerConfig, Sgd};
use torch::{autocast, checkpoint};

number! { Batch "samples" }
number! { Depth "blocks" }
levels! {
    Policy "what is checkpointed":
    Nothing as "none" "nothing" => "no checkpointing",
    EveryBlock "each block is a segment" => "checkpointing every block",
    Sqrt "segments of sqrt(depth) blocks, rounded up" => "checkpointing sqrt(n) segments",
    Every4 as "every-4" "segments of 4 blocks" => "checkpointing every 4 blocks",
    Every16 as "every-16" "segments of 16 blocks" => "checkpointing every 16 blocks",
}

fn main() -> ExitCode {
    harness::run(protocol())
}

pub fn protocol() -> Protocol {
    Protocol::new("checkpointing", "Activation checkpointing")
        .question("How much activation memory does recomputation save, how does the saving grow with depth, and what does it cost in time?")
        .hypothesis(
            "Without checkpointing a step's memory grows linearly with depth; with segments of sqrt(n) blocks as its square root. The time \
             grows by one forward pass at most, about a third of the step.",
        )
        .grid(depth::grid())
        .grid(budget::grid())
        .grid(gradients::grid())
        .shows(Shown::new("Checkpoint every block", "Deep models").at(Policy::EveryBlock).memory(PEAK).time(TIME))
        .threat("Blocks are equal; a model whose blocks differ wants its segments chosen by bytes, not by number.")
        .threat("Checkpointing here is reentrant and saves the random state of each segment (5 kB of CPU memory), as PyTorch's default does.")
        .threat("The last segment is checkpointed like the others; leaving it out would save its recomputation.")
}

impl Policy {
    /// Blocks in a segment; none where nothing is checkpointed.
    fn segment(self, blocks: usize) -> Option<usize> {
        match self {
            Policy::Nothing => None,
            Policy::EveryBlock => Some(1),
            Policy::Sqrt => Some((blocks as f64).sqrt().ceil() as usize),
            Policy::Every4 => Some(4),
            Policy::Every16 => Some(16),
        }
    }
}

/// Training steps of a model whose blocks `blocks` runs, the forward pass under autocast to `kind`.
fn training(model: Model, samples: i64, kind: Kind, blocks: impl Fn(&Model, Tensor) -> Result<Tensor> + 'static) -> Result<Step> {
    let batch = model.batch(samples);
    let mut optimizer = Sgd::default().build(&model.store, 1e-2)?;
    let flops = if kind == Kind::Float { model.least_training_flops(samples) } else { 0.0 };
    let step = Step::new(move |probe| {
        optimizer.zero_grad();
        probe.at_rest();
        let forward = || -> Result<Tensor> {
            let x = blocks(&model, model.stem.forward(&batch.inputs, true))?;
            Ok(model.loss(&model.head.forward(&x, true), &batch.targets, Reduction::Mean))
        };
        let loss = probe.forward(|| autocast(batch.inputs.device(), kind, forward)?)?;
        loss.f_backward()?;
        optimizer.step();
        probe.compare(GRADIENT_ERROR, || Ok(model.gradients()))
    });
    Ok(step.least_flops(flops))
}

/// Runs blocks in segments of so many; nested, each block is a segment of its own inside.
fn in_segments(blocks: &[Box<dyn Block>], mut x: Tensor, length: Option<usize>, nested: bool) -> Result<Tensor> {
    let Some(length) = length else {
        return Ok(blocks.iter().fold(x, |x, block| block.forward(&x, true)));
    };
    for blocks in blocks.chunks(length) {
        x = segment(blocks, &x, nested)?;
    }
    Ok(x)
}

fn segment(blocks: &[Box<dyn Block>], x: &Tensor, nested: bool) -> Result<Tensor> {
    let own: Vec<Box<dyn Block>> = blocks.iter().map(|block| block.share()).collect();
    let mut outputs = checkpoint(&[x], move |x| {
        let mut x = x[0].shallow_clone();
        for block in &own {
            x = if nested { segment(std::slice::from_ref(block), &x, false)? } else { block.forward(&x, true) };
        }
        Ok(vec![x])
    })?;
    Ok(outputs.remove(0))
}
