use super::{Bound, Evidence, JudgedCells, RuleKind, RuleSubject};
use crate::protocol::{Metric, Pass, PlainCell, Select};
use crate::results::Samples;
use base::stats::Interval;
use base::units::quantity;
use serde::{Deserialize, Serialize};

/// The metric of each selected cell as it is: counted ones exactly, timed ones with an interval over the rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ValueRule {
    pub metric: String,
    pub of: Select,
    pub confirm: Bound,
    pub refute: Bound,
}

impl RuleKind for ValueRule {
    fn about(&self) -> RuleSubject<'_> {
        RuleSubject { of: &self.of, metrics: vec![&self.metric], bounds: Some((self.confirm, self.refute)) }
    }

    fn evaluate(&self, judged: &JudgedCells, samples: &Samples, evidence: &mut Evidence) {
        let (name, confirm, refute) = (self.metric.as_str(), self.confirm, self.refute);
        let Some(metric) = judged.metric(name) else { return };
        let cells: Vec<PlainCell> = judged.selected(&self.of).map(|(_, cell)| cell).collect();
        let found: Vec<Option<(Interval, usize)>> = match metric.pass {
            Pass::Time => {
                let is_ratio = samples.is_ratio(name);
                let number = |x: f64| if is_ratio { x.max(1e-12).ln() } else { x };
                let rounds: Vec<Vec<f64>> =
                    cells.iter().map(|cell| samples.by_round(cell, name).into_values().map(number).collect()).collect();
                judged.together(&rounds, is_ratio, (confirm, refute))
            }
            _ => cells.iter().map(|cell| Some((Interval::exact(samples.value(cell, name)?), 1))).collect(),
        };
        for (cell, found) in cells.into_iter().zip(found) {
            evidence.compare(cell, None, found, (confirm, refute));
        }
    }

    fn figure(&self, metrics: &[Metric], value: f64) -> String {
        quantity(value, metrics.iter().find(|metric| metric.name == self.metric).map_or("1", Metric::shown_unit))
    }
}
