//! What lives after each phase, against what the guide says?

use super::*;
use curves::{BOUNDARY, LAYERS, PHASES};
use figures::{ALL, BACKWARDED, FORWARDED, LOADED, NEXT_PEAK, PEAKED};
use models::training::{Configuration, Trainer};
use torch::{Mark, Recorder};

/// Iterations that a cell runs. The second is the first that has optimizer state from its beginning; the third shows that it goes on so.
pub const ITERATIONS: u32 = 3;
const QUICK_GPT: &str = "gpt-4x128";
const FULL_GPT: &str = "gpt2";

pub fn grid() -> Grid<Phases> {
    use OptimizerKind::{Adam, AdamW, Momentum, RmsProp, Sgd};
    let of = |model, batch: i64, optimizers: &[OptimizerKind]| Phases::cross(model, batch, optimizers, ZeroGrad::ALL);
    let (others, all) = ([Sgd, Momentum, RmsProp, Adam], [Sgd, Momentum, RmsProp, Adam, AdamW]);
    let drawing = || area(NEXT_PEAK, &LAYERS.map(|(layer, _)| layer), BOUNDARY, &PHASES.map(|(_, name, _)| name));
    Grid::new("by phase", step)
        .compare::<ZeroGrad>()
        .quick(of("mlp-8x128", 1024, &[AdamW]))
        .quick(of("mlp-8x128", 1024, &others).passes(COUNT))
        .quick(of("resnet-4x16-bn", 8, &[AdamW]))
        .quick(of("resnet-4x16-bn", 8, &others).passes(COUNT))
        .quick(of(QUICK_GPT, 4, &[AdamW]))
        .quick(of(QUICK_GPT, 4, &others).passes(COUNT))
        .full(of("mlp-8x1024", 8192, &all))
        .full(of("resnet50", 32, &all))
        .full(of(FULL_GPT, 4, &all))
        .smoke(of("mlp-2x32", 64, &[AdamW]))
        .passes(CHECK | COUNT)
        .metrics(ALL)
        // The same kernels on the same numbers: what becomes of old gradients changes no result.
        .check(|_| equal(1e-6))
        .claim(
            Claim::new("step-load", "4", "after load there is the model")
                .rule(value(LOADED).holds(within(0.99..=1.01))),
        )
        .claim(
            Claim::new("step-forward", "4", "after forward there are the model and the activations")
                .rule(value(FORWARDED).holds(within(0.95..=1.05))),
        )
        .claim(
            Claim::new("step-backward", "4", "after backward there are the model and the gradients, twice the model")
                .rule(value(BACKWARDED).holds(within(1.95..=2.05))),
        )
        .claim(
            Claim::new("step-peak", "4", "from the second iteration on, the peak is model + activations + gradients + moments")
                .rule(value(PEAKED).holds(within(0.95..=1.05))),
        )
        .plot(
            drawing()
                .named("phases")
                .on_front()
                .caption(
                    "Live bytes through the second iteration with AdamW, by what they are for; gradients dropped (none) or filled with \
                     zeros (zero)",
                )
                .of(by_phase)
                .by::<ModelName>()
                .by::<ZeroGrad>(),
        )
}

/// What the picture of phases shows.
fn by_phase(cell: &Phases) -> bool {
    cell.optimizer == OptimizerKind::AdamW
}

/// What the picture of optimizers shows.
fn by_optimizer(cell: &Phases) -> bool {
    [ModelName(QUICK_GPT), ModelName(FULL_GPT)].contains(&cell.model) && cell.zero_grad == ZeroGrad::Dropped
}

fn step(cell: Phases, bench: &Bench) -> Result<Step> {
    let configuration = Configuration { optimizer: cell.optimizer, ..Configuration::new(cell.model.0, cell.batch.0) };
    configuration.validate()?;
    let bench = *bench;
    Ok(Step::new(move |probe| {
        let Some(meter) = probe.meter() else {
            let trainer = train(&configuration, cell.zero_grad, &bench, None)?;
            return probe.compare(PARAMETER_ERROR, || Ok(trainer.model().parameters().iter().map(Tensor::detach).collect()));
        };
        let base = meter.memory()?.requested;
        let mut recorder = Recorder::begin(meter)?;
        let trainer = train(&configuration, cell.zero_grad, &bench, Some(&mut recorder))?;
        let timeline = recorder.end();
        let (counted, metered) = (timeline.peak().map_or(0, |peak| peak.live.total()), meter.memory()?.requested_peak - base);
        ensure!(counted == metered, "the allocations add up to a peak of {counted} bytes, and the meter says {metered}");
        figures::emit(probe, &timeline, &trainer)?;
        curves::emit_saved(probe, &timeline);
        if by_phase(&cell) || by_optimizer(&cell) { curves::emit(probe, &timeline) } else { Ok(()) }
    }))
}

/// Trains from the load on; each time with the same parameters and data.
fn train(
    configuration: &Configuration,
    zero_grad: ZeroGrad,
    bench: &Bench,
    mut recorder: Option<&mut Recorder>,
) -> Result<Trainer> {
    let mut ended = |mark: Mark, trainer: &Trainer| match recorder.as_deref_mut() {
        Some(recorder) => trainer.record(mark, recorder),
        None => Ok(()),
    };
    tch::manual_seed(bench.seed);
    let mut trainer = Trainer::load(configuration, bench.device)?;
    match zero_grad {
        ZeroGrad::Dropped => {}
        ZeroGrad::Zeroed => trainer.keep_gradients(),
    }
    ended(Mark::LOADED, &trainer)?;
    (0..ITERATIONS).try_for_each(|_| trainer.iterate(&mut ended))?;
    Ok(trainer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;
    use models::Model;
    use torch::optimizers::{Optimizer, ZeroGrad as Zeroing};

    /// Trains as the experiment does, and leaves gradients as they are unless it is told not to.
    fn stand_in(bench: &Bench, zeroes: bool) -> Result<Step> {
        let bench = *bench;
        Ok(Step::new(move |probe| {
            tch::manual_seed(bench.seed);
            let model = Model::named("mlp-2x32", bench.device)?;
            let (algorithm, implementation) = OptimizerKind::AdamW.algorithm();
            let mut optimizer = Optimizer::new(&model.store, algorithm, 1e-5, implementation)?;
            let batch = model.batch(64);
            for _ in 0..ITERATIONS {
                if zeroes {
                    optimizer.zero_grad(Zeroing::ToZero)?;
                }
                model.loss(&model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean).f_backward()?;
                optimizer.step()?;
            }
            probe.compare(PARAMETER_ERROR, || Ok(model.parameters().iter().map(Tensor::detach).collect()))
        }))
    }

    #[test]
    fn the_check_sees_gradients_that_are_not_zeroed_and_another_optimizer() {
        let cell = figures::tests::small(ZeroGrad::Zeroed);
        check(&protocol(), cell).holds();
        broken(&protocol(), cell, |bench| stand_in(bench, true)).holds();
        broken(&protocol(), cell, |bench| stand_in(bench, false)).sees("parameter: expected equal");
        broken(&protocol(), cell, |bench| step(with(cell, OptimizerKind::RmsProp), bench)).sees("parameter: expected equal");
    }
}
