//! The second iteration as curves, and what its activations are made of.

use super::*;
use std::collections::BTreeMap;
use torch::Category;

/// The curves of the picture, bottom to top: what stays lies below what comes and goes.
pub const LAYERS: [(Metric, Category); 6] = [
    (curve("curve.parameters", "parameters"), Category::Parameters),
    (curve("curve.optimizer_state", "optimizer state"), Category::OptimizerState),
    (curve("curve.data", "data"), Category::Data),
    (curve("curve.gradients", "gradients"), Category::Gradients),
    (curve("curve.activations", "activations"), Category::Activations),
    (curve("curve.temporaries", "temporaries"), Category::Temporaries),
];
/// Where a phase of the picture begins, by its position among the phases; one behind the last, where the step ends.
pub const BOUNDARY: Metric = Metric::counted("curve.phase", "phase", "1");
/// Phases of the picture, with their names and with how many points they are drawn at most.
pub const PHASES: [(Phase, &str, usize); 3] =
    [(Phase::Forward, "forward", 70), (Phase::Backward, "backward", 70), (Phase::Optimizer, "step", 40)];
/// The activations, by the operation that made them.
pub const SAVED: Metric = Metric::counted("saved", "saved activations", "B");

/// Threads that allocate at the same time do so in either order, which moves points of a curve and not its ends.
const fn curve(name: &'static str, label: &'static str) -> Metric {
    Metric::counted(name, label, "B").nondeterministic()
}

/// What the first forward pass leaves alive, by the operation that made it.
pub fn emit_saved(probe: &mut Probe, timeline: &Timeline) {
    let Some(end) = timeline.events_of(1, Phase::Forward).and_then(|events| events.end.checked_sub(1)) else { return };
    let mut saved: BTreeMap<&str, i64> = BTreeMap::new();
    for block in timeline.living_after(end).filter(|block| block.category == Category::Activations) {
        let operation = timeline.operation(block).map_or("no operation", |name| name.trim_start_matches("aten::"));
        *saved.entry(operation).or_default() += block.bytes;
    }
    for (operation, bytes) in saved {
        probe.emit(SAVED.part(operation), bytes);
    }
}

/// Of each category the points where it changes, and where phases begin.
pub fn emit(probe: &mut Probe, timeline: &Timeline) -> Result<()> {
    let mut position = 0;
    let mut last = [None; LAYERS.len()];
    for (n, (phase, name, points)) in PHASES.iter().enumerate() {
        let events = timeline.events_of(2, *phase).with_context(|| format!("{name} of iteration 2 was not recorded"))?;
        probe.emit(BOUNDARY.at(position), n);
        for mut live in timeline.outline(events, *points) {
            for ((layer, category), last) in LAYERS.iter().zip(&mut last) {
                let bytes = *live.of(*category);
                if last.replace(bytes) != Some(bytes) {
                    probe.emit(layer.at(position), bytes);
                }
            }
            position += 1;
        }
    }
    probe.emit(BOUNDARY.at(position), PHASES.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    /// No peak is lost, and each phase ends where the meter says.
    #[test]
    fn the_curves_of_a_step_keep_its_peak() {
        let counted = count(&protocol(), figures::tests::small(ZeroGrad::Dropped));
        let curve = |metric: Metric| counted.samples().iter().filter(move |sample| sample.metric == metric.name);
        let boundaries: Vec<u32> = curve(BOUNDARY).map(|sample| sample.sample).collect();
        let total = |point: u32| -> f64 {
            let layer = |(layer, _): &(Metric, Category)| {
                let told = curve(*layer).filter(|sample| sample.sample <= point).max_by_key(|sample| sample.sample);
                told.map_or(0.0, |sample| sample.value)
            };
            LAYERS.iter().map(layer).sum()
        };
        assert_eq!(boundaries.len(), 4);
        let points = boundaries[3];
        assert!(points <= 186, "{points} points");
        let highest = (0..points).map(total).fold(0.0, f64::max);
        assert_eq!(highest, counted.figure(figures::NEXT_PEAK) + counted.figure(figures::DATA));
        for (end, (_, phase, _)) in boundaries[1..].iter().zip(PHASES) {
            assert_eq!(Some(total(end - 1)), counted.detail(&format!("iteration.2.{phase}.live")), "{phase}");
        }
    }
}
