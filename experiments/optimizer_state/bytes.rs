//! What does it keep, and what does its step need?

use super::step::{size, step_of};
use super::*;
use models::Model;
use torch::optimizers::named_parameters;

cell! { Bytes { model: ModelName, optimizer: Method, implementation: How } }

pub fn grid() -> Grid<Bytes> {
    use {How::*, Method::*};
    const LARGE: [&str; 3] = ["resnet50", "gpt2", "vit-l16"];
    let vit = |c: &Bytes| c.model == ModelName("vit-l16") && c.optimizer == Adam;
    let adam = |how: How| move |c: &Bytes| matches!(c.optimizer, Adam | Adamw) && c.implementation == how;
    Grid::new("bytes", step)
        .compare::<How>()
        .quick(Bytes::cross("gpt-4x256", [Sgd, Momentum, Adam, Adamw], [Loop, Foreach, Fused]))
        .quick(Bytes::cross("gpt-4x256", Rmsprop, [Loop, Foreach]))
        .full(Bytes::cross(LARGE, [Sgd, Momentum, Adam, Adamw], [Loop, Foreach, Fused]))
        .full(Bytes::cross(LARGE, Rmsprop, [Loop, Foreach]))
        .smoke(Bytes::cross("mlp-2x32", Adam, [Loop, Foreach, Fused]))
        .passes(CHECK | COUNT)
        .metrics(&[STATE, STATE_RATIO, STEP_PEAK, TEMPORARY_RATIO, CLAIMED, TRAFFIC])
        .check(|c| relation(c.implementation))
        .claim(
            Claim::new("step-optimizer", "4", "an optimizer's state: Adam keeps twice the model, RMSProp once")
                .rule(agreement(STATE, CLAIMED, 0.95..=1.05, 1.0).of(|c: &Bytes| matches!(c.optimizer, Adam | Rmsprop))),
        )
        .claim(
            Claim::new(
                "step-temporaries",
                "this lab",
                "Adam's step needs temporaries as large as the model with foreach, PyTorch's default on a GPU, and next to none when fused",
            )
            .rule(value(TEMPORARY_RATIO).of(adam(Foreach)).confirm(at_least(0.90)).refute(at_most(0.50)))
            .rule(value(TEMPORARY_RATIO).of(adam(Fused)).confirm(at_most(0.05)).refute(at_least(0.50)))
            .changed("22 November 2026: made a claim when the figures had been seen; it was a picture before."),
        )
        .published(
            Published::new(
                "vit-l16-temporaries",
                "PyTorch tutorial, optimizer step fused into the backward pass",
                "ViT-L/16 with Adam: parameters 1.2 GB, state 2.4 GB, and in the step 1.2 GB of temporaries, for foreach only",
            )
            .on(&[Platform::Gpu, Platform::Dry])
            .rule(value(STATE).of(vit).reproduces(2.4e9))
            .rule(value(STEP_PEAK).of(move |c: &Bytes| vit(c) && c.implementation == Foreach).reproduces(1.2e9))
            // Next to nothing: a tenth of what foreach needs.
            .rule(value(STEP_PEAK).of(move |c: &Bytes| vit(c) && c.implementation != Foreach).holds(at_most(0.12e9)))
            .setup("The same model in fp32; here only the optimizer's step runs, with gradients in place."),
        )
        .no_plots()
}

fn step(cell: Bytes, bench: &Bench) -> Result<Step> {
    let model = Model::named(cell.model.0, bench.device)?;
    let bytes = model.store.variables().values().map(size).sum();
    step_of(named_parameters(&model.store), bytes, cell.optimizer, cell.implementation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn the_check_sees_another_algorithm() {
        let cell = |optimizer, implementation| Bytes { model: ModelName("mlp-2x32"), optimizer, implementation };
        for (method, how) in [
            (Method::Sgd, How::Fused),
            (Method::Momentum, How::Foreach),
            (Method::Rmsprop, How::Foreach),
            (Method::Adam, How::Fused),
            (Method::Adamw, How::Fused),
        ] {
            check(&protocol(), cell(method, how)).holds();
        }
        // Adam forgets AdamW's weight decay.
        let adamw = cell(Method::Adamw, How::Fused);
        broken(&protocol(), adamw, |bench| step(with(adamw, Method::Adam), bench)).sees("update: expected equal");
    }

    #[test]
    fn state_is_what_the_algorithm_says() {
        for (method, numbers) in [(Method::Sgd, 0.0), (Method::Momentum, 1.0), (Method::Rmsprop, 1.0), (Method::Adam, 2.0)] {
            let cell = Bytes { model: ModelName("mlp-2x32"), optimizer: method, implementation: How::Foreach };
            let ratio = count(&protocol(), cell).figure(STATE_RATIO);
            // And a counter of 4 bytes for some of the tensors.
            assert!((numbers..numbers + 0.01).contains(&ratio), "{method:?}: {ratio}");
        }
    }
}
