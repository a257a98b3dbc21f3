use super::{Bound, Evidence, JudgedCells, RuleKind, RuleSubject, compared_with, label, place};
use crate::protocol::{Metric, Pass, PlainCell, Select};
use crate::results::Samples;
use crate::rounds::ALPHA;
use base::stats::Interval;
use base::units::change;
use serde::{Deserialize, Serialize};

/// The metric of each selected cell over that of its baseline: exact for bytes, an interval for times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RatioRule {
    pub metric: String,
    pub of: Select,
    pub confirm: Bound,
    pub refute: Bound,
    pub scope: Option<Scope>,
}

/// Judge only where, in the baseline, one metric is at least this share of another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scope {
    pub part: String,
    pub whole: String,
    pub at_least: f64,
}

impl RuleKind for RatioRule {
    fn about(&self) -> RuleSubject<'_> {
        let scope = self.scope.iter().flat_map(|scope| [scope.part.as_str(), scope.whole.as_str()]);
        let metrics = std::iter::once(self.metric.as_str()).chain(scope).collect();
        RuleSubject { of: &self.of, metrics, bounds: Some((self.confirm, self.refute)) }
    }

    fn compares_with_baseline(&self) -> bool {
        true
    }

    fn is_in_scope(&self, baseline: &PlainCell, samples: &Samples) -> Option<bool> {
        let Some(scope) = &self.scope else { return Some(true) };
        Some(samples.value(baseline, &scope.part)? / samples.value(baseline, &scope.whole)? >= scope.at_least)
    }

    fn evaluate(&self, cells: &JudgedCells, samples: &Samples, evidence: &mut Evidence) {
        let Some(metric) = cells.metric(&self.metric) else { return };
        let (name, confirm, refute) = (self.metric.as_str(), self.confirm, self.refute);
        let pairs = compared_with(self, cells, metric, samples, evidence);
        let found: Vec<Option<(Interval, usize)>> = match metric.pass {
            Pass::Time => {
                let logs: Vec<Vec<f64>> = pairs.iter().map(|(cell, baseline)| samples.log_ratios(cell, baseline, name)).collect();
                cells.together(&logs, true, (confirm, refute))
            }
            _ => pairs.iter().map(|(cell, baseline)| Some((samples.ratio(cell, baseline, metric, ALPHA)?, 1))).collect(),
        };
        for ((cell, baseline), found) in pairs.into_iter().zip(found) {
            evidence.compare(cell, Some(baseline), found, (confirm, refute));
        }
    }

    fn effects_in_words(&self, _metrics: &[Metric], low: f64, high: f64) -> String {
        change(low, high)
    }

    fn comparison(&self, metrics: &[Metric]) -> String {
        format!("{} relative to the baseline{}", self.subject(metrics), place(&self.of))
    }

    fn scope(&self, metrics: &[Metric]) -> Option<String> {
        let Scope { part, whole, at_least } = self.scope.as_ref()?;
        let share = at_least * 100.0;
        Some(format!("in the baseline, {} make at least {share:.0} % of {}", label(metrics, part), label(metrics, whole)))
    }
}
