use super::{Bound, Comparison, Evidence, JudgedCells, RuleKind, RuleSubject, compared_with, is_named, label};
use crate::protocol::{Metric, Pass, PlainCell, Select};
use crate::results::{ByRound, Samples};
use crate::rounds::ALPHA;
use base::stats::{Interval, rank_correlation};
use base::units::plain;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Whether an effect grows along a numeric factor: Spearman's rank correlation of the factor and the metric's ratio to its baseline (or what is
/// saved against it), over the
/// selected cells that differ in that factor alone. Of counted figures it is exact, of timed ones it has an interval over the rounds; noise
/// only weakens a correlation, so it speaks against the claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrendRule {
    pub metric: String,
    pub along: String,
    pub of: Select,
    pub confirm: Bound,
    pub refute: Bound,
    /// Whether the gain is what is saved, in the metric's unit, and not the ratio.
    #[serde(default)]
    pub saved: bool,
}

impl RuleKind for TrendRule {
    fn about(&self) -> RuleSubject<'_> {
        RuleSubject { of: &self.of, metrics: vec![&self.metric], bounds: Some((self.confirm, self.refute)) }
    }

    fn compares_with_baseline(&self) -> bool {
        true
    }

    fn is_relative(&self) -> bool {
        false
    }

    fn group(&self, cell: &PlainCell, _baseline: &PlainCell) -> String {
        cell.without(&[&self.along])
    }

    fn evaluate(&self, cells: &JudgedCells, samples: &Samples, evidence: &mut Evidence) {
        let (name, along) = (self.metric.as_str(), self.along.as_str());
        let Some(metric) = cells.metric(name) else { return };
        let mut lines: BTreeMap<String, Vec<(f64, PlainCell, ByRound)>> = BTreeMap::new();
        for (cell, baseline) in compared_with(self, cells, metric, samples, evidence) {
            let ratios = match metric.pass {
                _ if self.saved => {
                    let (own, theirs) = (samples.by_round(&cell, name), samples.by_round(&baseline, name));
                    own.iter().filter_map(|(round, x)| Some((*round, theirs.get(round)? - x))).collect()
                }
                Pass::Time => samples.log_ratios_by_round(&cell, &baseline, name),
                _ => samples.ratio(&cell, &baseline, metric, ALPHA).map(|ratio| (1, ratio.estimate)).into_iter().collect(),
            };
            match cell.get(along).and_then(|level| level.parse().ok()) {
                Some(x) if !ratios.is_empty() => lines.entry(cell.without(&[along])).or_default().push((x, cell, ratios)),
                _ => evidence.missing.push(cell),
            }
        }
        let mut series: Vec<(PlainCell, Vec<f64>)> = Vec::new();
        for mut points in lines.into_values() {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let xs: Vec<f64> = points.iter().map(|(x, ..)| *x).collect();
            let in_round = |round: &u32| points.iter().map(|(.., ratios)| ratios.get(round).copied()).collect::<Option<Vec<f64>>>();
            let rounds: Vec<f64> =
                points[0].2.keys().filter_map(in_round).map(|ys| rank_correlation(&xs, &ys)).filter(|r| !r.is_nan()).collect();
            let Some((_, cell, _)) = points.pop() else { continue };
            match xs.len() {
                3.. => series.push((cell, rounds)),
                _ => evidence.missing.push(cell),
            }
        }
        let rounds: Vec<Vec<f64>> = series.iter().map(|(_, rounds)| rounds.clone()).collect();
        let found = match metric.pass {
            Pass::Time => cells.together(&rounds, false, (self.confirm, self.refute)),
            _ => rounds.iter().map(|rounds| rounds.first().map(|r| (Interval::exact(*r), 1))).collect(),
        };
        for ((cell, _), found) in series.into_iter().zip(found) {
            let within = |found: Interval| Interval { low: found.low.max(-1.0), high: found.high.min(1.0), ..found };
            let found = found.map(|(correlation, rounds)| (within(correlation), rounds));
            evidence.compare(cell, None, found, (self.confirm, self.refute));
        }
    }

    fn subject(&self, metrics: &[Metric]) -> String {
        let gain = if self.saved { "what is saved of" } else { "the gain in" };
        format!("rank correlation of {gain} {} with {}", label(metrics, &self.metric), self.along)
    }

    fn figure(&self, _metrics: &[Metric], value: f64) -> String {
        plain(value)
    }

    fn names(&self, factor: &str) -> bool {
        self.along == factor || is_named(&self.of, factor)
    }

    fn row(&self, comparison: &Comparison, shared: &[&str]) -> String {
        let line = comparison.cell.without(&[shared, &[&self.along]].concat());
        format!("`{}`", if line.is_empty() { "all" } else { &line })
    }
}
