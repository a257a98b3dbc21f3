use super::outcome::Outcome;
use super::{Bound, Comparison, Evidence, JudgedCells, RuleKind, RuleSubject, Verdict, label, place};
use crate::protocol::{Metric, Select};
use crate::results::Samples;
use base::stats::{Interval, median};
use base::units::{counted, plain, significant};
use serde::{Deserialize, Serialize};

/// Whether one metric predicts another: their ratio, within each selected cell, lies in bounds in at least a share of the cells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgreementRule {
    pub metric: String,
    pub reference: String,
    pub of: Select,
    pub within: Bound,
    pub share: f64,
}

impl RuleKind for AgreementRule {
    fn about(&self) -> RuleSubject<'_> {
        RuleSubject { of: &self.of, metrics: vec![&self.metric, &self.reference], bounds: None }
    }

    fn gives_intervals(&self) -> bool {
        false
    }

    fn holds_by_share(&self) -> bool {
        true
    }

    fn evaluate(&self, cells: &JudgedCells, samples: &Samples, evidence: &mut Evidence) {
        for (_, cell) in cells.selected(&self.of) {
            match (samples.value(&cell, &self.metric), samples.value(&cell, &self.reference)) {
                (Some(value), Some(true_value)) if true_value != 0.0 => {
                    let effect = Interval::exact(value / true_value);
                    let outcome = if self.within.holds(effect.estimate) { Outcome::Confirms } else { Outcome::Refutes };
                    evidence.comparisons.push(Comparison { cell, baseline: None, effect, rounds: 1, outcome });
                }
                _ => evidence.missing.push(cell),
            }
        }
    }

    /// A prediction has to be right in a share of its cells: there is nothing between. Those that failed could be either.
    fn combine(&self, comparisons: &[Comparison], failed: usize) -> Verdict {
        let right = comparisons.iter().filter(|c| c.outcome == Outcome::Confirms).count();
        let wanted = self.share * (comparisons.len() + failed) as f64;
        if comparisons.is_empty() {
            Verdict::NotMeasured
        } else if right as f64 >= wanted {
            Verdict::Confirmed
        } else if ((right + failed) as f64) < wanted {
            Verdict::Refuted
        } else {
            Verdict::Inconclusive
        }
    }

    fn subject(&self, metrics: &[Metric]) -> String {
        format!("{} relative to {}", label(metrics, &self.metric), label(metrics, &self.reference))
    }

    /// How far off the predictions are at most, and in how many configurations they are equal. None where they are equal in none, and the
    /// range of their ratio has to do.
    fn sentence(&self, metrics: &[Metric], comparisons: &[Comparison]) -> Option<String> {
        let off = |c: &Comparison| (c.effect.estimate - 1.0).abs();
        let (all, equal) = (comparisons.len(), comparisons.iter().filter(|c| off(c) == 0.0).count());
        let most = significant((comparisons.iter().map(off).fold(0.0, f64::max) * 100.0).max(0.01));
        let (ours, theirs, all_of) = (label(metrics, &self.metric), label(metrics, &self.reference), counted(all, "configuration"));
        match all - equal {
            _ if equal == 0 => None,
            0 => Some(format!("{ours} = {theirs} in all {all_of}")),
            _ => Some(format!("{ours} within {most} % of {theirs} in {all_of}, equal in {equal}")),
        }
    }

    /// How far predictions are off, and how often they promise too much room.
    fn remark(&self, comparisons: &[Comparison]) -> String {
        if comparisons.is_empty() {
            return String::new();
        }
        let ratios: Vec<f64> = comparisons.iter().map(|c| c.effect.estimate).collect();
        let errors: Vec<f64> = ratios.iter().map(|ratio| (ratio - 1.0).abs() * 100.0).collect();
        let too_little = ratios.iter().filter(|ratio| **ratio < 0.99).count();
        let share = too_little as f64 / ratios.len() as f64 * 100.0;
        let typical = median(&errors);
        let typical = if typical >= 0.01 { significant(typical) } else { plain(typical) };
        format!("; median error {typical} %, too little by more than 1 % in {share:.0} % of the configurations")
    }

    fn thresholds(&self, metrics: &[Metric]) -> (String, String) {
        let (within, share) = (self.bound(metrics, self.within), self.share * 100.0);
        (format!("{within} in {share:.0} % of the configurations"), format!("fewer of them within {within}"))
    }

    fn comparison(&self, metrics: &[Metric]) -> String {
        format!("{}, configuration by configuration{}", self.subject(metrics), place(&self.of))
    }
}
