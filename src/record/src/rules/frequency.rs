use super::outcome::nearest_edge;
use super::{Bound, Evidence, JudgedCells, RuleKind, RuleSubject, compared_with, label, place};
use crate::protocol::{Metric, PlainCell, Select};
use crate::results::Samples;
use crate::rounds::ALPHA;
use base::stats::{holm_levels, share_ratio};
use serde::{Deserialize, Serialize};

/// How many of so many attempts came out so, as a share, over the baseline's share: with an interval by Katz, widened by Holm, because both
/// are counts of chance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FrequencyRule {
    pub metric: String,
    /// The metric that counts the attempts.
    pub attempts: String,
    pub of: Select,
    pub confirm: Bound,
    pub refute: Bound,
    /// Judge only where the baseline's share is at least this.
    pub least: f64,
}

impl FrequencyRule {
    fn counts(&self, cell: &PlainCell, samples: &Samples) -> Option<(f64, f64)> {
        Some((samples.value(cell, &self.metric)?, samples.value(cell, &self.attempts).filter(|all| *all > 0.0)?))
    }
}

impl RuleKind for FrequencyRule {
    fn about(&self) -> RuleSubject<'_> {
        RuleSubject { of: &self.of, metrics: vec![&self.metric, &self.attempts], bounds: Some((self.confirm, self.refute)) }
    }

    fn compares_with_baseline(&self) -> bool {
        true
    }

    fn is_in_scope(&self, baseline: &PlainCell, samples: &Samples) -> Option<bool> {
        self.counts(baseline, samples).map(|(hits, all)| hits / all >= self.least)
    }

    fn evaluate(&self, cells: &JudgedCells, samples: &Samples, evidence: &mut Evidence) {
        let Some(metric) = cells.metric(&self.metric) else { return };
        let mut found = Vec::new();
        for (cell, baseline) in compared_with(self, cells, metric, samples, evidence) {
            match self.counts(&cell, samples).zip(self.counts(&baseline, samples)) {
                Some((own, theirs)) => found.push((cell, baseline, own, theirs)),
                None => evidence.missing.push(cell),
            }
        }
        let p_value = |(_, _, own, theirs): &(PlainCell, PlainCell, (f64, f64), (f64, f64))| {
            let (ratio, _) = share_ratio(*own, *theirs, ALPHA, 1.0);
            let edge = nearest_edge(self.confirm, self.refute, ratio.estimate, |x| x.max(1e-12).ln());
            share_ratio(*own, *theirs, ALPHA, edge.exp()).1
        };
        let levels = holm_levels(&found.iter().map(p_value).collect::<Vec<_>>(), ALPHA);
        for ((cell, baseline, own, theirs), level) in found.into_iter().zip(levels) {
            let (effect, _) = share_ratio(own, theirs, level, 1.0);
            evidence.compare(cell, Some(baseline), Some((effect, own.1 as usize)), (self.confirm, self.refute));
        }
    }

    fn subject(&self, metrics: &[Metric]) -> String {
        format!("share of {} of {}", label(metrics, &self.metric), label(metrics, &self.attempts))
    }

    fn comparison(&self, metrics: &[Metric]) -> String {
        format!("{} relative to the baseline{}", self.subject(metrics), place(&self.of))
    }
}
