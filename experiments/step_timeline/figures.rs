//! What the recording of a cell's steps says in figures.

use super::*;
use models::training::Trainer;
use phases::ITERATIONS;
use std::ops::RangeInclusive;
use torch::Stage;

pub const MODEL: Metric = bytes("model", "model");
pub const DATA: Metric = bytes("data", "one batch");
pub const KEPT: Metric = ACTIVATIONS.labelled("activations");
pub const STATE: Metric = bytes("optimizer_state", "optimizer state");
pub const TEMPORARIES: Metric = bytes("temporaries", "temporaries at the later peak");
pub const AFTER_LOAD: Metric = bytes("after_load", "after load");
pub const AFTER_FORWARD: Metric = bytes("after_forward", "after forward");
pub const AFTER_BACKWARD: Metric = bytes("after_backward", "after backward");
pub const AFTER_STEP: Metric = bytes("after_step", "after step");
pub const FIRST_PEAK: Metric = bytes("first_peak", "peak, iteration 1");
pub const NEXT_PEAK: Metric = bytes("next_peak", "peak, later");
pub const LOADED: Metric = Metric::counted("loaded", "after load / model", "x");
pub const FORWARDED: Metric = Metric::counted("forwarded", "after forward / (model + activations)", "x");
pub const BACKWARDED: Metric = Metric::counted("backwarded", "after backward / model", "x");
pub const PEAKED: Metric = Metric::counted("peaked", "later peak / sum of all four", "x");

const fn bytes(name: &'static str, label: &'static str) -> Metric {
    Metric::counted(name, label, "B")
}

/// In the order of the table.
pub const ALL: &[Metric] = &[
    MODEL,
    DATA,
    KEPT,
    GRADIENTS,
    STATE,
    TEMPORARIES,
    AFTER_LOAD,
    AFTER_FORWARD,
    AFTER_BACKWARD,
    AFTER_STEP,
    FIRST_PEAK,
    NEXT_PEAK,
    LOADED,
    FORWARDED,
    BACKWARDED,
    PEAKED,
];

/// The phases of the first two iterations, with their live and peak bytes and what they are for.
const ITERATION: Metric = bytes("iteration", "bytes of an iteration's phases");

pub fn emit(probe: &mut Probe, timeline: &Timeline, trainer: &Trainer) -> Result<()> {
    let stages = timeline.stages();
    let stage = |iteration: u32, phase: Phase| -> Result<&Stage> {
        let found = stages.iter().find(|s| (s.iteration, s.phase) == (iteration, phase));
        found.with_context(|| format!("{phase} of iteration {iteration} was not recorded"))
    };
    // From shapes, not from the recording.
    let of = |tensors: &[Tensor]| tensors.iter().map(|t| t.numel() * t.kind().elt_size_in_bytes()).sum::<usize>() as f64;
    let model = of(&trainer.model().store.variables().into_values().collect::<Vec<_>>());
    let data = of(&[trainer.batch().inputs.shallow_clone(), trainer.batch().targets.shallow_clone()]);
    let without_data = |bytes: i64| bytes as f64 - data;
    let after = |iteration, phase| Ok::<_, anyhow::Error>(without_data(stage(iteration, phase)?.live));
    let peak = |iterations: RangeInclusive<u32>| -> Result<&Stage> {
        let stages = stages.iter().filter(|s| iterations.contains(&s.iteration));
        stages.max_by_key(|s| s.peak).context("no iteration was recorded")
    };
    let (first, later) = (peak(1..=1)?, peak(2..=ITERATIONS)?);
    let (forward, backward, step) = (stage(2, Phase::Forward)?, stage(2, Phase::Backward)?, stage(2, Phase::Optimizer)?);
    let kept = stage(1, Phase::Forward)?.at_end.activations as f64;
    let (gradients, state) = (backward.at_end.gradients as f64, step.at_end.optimizer_state as f64);
    let everything = model + forward.at_end.activations as f64 + gradients + state;
    for (metric, value) in [
        (MODEL, model),
        (DATA, data),
        (KEPT, kept),
        (GRADIENTS, gradients),
        (STATE, state),
        (AFTER_LOAD, after(0, Phase::Load)?),
        (AFTER_FORWARD, after(1, Phase::Forward)?),
        (AFTER_BACKWARD, after(1, Phase::Backward)?),
        (AFTER_STEP, after(1, Phase::Optimizer)?),
        (FIRST_PEAK, without_data(first.peak)),
        (NEXT_PEAK, without_data(later.peak)),
        (TEMPORARIES, later.at_peak.temporaries as f64),
        (LOADED, after(0, Phase::Load)? / model),
        (FORWARDED, after(1, Phase::Forward)? / (model + kept)),
        (BACKWARDED, after(1, Phase::Backward)? / model),
        (PEAKED, without_data(later.peak) / everything),
    ] {
        probe.emit(metric, value);
    }
    for stage in stages.iter().filter(|stage| stage.iteration <= 2) {
        let phase = curves::PHASES.iter().find(|(phase, ..)| *phase == stage.phase).map_or("load", |(_, name, _)| name);
        let place = format!("{}.{phase}", stage.iteration);
        probe.emit(ITERATION.part(&format!("{place}.live")), stage.live);
        probe.emit(ITERATION.part(&format!("{place}.peak")), stage.peak);
        for (when, categories) in [("live", &stage.at_end), ("peak", &stage.at_peak)] {
            for (name, bytes) in categories.named().into_iter().filter(|(_, bytes)| *bytes != 0) {
                probe.emit(ITERATION.part(&format!("{place}.{when}.{}", name.replace(' ', "_"))), bytes);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use harness::lab::testing::*;

    /// 2 blocks of linear 32 x 32 and GELU, a classifier of 10, a batch of 64, fp32, with AdamW.
    pub fn small(zero_grad: ZeroGrad) -> Phases {
        Phases { model: ModelName("mlp-2x32"), batch: Batch(64), optimizer: OptimizerKind::AdamW, zero_grad }
    }

    #[test]
    fn a_step_timeline_can_be_worked_out_by_hand() {
        let n = 64.0;
        let model = 4.0 * (2.0 * (32.0 * 32.0 + 32.0) + 320.0 + 10.0);
        // Of each block the linear layer's result and GELU's; the log-softmax, the sum of its weights, and the loss.
        let activations = 4.0 * (2.0 * 2.0 * n * 32.0 + n * 10.0 + 2.0);
        let [dropped, zeroed] = [ZeroGrad::Dropped, ZeroGrad::Zeroed].map(|zero_grad| count(&protocol(), small(zero_grad)));
        for counted in [&dropped, &zeroed] {
            let of = |metric| counted.figure(metric);
            assert_eq!((of(AFTER_LOAD), of(KEPT), of(AFTER_FORWARD)), (model, activations, model + activations));
            assert_eq!((of(AFTER_BACKWARD), of(STATE), of(AFTER_STEP)), (2.0 * model, 2.0 * model, 4.0 * model));
            assert_eq!((of(LOADED), of(FORWARDED), of(BACKWARDED)), (1.0, 1.0, 2.0));
            assert_eq!(counted.detail("saved.gelu"), Some(4.0 * 2.0 * n * 32.0));
        }
        // Gradients that are kept are there in the next forward pass, and those that are new come on top of them for a moment.
        let live = |counted: &Counted| counted.detail("iteration.2.forward.live").unwrap();
        assert_eq!(live(&zeroed) - live(&dropped), model);
        assert!(zeroed.figure(NEXT_PEAK) > dropped.figure(NEXT_PEAK));
        assert_eq!(zeroed.detail("iteration.2.forward.live.gradients"), Some(model));
        assert_eq!(dropped.detail("iteration.2.forward.live.gradients"), None);
    }
}
