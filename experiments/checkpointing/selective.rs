//! Which operators' results are worth keeping in a checkpoint?
//!
//! Between keeping everything and keeping a block's input alone lie policies by operator: keep attention's result, or every second matrix product
//! as torchtitan does, or all of them. Bytes and FLOPs of each are counted; no point is better than another in both, unless one is useless.

use super::*;

const FLOPS: Metric = Metric::counted("flops", "FLOPs of a step's products", "1");

levels! {
    Keeps "what a block keeps for the backward pass":
    Everything "no checkpoint" => "no checkpoint",
    Products "its input, the results of matrix products, convolutions and attention" => "keeping products",
    EverySecondProduct "its input, every second of these products' results, and attention's: torchtitan's policy" => "keeping every second product",
    Attention "its input and attention's result" => "keeping attention",
    Inputs "its input alone" => "checkpointing every block",
}

cell! { Selective { model: ModelName, batch: Batch, keeps: Keeps, by: By } }

pub fn memory() -> Grid<Selective> {
    use Keeps::*;
    // Set on 23 November 2026, before any figure.
    Grid::new("full-size models", in_python)
        .compare::<Keeps>()
        .quick_and_full(Selective::cross("gpt2", 8, Keeps::ALL, By::Pytorch))
        .quick_and_full(Selective::cross("llama-1b", 3, Keeps::ALL, By::Pytorch))
        .quick_and_full(Selective::cross("vit-l16", 32, Keeps::ALL, By::Pytorch))
        .quick_and_full(Selective::cross("resnet50", 64, [Everything, Products, Inputs], By::Pytorch))
        .quick_and_full(Selective::cross("sd-unet", 6, [Everything, Products, Inputs], By::Pytorch))
        .passes(COUNT)
        .on(CUDA)
        .judged_on(BY_PYTHON)
        .metrics(&[FLOPS])
        .claim(
            Claim::ours("selective-every-block", "a checkpoint of every block costs a quarter to two fifths more FLOPs")
                .rule(ratio(FLOPS).at(Inputs).confirm(within(1.25..=1.4)).refute(outside(1.2..=1.45))),
        )
        .claim(
            Claim::new(
                "selective-second-product",
                "torchtitan",
                "keeping every second product halves what a checkpoint costs: at most a fifth more FLOPs",
            )
            .rule(ratio(FLOPS).at(EverySecondProduct).confirm(at_most(1.2)).refute(at_least(1.25)))
            .rule(ratio(ACTIVATIONS).at(EverySecondProduct).confirm(at_most(0.6)).refute(at_least(0.8))),
        )
        .claim(
            Claim::ours(
                "selective-products",
                "with all products kept no FLOPs are added, and a quarter of the activations or more is saved",
            )
            .rule(ratio(FLOPS).at(Products).confirm(at_most(1.02)).refute(at_least(1.05)))
            .rule(ratio(ACTIVATIONS).at(Products).confirm(at_most(0.75)).refute(at_least(0.9))),
        )
        .plot(
            bars(PEAK)
                .named("peak")
                .caption("Peak memory of a training step by what checkpoints keep, against no checkpoint")
                .by::<ModelName>(),
        )
}

pub fn same_gradients() -> Grid<Selective> {
    Grid::new("the same gradients", in_python)
        .compare::<Keeps>()
        .always(Selective::cross("small-gpt", 2, Keeps::ALL, By::Pytorch))
        .passes(CHECK)
        .on(&[Platform::Cpu, Platform::Gpu])
        .check(|_| equal(0.0))
        .claim(
            Claim::ours("selective-same", "checkpoints with a policy leave the gradients as they are, to the bit")
                .on(&[Platform::Gpu, Platform::Python])
                .rule(value(GRADIENT_ERROR).of(|c: &Selective| c.keeps != Keeps::Everything).holds(at_most(0.0))),
        )
        .no_plots()
}
