//! Are the gradients the same, and what does it cost?

use super::*;

cell! { Price { model: ModelName, batch: Batch, cap: Cap, ddp: Way } }

pub fn grid() -> Grid<Price> {
    Grid::new("the same gradients, and the price", |cell, bench| step(cell, bench, 1))
        .compare::<Way>()
        .quick(Price::cross("gpt-4x128", 4, 25, Way::ALL))
        .quick(Price::cross("mlp-8x512", 4, [1, 100], Way::ALL).passes(CHECK))
        .full(Price::cross("gpt2", 4, [25, 1, 100], Way::ALL))
        .full(Price::cross(["resnet50", "mlp-8x4096"], 32, 25, Way::ALL))
        .smoke(Price::cross("mlp-4x64", 8, 25, [Way::Nothing, Way::Copies]))
        .passes(CHECK | ROUNDS)
        // Alone, every gradient is multiplied by 1 and copied. cuBLAS and cuDNN may still choose other kernels in another process.
        .check(|_| equal(1e-6))
        .no_plots()
}

/// A training step, with DDP told that so many processes train together. Only with one are gradients what they are without DDP.
fn step(cell: Price, bench: &Bench, processes: usize) -> Result<Step> {
    let run =
        DdpRun { model: cell.model, batch: cell.batch, cap: cell.cap, zero_grad: ZeroGrad::Nothing, processes, bench: *bench };
    let mut training = run.start(cell.ddp, Update::AdamW)?;
    // Buckets have been built anew by the third iteration.
    training.iterate(None)?;
    training.iterate(None)?;
    let flops = training.model.least_training_flops(cell.batch.0);
    let step = Step::new(move |probe| {
        training.iterate(None)?;
        probe.compare(GRADIENT_ERROR, || Ok(training.model.gradients()))
    });
    Ok(step.least_flops(flops))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn the_check_sees_gradients_that_are_shared_out_to_nobody() {
        for cell in Price::cross("mlp-4x64", 4, [1, 100], [Way::Copies, Way::Views]) {
            check(&protocol(), cell).holds();
        }
        // Another rank is divided for, and sends nothing.
        let cell = Price { model: ModelName("mlp-4x64"), batch: Batch(4), cap: Cap(1), ddp: Way::Views };
        broken(&protocol(), cell, |bench| step(cell, bench, 2)).sees("relative error of 5.000e-1");
    }
}
