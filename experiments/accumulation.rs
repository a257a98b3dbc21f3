//! Gradient accumulation: one batch of B, or k micro-batches of B/k?
//!
//! Guides 000, 001 and 002 promise less memory for the same update. Guide 000 adds the k losses as they are, guide 001 divides each by
//! k. Which is the full batch's gradient depends on how the loss is reduced, on the last micro-batch and on targets that are ignored;
//! the recipe `weight` (sum of the losses over the number of targets that count in the whole batch) is always right.

use tch::nn::{Adam, OptimizerConfig, Sgd};
use vramlab::lab::*;
use vramlab::models::{Batch, IGNORED, Model};

name! { ModelName as "model" "model" }
number! { Samples as "batch" "samples in one forward pass at k = 1" }
levels! {
    Hold "what stays the same when k grows":
    EffectiveBatch "the effective batch: each micro-batch has batch/k samples",
    MicroBatch "the micro-batch: a step processes k times as many samples",
}
number! { K "micro-batches in a step" }
levels! { Optimizer "optimizer": Sgd "", Adam "" }
levels! { Reduce as "reduction" "how the loss is reduced over its targets": Mean "", Sum "" }
levels! { Tail "last micro-batch": Even "as large as the others", Ragged "three samples short" }
levels! {
    Targets "targets that count":
    All "every target counts",
    Ignored "half of the first micro-batch's targets are ignored (-100), as padding is",
}
levels! {
    Recipe "how the micro-batches' losses are combined":
    Full "one batch, nothing to combine",
    Divide "each loss divided by k (guide 001)",
    Add "each loss as it is (guide 000)",
    Weight "each sum of losses divided by the targets that count in the whole batch",
}

cell! { Memory { model: ModelName, batch: Samples, hold: Hold, k: K } }
cell! {
    Update { model: ModelName, optimizer: Optimizer, reduction: Reduce, tail: Tail, targets: Targets, k: K, recipe: Recipe }
}

fn main() -> ExitCode {
    vramlab::run(protocol())
}

pub fn protocol() -> Protocol {
    use Hold::*;
    let memory = Grid::new("memory and time", memory)
        .compare::<K>()
        .quick(Memory::cross("mlp-8x128", 8192, EffectiveBatch, [1, 2, 4, 8])) // activations dominate
        .quick(Memory::cross("gpt-4x128", 32, EffectiveBatch, [1, 4]))
        .quick(Memory::cross("resnet-4x16-gn", 64, EffectiveBatch, [1, 4]).passes(CHECK | COUNT))
        .quick(Memory::cross("mlp-4x2048", 64, EffectiveBatch, [1, 4]).passes(CHECK | COUNT)) // parameters dominate
        .quick(Memory::cross("mlp-8x128", 512, MicroBatch, [1, 8]))
        .full(Memory::cross("mlp-8x2048", 16384, EffectiveBatch, [1, 2, 4, 8]))
        .full(Memory::cross("gpt-12x768", 256, EffectiveBatch, [1, 2, 4, 8]))
        .full(Memory::cross("resnet-8x64-gn", 1024, EffectiveBatch, [1, 2, 4, 8]))
        .full(Memory::cross("mlp-8x8192", 64, EffectiveBatch, [1, 4]))
        .full(Memory::cross(["mlp-8x2048", "gpt-12x768"], 64, MicroBatch, [1, 8]))
        .smoke(Memory::cross("mlp-2x32", 256, EffectiveBatch, [1, 4]))
        .metrics(&[TIME.labelled("time per sample")])
        .check(|c| match c.hold {
            MicroBatch if c.k != K(1) => differs(1e-2..=1e2), // more samples, so another gradient
            EffectiveBatch | MicroBatch => equal(1e-4),
        })
        .claim(
            Claim::new("accumulate-memory", "000 001 002", "k micro-batches of B/k need much less memory than one batch of B")
                .rule(
                    ratio(PEAK)
                        .of(|c: &Memory| c.hold == EffectiveBatch && c.k == K(4))
                        .confirm(at_most(0.60))
                        .refute(at_least(0.90))
                        .scope(ACTIVATIONS, PEAK, 0.5),
                )
                .confirmed(
                    "Use it when activations fill the memory: four micro-batches bring the peak down to {effect} of the full batch's. Where \
                     parameters and optimizer state fill it, it saves next to nothing.",
                )
                .refuted("It does not help here: at k = 4 the peak is still {effect} of the full batch's.")
                .depends("It helps only where {where}; elsewhere look at what fills the memory first.")
                .inconclusive("It helps less than the guides promise: the peak at k = 4 is {effect} of the full batch's."),
        )
        .claim(
            Claim::new("accumulate-gradients", "001", "accumulation shrinks the memory for gradients")
                .rule(ratio(GRADIENTS).of(|c: &Memory| c.hold == EffectiveBatch).confirm(at_most(0.90)).refute(within(0.98..=1.02)))
                .refuted(
                    "Do not expect it to: gradients are as large as the parameters whatever the batch is ({effect}). What shrinks is the \
                     activations.",
                ),
        )
        .published(
            Published::new(
                "accumulate-speed",
                "Hugging Face, perf_train_gpu_one; ml-engineering",
                "'no effect on speed' (at a fixed effective batch) against '20 to 30 % faster' (at a fixed micro-batch)",
            )
            .rule(ratio(TIME).of(|c: &Memory| c.hold == EffectiveBatch && c.k == K(4)).reproduces(1.0))
            // 20 to 30 % less time, or 1.2 to 1.3 times the samples in a second: the source does not say which.
            .rule(ratio(TIME).of(|c: &Memory| c.hold == MicroBatch && c.k == K(8)).holds(within(0.70..=0.83)))
            .setup(
                "Both are time per sample here, of one step on one device: what several machines would save in communication is no part of \
                 it.",
            ),
        )
        .plot(
            bars(PEAK)
                .caption("Peak memory of a step against the full batch's (k = 1), at the same effective batch")
                .of(|c: &Memory| c.hold == EffectiveBatch)
                .by::<ModelName>(),
        )
        .plot(bars(TIME).caption("Time per sample against k = 1").by::<Hold>().by::<ModelName>());
    let update = Grid::new("the same update?", update)
        .compare::<Recipe>()
        .quick_and_full(Update::cross("mlp-4x32", Optimizer::Sgd, Reduce::ALL, Tail::ALL, Targets::ALL, PARTS, Recipe::ALL))
        .quick_and_full(Update::cross("mlp-4x32", Optimizer::Adam, Reduce::Mean, Tail::Even, Targets::All, PARTS, Recipe::ALL))
        .quick_and_full(Update::cross(
            ["resnet-2x8-gn", BATCH_NORM, "gpt-2x64"],
            Optimizer::Sgd,
            Reduce::Mean,
            Tail::Even,
            Targets::All,
            PARTS,
            [Recipe::Full, Recipe::Divide, Recipe::Add],
        ))
        .smoke(Update::cross("mlp-2x32", Optimizer::Sgd, Reduce::Mean, Tail::Ragged, Targets::All, PARTS, Recipe::ALL))
        .passes(CHECK)
        .check(|c| match (c.recipe, c.reduction, c.tail, c.targets) {
            // Each micro-batch is normalised by itself.
            (Recipe::Add, ..) if c.model == ModelName(BATCH_NORM) => differs(1.0..=10.0),
            (Recipe::Divide, ..) if c.model == ModelName(BATCH_NORM) => differs(1e-3..=2.0),
            (Recipe::Full | Recipe::Weight, ..) | (Recipe::Add, Reduce::Sum, ..) => equal(1e-4),
            (Recipe::Divide, Reduce::Sum, ..) => scaled(1.0 / PARTS as f64, 1e-4),
            (Recipe::Divide, Reduce::Mean, Tail::Even, Targets::All) => equal(1e-4),
            (Recipe::Add, Reduce::Mean, Tail::Even, Targets::All) => scaled(PARTS as f64, 1e-4),
            (Recipe::Divide, ..) => differs(1e-3..=1.0),
            (Recipe::Add, ..) => differs(1.0..=10.0),
        })
        .claim(
            Claim::new(
                "accumulate-normalise",
                "000 001",
                "adding k losses as they are (000), or each divided by k (001), gives the full batch's update",
            )
            .rule(value(GRADIENT_ERROR).of(|c: &Update| matches!(c.recipe, Recipe::Divide | Recipe::Add)).holds(at_most(1e-4)))
            .confirmed("Both recipes give the full batch's gradient.")
            .refuted(
                "Neither recipe gives the full batch's gradient; divide each sum of losses by the number of targets that count in the whole \
                 batch.",
            )
            .depends(
                "Know your loss. The recipes are right where {where}. Dividing the sum of losses by the number of targets that count in the \
                 whole batch is right everywhere but under batch normalisation, which sees other batches whatever you do. Adam hides a \
                 wrong factor (its update error stays small), SGD does not.",
            )
            .inconclusive("The gradients' errors ({effect}) lie at the tolerance."),
        )
        .plot(
            dots(GRADIENT_ERROR, 1e-4)
                .named("equivalence")
                .caption("Relative error of the gradient against the full batch's, by recipe"),
        );
    Protocol::new("accumulation", "Gradient accumulation")
        .question(
            "Do k micro-batches of B/k need much less memory than one batch of B, do they give the same update, and what do they cost?",
        )
        .hypothesis(
            "Activations shrink by k and nothing else does: the peak falls where activations dominate, gradients stay as large as the \
             parameters, and small micro-batches use the device worse.",
        )
        .grid(memory)
        .grid(update)
        .threat("Inputs are random and on the device already: loading is another experiment's.")
        .threat("Time per sample at small micro-batches shows how badly this device is filled, and travels to no other.")
        .threat("Attention is libtorch's fused kernel, which keeps less than explicit attention; GPT's activations are that much smaller.")
}

/// Micro-batches where updates are compared.
const PARTS: i64 = 4;
const BATCH_NORM: &str = "resnet-2x8-bn";

fn memory(cell: Memory, bench: &Bench) -> Result<Step> {
    let samples = match cell.hold {
        Hold::EffectiveBatch => cell.batch.0,
        Hold::MicroBatch => cell.batch.0 * cell.k.0,
    };
    let model = Model::named(cell.model.0, bench.device)?;
    let batch = model.batch(samples);
    accumulate(model, Optimizer::Adam, batch, samples / cell.k.0, (Reduction::Mean, cell.k.0 as f64), false)
}

fn update(cell: Update, bench: &Bench) -> Result<Step> {
    const SAMPLES: i64 = 32;
    let model = Model::named(cell.model.0, bench.device)?;
    let mut batch = model.batch(SAMPLES);
    match cell.tail {
        Tail::Even => {}
        Tail::Ragged => batch = batch.narrow(0, SAMPLES - 3),
    }
    match cell.targets {
        Targets::All => {}
        Targets::Ignored => drop(batch.targets.narrow(0, 0, SAMPLES / 8).fill_(IGNORED)),
    }
    let count = || batch.targets.not_equal(IGNORED).sum(Kind::Int64).int64_value(&[]) as f64;
    let loss = match (cell.recipe, cell.reduction) {
        (Recipe::Weight, Reduce::Mean) => (Reduction::Sum, count()),
        (Recipe::Full | Recipe::Add, Reduce::Mean) => (Reduction::Mean, 1.0),
        (Recipe::Full | Recipe::Add | Recipe::Weight, Reduce::Sum) => (Reduction::Sum, 1.0),
        (Recipe::Divide, Reduce::Mean) => (Reduction::Mean, cell.k.0 as f64),
        (Recipe::Divide, Reduce::Sum) => (Reduction::Sum, cell.k.0 as f64),
    };
    let micro = if cell.recipe == Recipe::Full { SAMPLES } else { SAMPLES / cell.k.0 };
    accumulate(model, cell.optimizer, batch, micro, loss, true)
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

#[cfg(test)]
mod tests {
    use super::*;
    use vramlab::lab::testing::*;

    const SMALL: Memory = Memory { model: ModelName("mlp-2x32"), batch: Samples(256), hold: Hold::EffectiveBatch, k: K(4) };

    #[test]
    fn the_check_sees_a_wrong_recipe() {
        for cell in Update::cross("mlp-4x32", Optimizer::Sgd, Reduce::ALL, Tail::ALL, Targets::ALL, PARTS, Recipe::ALL) {
            check(&protocol(), cell).holds();
        }
        let cells = Update::cross("mlp-4x32", Optimizer::Sgd, Reduce::Mean, Tail::Even, Targets::All, PARTS, Recipe::Divide);
        broken(&protocol(), cells[0], |bench| update(with(cells[0], Recipe::Add), bench)).sees("gradient: expected equal");
    }

    #[test]
    fn the_check_sees_a_lost_micro_batch() {
        check(&protocol(), SMALL).holds();
        broken(&protocol(), SMALL, |bench| memory(with(SMALL, Samples(192)), bench)).sees("gradient: expected equal");
    }

    #[test]
    fn gradients_are_as_large_as_the_parameters() {
        let parameters = f64::from((2 * 32 * 32 + 2 * 32) + (32 * 10 + 10));
        for k in [1, 4] {
            assert_eq!(count(&protocol(), with(SMALL, K(k))).figure(GRADIENTS), 4.0 * parameters, "k = {k}");
        }
    }
}
