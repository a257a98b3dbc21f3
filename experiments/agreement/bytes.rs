//! Bytes at each phase, and by how many PyTorch's are more than ours, with the reason.

use super::training::Training;
use super::*;

// Why PyTorch's bytes are not ours, each with its formula in `Training::stated`.
pub const COUNTERS: Metric =
    reason("counters", "PyTorch's AdamW counts the steps of each parameter in a tensor of 4 bytes, libtorch's in a number");
pub const DENOMINATOR: Metric =
    reason("denominator", "Python's loop over the parameters holds what it divided the last one by until it has that of the next");
pub const NUMBER: Metric =
    reason("number", "Python makes a tensor of 8 bytes of the number that the loss is divided by, and autograd keeps it");
const fn reason(name: &'static str, why: &'static str) -> Metric {
    Metric::counted(name, why, "B").reason()
}

impl Training {
    /// By how many bytes PyTorch's figure is larger than ours, and why. On a GPU nothing has been stated yet.
    fn stated(&self, metric: Metric) -> Vec<(Metric, i64)> {
        let trained = self.optimizer.trainable_variables();
        let parameters: Vec<i64> = trained.iter().map(|p| (p.numel() * p.kind().elt_size_in_bytes()) as i64).collect();
        let is_peak = metric == PEAK;
        let mut stated = Vec::new();
        if self.batch.inputs.device() != Device::Cpu {
            return stated;
        }
        if self.cell.optimizer == Optimizer::Adamw {
            stated.push((COUNTERS, 4 * parameters.len() as i64));
            if is_peak {
                // Two temporaries of each parameter, and in Python what is left of the one before.
                let without = parameters.iter().map(|bytes| 2 * bytes).max().unwrap_or(0);
                let pairs = parameters.windows(2).map(|pair| pair[0] + 2 * pair[1]);
                stated.push((DENOMINATOR, pairs.max().unwrap_or(0).max(without) - without));
            }
        }
        if self.cell.technique == Technique::Accumulate && metric == LIVE_FORWARD {
            stated.push((NUMBER, 8));
        }
        stated
    }

    /// Gives what lives now, and the same as PyTorch's must be.
    pub fn tell(&self, probe: &mut Probe, metric: Metric, matched: Metric) {
        let live = probe.live();
        probe.emit(metric, live);
        self.tell_matched(probe, metric, matched, live);
    }

    /// As [`Training::tell`] of the peak, which the meter itself gives.
    pub fn tell_peak(&self, probe: &mut Probe) {
        let peak = probe.memory().map_or(0, |memory| memory.requested_peak);
        self.tell_matched(probe, PEAK, MATCHED_PEAK, peak);
    }

    fn tell_matched(&self, probe: &mut Probe, metric: Metric, matched: Metric, bytes: i64) {
        let stated = self.stated(metric);
        probe.emit(matched, bytes + stated.iter().map(|(_, bytes)| bytes).sum::<i64>());
        for (reason, bytes) in stated {
            probe.emit_part(reason, metric.name, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;
    use record::protocol::Profile;
    use std::collections::BTreeMap;

    /// Bytes that PyTorch in Python counted (tests/reference/make/agreement.py): ours are the same to the byte once the stated differences
    /// are taken out, and without them they are not.
    #[test]
    fn bytes_are_those_of_the_committed_reference() {
        let reference: BTreeMap<String, BTreeMap<String, f64>> =
            serde_json::from_str(include_str!("../../tests/reference/agreement.json")).unwrap();
        let plain = protocol().plain().unwrap();
        let models = ["mlp-8x64", "mlp-9x128", "mlp-8x512", "mlp-4x1024", "gpt-3x256"];
        let cells = Side::cross(models, [4, 32, 256], Optimizer::ALL, Technique::ALL, "1", By::Pytorch);
        let (mut found, mut stated) = (0, 0);
        tch::set_num_threads(1);
        for cell in cells {
            let Some(theirs) = reference.get(&cell.plain().to_string()) else { continue };
            assert!(plain.grid_of(Profile::Quick, &cell.plain()).is_some(), "{cell:?} is not planned");
            found += 1;
            let ours = count(&protocol(), with(cell, By::Vramlab));
            for (metric, bytes) in theirs {
                assert_eq!(ours.detail(&format!("matched_{metric}")), Some(*bytes), "{cell:?}: {metric}");
                let reasons = [COUNTERS, DENOMINATOR, NUMBER];
                let difference: f64 = reasons.iter().filter_map(|reason| ours.detail(&format!("{}.{metric}", reason.name))).sum();
                stated += usize::from(difference != 0.0);
                assert_eq!(ours.detail(metric).map(|ours| ours + difference), Some(*bytes), "{cell:?}: {metric}");
            }
        }
        assert!(found == reference.len() && found >= 8 && stated >= 4, "{found} cells, {stated} stated differences");
    }
}
