//! How much faster does it compute, and where?

use super::*;
use models::Model;
use tch::nn::{AdamW, OptimizerConfig, Sgd, VarStore, init};

levels! {
    Bound "what limits the step":
    Launch "many small kernels",
    Compute "matrix products",
    Recipe "PyTorch's AMP recipe: 3 linear layers of 4096, batch 512, SGD",
}

cell! { Timed { model: ModelName, batch: Batch, bound: Bound, precision: Computed } }

pub fn grid() -> Grid<Timed> {
    use {Bound::*, Computed::*};
    let of = |models: &[&'static str], batch: i64, bound| Timed::cross(models, batch, bound, Computed::ALL).on(&[Platform::Gpu]);
    Grid::new("time", step)
        .compare::<Computed>()
        .quick(Timed::cross("mlp-8x64", 16, Launch, [Fp32, AmpBf16]))
        .quick(Timed::cross("gpt-4x256", 4, Compute, [Fp32, AmpBf16]).on(&[Platform::Cpu]))
        .quick(Timed::cross("gpt2-medium", 8, Compute, [Fp32, AmpBf16]).on(&[Platform::Gpu]))
        .full(of(&["mlp-8x128", "gpt-4x128"], 4, Launch))
        .full(of(&["mlp-8x4096"], 8192, Compute))
        .full(of(&["gpt2-medium"], 16, Compute))
        .full(of(&["resnet50"], 128, Compute))
        .full(of(&["recipe"], 512, Recipe))
        .passes(CHECK | ROUNDS)
        .check(|_| rounded())
        .claim(
            Claim::new("amp-faster", "3", "tensor cores make it much faster")
                .on(&[Platform::Gpu])
                // At least 1.50x as fast.
                .rule(ratio(TIME).of(|c: &Timed| c.bound == Compute && c.precision.is_half()).holds(at_most(1.0 / 1.5))),
        )
        .claim(
            Claim::published(
                "amp-recipe",
                "PyTorch AMP recipe",
                "3 linear layers of 4096, batch 512, SGD: 2 to 3x on tensor cores",
            )
            .rule(ratio(TIME).at(Recipe).at(AmpFp16).holds(within(1.0 / 3.0..=1.0 / 2.0)))
            .setup("fp16 with a GradScaler, as in the recipe; libtorch's SGD steps through the parameters one by one."),
        )
        .no_plots()
}

fn step(cell: Timed, bench: &Bench) -> Result<Step> {
    match cell.bound {
        Bound::Launch | Bound::Compute => training(cell, bench),
        Bound::Recipe => recipe(cell.batch.0, cell.precision.set()?, bench),
    }
}

/// fp16 needs one. PyTorch's default scale of 65536 overflows in the first steps of many models, which are then left out.
fn scaler(precision: Kind, scale: f64) -> Result<GradScaler> {
    if precision == Kind::Half {
        GradScaler::new(ScalerState { scale, ..ScalerState::default() })
    } else {
        Ok(GradScaler::disabled())
    }
}

/// Steps of a model on made-up data.
fn training(cell: Timed, bench: &Bench) -> Result<Step> {
    let precision = cell.precision.set()?;
    let model = Model::without_dropout(cell.model.0, bench.device)?;
    let batch = model.batch(cell.batch.0);
    let flops = if cell.precision == Computed::Fp32 { model.least_training_flops(cell.batch.0) } else { 0.0 };
    let mut optimizer = AdamW::default().build(&model.store, 1e-5)?;
    let mut scaler = scaler(precision, 1024.0)?;
    let step = Step::new(move |probe| {
        optimizer.zero_grad();
        // A sample's gradient, where it is compared, must depend on no other sample.
        let loss = autocast(batch.inputs.device(), precision, || {
            model.loss(&model.forward(&batch.inputs, !probe.is_comparing()), &batch.targets, Reduction::Mean)
        })?;
        scaler.scale(&loss)?.f_backward()?;
        drop(loss);
        scaler.step(&mut optimizer)?;
        scaler.update()?;
        probe.compare(GRADIENT_ERROR, || Ok(model.gradients()))
    });
    Ok(step.least_flops(flops))
}

/// PyTorch's AMP recipe: three linear layers of 4096 with ReLU between them, mean squared error, SGD.
fn recipe(samples: i64, precision: Kind, bench: &Bench) -> Result<Step> {
    const WIDTH: i64 = 4096;
    let store = VarStore::new(bench.device);
    let layer = |i: i64| {
        let path = store.root() / i;
        (path.var("weight", &[WIDTH, WIDTH], init::DEFAULT_KAIMING_UNIFORM), path.zeros("bias", &[WIDTH]))
    };
    let layers = [layer(0), layer(1), layer(2)];
    let mut scaler = scaler(precision, ScalerState::default().scale)?;
    let (inputs, targets) = (bench.randn(&[samples, WIDTH]), bench.randn(&[samples, WIDTH]));
    let mut optimizer = Sgd::default().build(&store, 1e-3)?;
    Ok(Step::new(move |probe| {
        let [first, second, last] = &layers;
        let linear = |x: Tensor, (weight, bias): &(Tensor, Tensor)| x.linear(weight, Some(bias));
        let loss = autocast(inputs.device(), precision, || {
            let hidden = linear(linear(inputs.shallow_clone(), first).relu(), second).relu();
            linear(hidden, last).mse_loss(&targets, Reduction::Mean)
        })?;
        scaler.scale(&loss)?.f_backward()?;
        scaler.step(&mut optimizer)?;
        scaler.update()?;
        probe.compare(GRADIENT_ERROR, || Ok(layers.iter().flat_map(|(weight, bias)| [weight.grad(), bias.grad()]).collect()))
    }))
}
