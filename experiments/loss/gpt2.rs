//! What is left of it in a whole training step?

use super::*;

number! { Batch "samples of 1,024 tokens" }

cell! { Whole { model: ModelName, batch: Batch, how: How, by: By } }

pub fn grid() -> Grid<Whole> {
    use How::{Chunked, Fused, Plain};
    Grid::new("a whole step", in_python)
        .compare::<How>()
        .full(Whole::cross("gpt2", [1, 4, 8], [Plain, Chunked, Fused], By::Pytorch))
        .smoke(Whole::cross("gpt-2x32", 8, [Plain, Chunked, Fused], By::Pytorch))
        .on(EVERYWHERE)
        // Gradients of bf16 products, as `amp` has them.
        .check(|_| equal(5e-2))
        .claim(
            // Set on 23 November 2026, before any figure.
            Claim::ours(
                "loss-gpt2",
                "in a step of GPT-2 124M the loss takes a third of the peak or more, and a fused head frees it",
            )
            .rule(ratio(PEAK).at(Fused).at(ModelName("gpt2")).confirm(at_most(0.67)).refute(at_least(0.90)))
            .changed(LEAST_WAS_SET),
        )
        .plot(bars(PEAK).caption("Peak of a training step of GPT-2 under bf16 autocast with AdamW, against the plain loss's"))
}
