//! Gradient accumulation: one batch of B, or k micro-batches of B/k?
//!
//! Guides 1, 2 and 3 promise less memory for the same update. Guide 1 adds the k losses as they are, guide 2 divides each by
//! k. Which is the full batch's gradient depends on how the loss is reduced, on the last micro-batch and on targets that are ignored;
//! the recipe `weight` (sum of the losses over the number of targets that count in the whole batch) is always right.

mod memory;
mod update;

use harness::lab::*;
use models::{Batch, Model};
use tch::nn::{Adam, OptimizerConfig, Sgd};

number! { K "micro-batches in a step" }
levels! { Optimizer "optimizer": Sgd "", Adam "" }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("accumulation", "Gradient accumulation")
        .question(
            "Do k micro-batches of B/k need much less memory than one batch of B, do they give the same update, and what do they cost?",
        )
        .hypothesis(
            "Activations shrink by k and nothing else does: the peak falls where activations dominate, gradients stay as large as the \
             parameters, and small micro-batches use the device worse.",
        )
        .grid(memory::grid())
        .grid(update::grid())
        .shows(Shown::new("Accumulate 4 micro-batches").at(memory::Hold::EffectiveBatch).at(K(4)).memory(PEAK).time(TIME))
        .threat("Inputs are random and on the device already: loading is another experiment's.")
        .threat("Time per sample at small micro-batches shows how badly this device is filled, and travels to no other.")
        .threat("Attention is libtorch's fused kernel, which keeps less than explicit attention; GPT's activations are that much smaller.")
}

/// Steps over micro-batches of `micro` samples, the last of which may have fewer; each loss is reduced and divided as `loss` says.
fn accumulate(
    model: Model,
    optimizer: Optimizer,
    batch: Batch,
    micro: i64,
    loss: (Reduction, f64),
    compares_update: bool,
) -> Result<Step> {
    let mut optimizer = match optimizer {
        Optimizer::Sgd => Sgd::default().build(&model.store, 1e-2)?,
        Optimizer::Adam => Adam::default().build(&model.store, 1e-3)?,
    };
    let before: Vec<Tensor> = model.parameters().iter().filter(|_| compares_update).map(Tensor::copy).collect();
    let (samples, (reduction, divisor)) = (batch.targets.size()[0], loss);
    let flops = model.least_training_flops(samples);
    let step = Step::new(move |probe| {
        optimizer.zero_grad();
        let rest = probe.at_rest();
        for first in (0..samples).step_by(micro as usize) {
            let part = batch.narrow(first, micro.min(samples - first));
            let loss = probe.forward(|| Ok(model.loss(&model.forward(&part.inputs, true), &part.targets, reduction) / divisor))?;
            loss.f_backward()?;
        }
        probe.emit(GRADIENTS, probe.live() - rest);
        optimizer.step();
        probe.compare(GRADIENT_ERROR, || Ok(model.gradients()))?;
        if !compares_update {
            return Ok(());
        }
        let moved = || model.parameters().iter().zip(&before).map(|(now, before)| now.detach() - before).collect();
        probe.compare(UPDATE_ERROR, || Ok(moved()))
    });
    Ok(step.items(samples).least_flops(flops))
}
