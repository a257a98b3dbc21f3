use super::outcome::Outcome;
use super::{Comparison, Evidence, JudgedCells, RuleKind, RuleSubject, place};
use crate::protocol::{Metric, PlainCell, Select};
use crate::results::{ByRound, Samples};
use crate::rounds::{ALPHA, usual};
use base::stats::false_alarms;
use base::units::significant;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How often levels that are one thing under several names would be called different: the share of resamplings, each of two names and of
/// rounds looked at as [`usual`] says for the profile, in which the interval of a look excludes 1. The rate's interval decides: it lies below
/// the bound, or above what an interval promises.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FalseAlarmsRule {
    pub metric: String,
    pub of: Select,
    pub at_most: f64,
}

impl RuleKind for FalseAlarmsRule {
    fn about(&self) -> RuleSubject<'_> {
        RuleSubject { of: &self.of, metrics: vec![&self.metric], bounds: None }
    }

    fn group(&self, _cell: &PlainCell, baseline: &PlainCell) -> String {
        baseline.to_string()
    }

    fn needs_all_rounds(&self) -> bool {
        true
    }

    fn evaluate(&self, cells: &JudgedCells, samples: &Samples, evidence: &mut Evidence) {
        let usual = usual(cells.profile);
        let looks: Vec<(usize, f64)> = usual.looks().iter().filter_map(|look| usual.judged(*look as usize)).collect();
        let mut same: BTreeMap<String, Vec<(PlainCell, ByRound)>> = BTreeMap::new();
        for (grid, cell) in cells.selected(&self.of) {
            let rounds = samples.by_round(&cell, &self.metric);
            match rounds.is_empty() {
                true => evidence.missing.push(cell),
                false => same.entry(cell.without(&[&grid.studied])).or_default().push((cell, rounds)),
            }
        }
        for levels in same.into_values() {
            let is_common = |round: &u32| levels.iter().all(|(_, rounds)| rounds.contains_key(round));
            let common: Vec<u32> = levels[0].1.keys().copied().filter(is_common).collect();
            let logs: Vec<Vec<f64>> =
                levels.iter().map(|(_, rounds)| common.iter().map(|round| rounds[round].ln()).collect()).collect();
            let cell = levels[0].0.clone();
            match false_alarms(&logs, &looks) {
                Some(effect) => {
                    let outcome = if effect.low > ALPHA {
                        Outcome::Refutes
                    } else if effect.high <= self.at_most {
                        Outcome::Confirms
                    } else {
                        Outcome::Straddles
                    };
                    evidence.comparisons.push(Comparison { cell, baseline: None, effect, rounds: common.len(), outcome });
                }
                None => evidence.missing.push(cell),
            }
        }
    }

    fn subject(&self, _metrics: &[Metric]) -> String {
        "false positives".to_string()
    }

    fn figure(&self, _metrics: &[Metric], value: f64) -> String {
        format!("{} %", significant(value * 100.0))
    }

    fn thresholds(&self, metrics: &[Metric]) -> (String, String) {
        let write = |x: f64| self.figure(metrics, x);
        (
            format!("an interval of the rate below {}", write(self.at_most)),
            format!("an interval of the rate above {}", write(ALPHA)),
        )
    }

    fn comparison(&self, metrics: &[Metric]) -> String {
        format!(
            "{}: how often the 95 % CI of a ratio of {} excludes 1, in 4000 resamplings of two identical levels and as many rounds as the \
             profile usually takes{}",
            self.subject(metrics),
            self.metric.replace('_', " "),
            place(&self.of)
        )
    }
}
