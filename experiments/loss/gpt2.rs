//! What is left of it in a whole training step?

use super::*;
use tch::nn::{AdamW, OptimizerConfig};

number! { Batch "samples of 1,024 tokens" }

cell! { Whole { model: ModelName, batch: Batch, how: How } }

pub fn grid() -> Grid<Whole> {
    use How::{Chunked, Fused, Plain};
    Grid::new("a whole step", step)
        .compare::<How>()
        .full(Whole::cross("gpt2", [1, 4, 8], [Plain, Chunked, Fused]))
        .smoke(Whole::cross("gpt-2x32", 8, [Plain, Chunked, Fused]))
        // Gradients of bf16 products, as `amp` has them.
        .check(|_| equal(5e-2))
        .claim(
            // Set on 23 November 2026, before any figure.
            Claim::new(
                "loss-gpt2",
                "this lab",
                "in a step of GPT-2 124M the loss takes a third of the peak or more, and a fused head frees it",
            )
            .rule(
                ratio(PEAK)
                    .of(|c: &Whole| c.how == Fused && c.model == ModelName("gpt2"))
                    .confirm(at_most(0.67))
                    .refute(at_least(0.90)),
            )
            .changed(LEAST_WAS_SET),
        )
        .plot(bars(PEAK).caption("Peak of a training step of GPT-2 under bf16 autocast with AdamW, against the plain loss's"))
}

fn step(cell: Whole, bench: &Bench) -> Result<Step> {
    let model = Model::with_dropout(cell.model.0, bench.device, 0.0)?;
    let batch = model.batch(cell.batch.0);
    let (inputs, targets) = (batch.inputs, batch.targets.reshape([-1]));
    let mut optimizer = AdamW::default().build(&model.store, 1e-4)?;
    let how = cell.how;
    Ok(Step::new(move |probe| {
        optimizer.zero_grad();
        let forward = || -> Result<Tensor> {
            let x = model.blocks.iter().fold(model.stem.forward(&inputs, true), |x, block| block.forward(&x, true));
            let (tokens, width) = (targets.size()[0], *x.size().last().context("hidden states without a width")?);
            let chunk = how.chunk(tokens, width, model.classes());
            loss(how, model.head.as_ref(), &x.reshape([1, tokens, width]), &targets, chunk)
        };
        let loss = probe.forward(|| autocast(inputs.device(), Kind::BFloat16, forward)?)?;
        loss.f_backward()?;
        probe.compare(GRADIENT_ERROR, || Ok(model.gradients().iter().map(Tensor::copy).collect()))?;
        optimizer.step();
        probe.compare(LOSS_ERROR, || Ok(vec![loss]))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn gradients_of_the_whole_model_are_the_plain_losss() {
        for cell in Whole::cross("gpt-2x32", 8, [How::Chunked, How::Fused]) {
            check(&protocol(), cell).holds();
            broken(&protocol(), cell, |bench| step(with(cell, Batch(1)), bench)).sees("gradient: ");
        }
    }
}
