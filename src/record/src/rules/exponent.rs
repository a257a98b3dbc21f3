use super::{Bound, Comparison, Evidence, JudgedCells, RuleKind, RuleSubject, label, place};
use crate::protocol::{Metric, PlainCell, Select};
use crate::results::Samples;
use base::stats::{Interval, local_exponent};
use base::units::{plain, range};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Growth exponent of the metric along a numeric factor, between its two largest levels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExponentRule {
    pub metric: String,
    pub along: String,
    pub of: Select,
    pub confirm: Bound,
    pub refute: Bound,
}

impl RuleKind for ExponentRule {
    fn about(&self) -> RuleSubject<'_> {
        RuleSubject { of: &self.of, metrics: vec![&self.metric], bounds: Some((self.confirm, self.refute)) }
    }

    fn group(&self, cell: &PlainCell, _baseline: &PlainCell) -> String {
        cell.without(&[&self.along])
    }

    fn gives_intervals(&self) -> bool {
        false
    }

    fn evaluate(&self, cells: &JudgedCells, samples: &Samples, evidence: &mut Evidence) {
        let mut lines: BTreeMap<String, Vec<(f64, f64, PlainCell)>> = BTreeMap::new();
        for (_, cell) in cells.selected(&self.of) {
            let x = cell.get(&self.along).and_then(|level| level.parse::<f64>().ok());
            match (x, samples.value(&cell, &self.metric)) {
                (Some(x), Some(y)) => lines.entry(cell.without(&[&self.along])).or_default().push((x, y, cell)),
                _ => evidence.missing.push(cell),
            }
        }
        for mut points in lines.into_values() {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            if let [.., before, last] = &points[..] {
                let exponent = local_exponent((before.0, last.0), (before.1, last.1));
                // A figure of 0 has no growth.
                let found = exponent.is_finite().then(|| (Interval::exact(exponent), 1));
                evidence.compare(last.2.clone(), Some(before.2.clone()), found, (self.confirm, self.refute));
            }
        }
    }

    fn subject(&self, metrics: &[Metric]) -> String {
        format!("exponent of {} with which {} grows", self.along, label(metrics, &self.metric))
    }

    fn effect_subject(&self, metrics: &[Metric]) -> String {
        format!("{} grows as", label(metrics, &self.metric))
    }

    fn figure(&self, _metrics: &[Metric], value: f64) -> String {
        plain(value)
    }

    fn effects_in_words(&self, _metrics: &[Metric], low: f64, high: f64) -> String {
        range(format!("{}^{low:.2}", self.along), format!("{}^{high:.2}", self.along))
    }

    fn comparison(&self, metrics: &[Metric]) -> String {
        format!("{}, between its two largest levels{}", self.subject(metrics), place(&self.of))
    }

    /// An exponent is about two cells, and its reader wants both.
    fn row(&self, comparison: &Comparison, shared: &[&str]) -> String {
        let before = comparison.baseline.as_ref().and_then(|before| before.get(&self.along)).unwrap_or("?");
        format!("`{}`, from {} = {before}", comparison.cell.name_without(shared), self.along)
    }
}
