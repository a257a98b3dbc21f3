//! How much faster does it compute, and where?

use super::*;
use models::Model;
use tch::nn::{AdamW, OptimizerConfig};

levels! {
    Bound "what limits the step":
    Launch "many small kernels",
    Compute "matrix products",
    Recipe "PyTorch's AMP recipe: 3 linear layers of 4096, batch 512, SGD",
}

cell! { Timed { model: ModelName, batch: Batch, bound: Bound, precision: Computed } }
cell! { AsRecipe { model: ModelName, batch: Batch, bound: Bound, precision: Computed, by: By } }

pub fn grid() -> Grid<Timed> {
    use {Bound::*, Computed::*};
    let of =
        |models: &[&'static str], batch: i64, bound| Timed::cross(models, batch, bound, [Fp32, Tf32, AmpBf16]).on(&[Platform::Gpu]);
    Grid::new("time", step)
        .compare::<Computed>()
        .quick(Timed::cross("mlp-8x64", 16, Launch, [Fp32, AmpBf16]))
        .quick(Timed::cross("gpt-4x256", 4, Compute, [Fp32, AmpBf16]).on(&[Platform::Cpu]))
        .quick(Timed::cross("gpt2-medium", 8, Compute, [Fp32, AmpBf16]).on(&[Platform::Gpu]))
        .full(of(&["mlp-8x128", "gpt-4x128"], 4, Launch))
        .full(of(&["mlp-8x4096"], 8192, Compute))
        .full(of(&["gpt2-medium"], 16, Compute))
        .full(of(&["resnet50"], 128, Compute))
        .passes(CHECK | ROUNDS)
        .check(|_| rounded())
        .claim(
            Claim::new("amp-faster", "3", "tensor cores make it much faster")
                .on(&[Platform::Gpu])
                // At least 1.50x as fast.
                .rule(ratio(TIME).of(|c: &Timed| c.bound == Compute && c.precision.is_half()).holds(at_most(1.0 / 1.5)))
                .rule(recorded("autocast-bf16", RecordedFigure::Time).holds(at_most(1.0 / 1.5)))
                .changed(
                    "29 November 2026: rows of records/gpus count, too. The one model of this grid that an H200 timed had confirmed it, and a \
                     convolutional network on the same card is 8 % faster.",
                )
                .before(ratio(TIME).of(|c: &Timed| c.bound == Compute && c.precision.is_half()).holds(at_most(1.0 / 1.5))),
        )
        .no_plots()
}

/// By PyTorch, whose recipe and GradScaler it is.
pub fn recipe() -> Grid<AsRecipe> {
    use {Bound::Recipe, Computed::*};
    Grid::new("PyTorch's recipe", in_python)
        .compare::<Computed>()
        .full(AsRecipe::cross("recipe", 512, Recipe, Computed::ALL, By::Pytorch).on(&[Platform::Gpu]))
        .passes(CHECK | ROUNDS)
        .on(&[Platform::Gpu])
        .check(|_| rounded())
        .claim(
            Claim::published(
                "amp-recipe",
                "PyTorch AMP recipe",
                "3 linear layers of 4096, batch 512, SGD: 2 to 3x on tensor cores",
            )
            .rule(ratio(TIME).at(Recipe).at(AmpFp16).holds(within(1.0 / 3.0..=1.0 / 2.0)))
            .setup("fp16 with a GradScaler, as in the recipe."),
        )
        .no_plots()
}

/// Steps of a model on made-up data.
fn step(cell: Timed, bench: &Bench) -> Result<Step> {
    let precision = cell.precision.set()?;
    let model = Model::without_dropout(cell.model.0, bench.device)?;
    let batch = model.batch(cell.batch.0);
    let flops = if cell.precision == Computed::Fp32 { model.least_training_flops(cell.batch.0) } else { 0.0 };
    let mut optimizer = AdamW::default().build(&model.store, 1e-5)?;
    let step = Step::new(move |probe| {
        optimizer.zero_grad();
        // A sample's gradient, where it is compared, must depend on no other sample.
        let loss = autocast(batch.inputs.device(), precision, || {
            model.loss(&model.forward(&batch.inputs, !probe.is_comparing()), &batch.targets, Reduction::Mean)
        })?;
        loss.f_backward()?;
        drop(loss);
        optimizer.step();
        probe.compare(GRADIENT_ERROR, || Ok(model.gradients()))
    });
    Ok(step.least_flops(flops))
}
