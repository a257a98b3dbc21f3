//! How much memory does it save, and of what?

use super::*;
use models::Settings;
use models::training::{Configuration, OptimizerKind, Trainer};
use torch::{Autocast, Phase};

const PARAMETERS: Metric = Metric::counted("parameters", "parameters", "B");
const STATE: Metric = Metric::counted("optimizer_state", "optimizer state", "B");
/// Copies of parameters in half precision, which autocast makes once in each forward pass. The backward pass needs most of them, so they are
/// among the saved activations.
const CASTS: Metric = Metric::counted("casts", "cast cache", "B");
/// What the peak has beyond parameters, optimizer state, data and saved activations.
const OTHERS: Metric = Metric::counted("others", "gradients and temporaries at the peak", "B");

cell! { Memory { model: ModelName, batch: Batch, precision: Computed } }

pub fn grid() -> Grid<Memory> {
    use Computed::*;
    let (two, three) = ([Fp32, AmpBf16], [Fp32, AmpBf16, AmpFp16]);
    let half = |rule: Rule<Memory>| rule.of(|c| c.precision.is_half());
    let stays = |metric| half(ratio(metric)).confirm(within(1.0..=1.0)).refute(at_most(0.99));
    Grid::new("memory", step)
        .compare::<Computed>()
        .quick(Memory::cross("mlp-8x256", [64, 1024], two))
        .quick(Memory::cross("gpt-4x128", [2, 32], two))
        .full(Memory::cross("mlp-8x1024", [1024, 16384], three))
        .full(Memory::cross("gpt2", [1, 4, 16], three))
        .full(Memory::cross(["bert-large", "vit-l16"], 8, three))
        .full(Memory::cross("resnet50", [32, 128], three))
        .smoke(Memory::cross("mlp-2x32", 64, two).passes(CHECK | COUNT | ROUNDS))
        .passes(CHECK | COUNT)
        .metrics(&[PEAK, PARAMETERS, GRADIENTS, STATE, ACTIVATIONS, CASTS, OTHERS])
        .check(|_| rounded())
        .claim(
            Claim::new("amp-forward-half", "4", "half precision halves the memory of the forward pass")
                .on(&[Platform::Gpu, Platform::Dry])
                .rule(half(ratio(ACTIVATIONS)).confirm(within(0.45..=0.60)).refute(at_least(0.60))),
        )
        .claim(
            Claim::new("amp-memory-half", "3", "mixed precision saves nearly half of the memory")
                .on(&[Platform::Gpu, Platform::Dry])
                .rule(half(ratio(PEAK)).holds(at_most(0.60))),
        )
        .claim(
            Claim::new("amp-weights-fp32", "4", "weights and gradients stay in fp32")
                .rule(stays(PARAMETERS))
                .rule(stays(GRADIENTS)),
        )
        .plot(bars(ACTIVATIONS).caption("What the forward pass keeps, against fp32"))
}

fn step(cell: Memory, bench: &Bench) -> Result<Step> {
    training(cell.model, cell.batch, cell.precision, bench)
}

/// Steps of a model on made-up data, with AdamW.
pub fn training(model: ModelName, batch: Batch, precision: Computed, bench: &Bench) -> Result<Step> {
    let settings = Settings { dropout: Some(0.0), ..Settings::default() };
    let (is_exact, precision) = (precision == Computed::Fp32, precision.set()?);
    let optimizer = OptimizerKind::AdamW;
    let configuration = Configuration { settings, optimizer, precision, ..Configuration::new(model.0, batch.0) };
    let mut trainer = Trainer::load(&configuration, bench.device)?;
    let flops = if is_exact { trainer.model().least_training_flops(batch.0) } else { 0.0 };
    let step = Step::new(move |probe| {
        if probe.is_comparing() {
            trainer.eval();
        }
        if probe.is_reading() {
            tell(&mut trainer, probe)?;
        } else {
            trainer.iterate(&mut |_, _| Ok(()))?;
        }
        probe.compare(GRADIENT_ERROR, || Ok(trainer.model().gradients()))
    });
    Ok(step.least_flops(flops))
}

/// Trains one step, and tells what holds memory.
fn tell(trainer: &mut Trainer, probe: &mut Probe) -> Result<()> {
    let variables: Vec<Tensor> = trainer.model().store.variables().into_values().collect();
    let (parameters, buffers) = (bytes(&trainer.model().parameters()), bytes(&variables));
    let data = [&trainer.batch().inputs, &trainer.batch().targets].map(Tensor::shallow_clone);
    // An iteration begins by dropping the gradients of the one before.
    let rest = probe.live() - bytes(&trainer.model().gradients());
    let mut activations = 0;
    trainer.iterate(&mut |mark, _| {
        if mark.phase == Phase::Forward {
            activations = probe.live() - rest;
        }
        Ok(())
    })?;
    let peak = probe.memory().map_or(0, |memory| memory.requested_peak);
    // They lived at the beginning, too.
    let workspaces = probe.release_workspaces();
    probe.emit(ACTIVATIONS, activations);
    probe.emit(PARAMETERS, parameters);
    probe.emit(GRADIENTS, bytes(&trainer.model().gradients()));
    probe.emit(STATE, rest - buffers - bytes(&data) - workspaces);
    probe.emit(OTHERS, peak - rest - activations);
    probe.emit(CASTS, casts(trainer, probe)?);
    Ok(())
}

/// What a region of autocast holds by itself at its end: without gradients nothing else keeps the parameters' copies.
fn casts(trainer: &Trainer, probe: &Probe) -> Result<i64> {
    let kind = trainer.configuration().precision.kind();
    if kind == Kind::Float {
        return Ok(0);
    }
    let (model, inputs) = (trainer.model(), &trainer.batch().inputs);
    let region = Autocast::on(inputs.device(), kind)?;
    // Buffers of batch norms stay as they are.
    drop(no_grad(|| model.forward(inputs, false)));
    let inside = probe.live();
    drop(region);
    Ok(inside - probe.live())
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn the_check_sees_half_a_batch_and_bytes_are_what_can_be_worked_out_by_hand() {
        let cell = Memory { model: ModelName("mlp-2x32"), batch: Batch(64), precision: Computed::AmpBf16 };
        check(&protocol(), cell).holds();
        broken(&protocol(), cell, |bench| step(with(cell, Batch(32)), bench)).sees("gradient: expected equal");
        let bytes = count(&protocol(), cell);
        let parameters = f64::from(2 * (32 * 32 + 32) + 32 * 10 + 10);
        assert_eq!([PARAMETERS, GRADIENTS].map(|metric| bytes.figure(metric)), [4.0 * parameters; 2]);
        assert_eq!(bytes.figure(CASTS), 2.0 * parameters, "each parameter once, in half precision");
    }
}
