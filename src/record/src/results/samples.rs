//! Questions to the samples of one run.

use super::rows::{BUDGET_ENDED, PassRecord, Status};
use crate::protocol::{Metric, Pass, PlainCell};
use base::stats::{Interval, mean, median, ratio_interval};
use std::collections::{BTreeMap, BTreeSet};

/// One figure for each round.
pub type ByRound = BTreeMap<u32, f64>;

/// The samples of one run, by cell and metric.
#[derive(Debug, Default)]
pub struct Samples {
    /// Samples of each round, in order.
    rounds: BTreeMap<(PlainCell, String), BTreeMap<u32, Vec<f64>>>,
    /// Metrics that are ratios, whose rounds are averaged as ratios are.
    ratios: BTreeSet<String>,
    passes: BTreeMap<PlainCell, BTreeMap<Pass, (Status, String)>>,
    /// Rounds of each pass that had their turn.
    turns: BTreeMap<(PlainCell, Pass), u32>,
}

impl Samples {
    pub fn new(records: &[PassRecord]) -> Samples {
        let mut samples = Samples::default();
        for record in records {
            let by_pass = samples.passes.entry(record.cell.clone()).or_default();
            let worst = by_pass.entry(record.pass).or_insert((record.status, record.reason.clone()));
            if record.status > worst.0 {
                *worst = (record.status, record.reason.clone());
            }
            *samples.turns.entry((record.cell.clone(), record.pass)).or_default() += u32::from(record.reason != BUDGET_ENDED);
            if record.status != Status::Ok {
                continue;
            }
            for sample in &record.samples {
                if record.pass == Pass::Time && sample.unit == "x" {
                    samples.ratios.insert(sample.metric.clone());
                }
                let key = (record.cell.clone(), sample.metric.clone());
                samples.rounds.entry(key).or_default().entry(record.round).or_default().push(sample.value);
            }
        }
        // A figure that its own cell contradicts is no figure.
        let passes = &samples.passes;
        samples.rounds.retain(|(cell, _), _| {
            passes.get(cell).is_none_or(|by_pass| by_pass.values().all(|(status, _)| *status != Status::Invalid))
        });
        samples
    }

    /// The median of each round of a cell; empty where it has none.
    pub fn by_round(&self, cell: &PlainCell, metric: &str) -> ByRound {
        let rounds = self.rounds.get(&(cell.clone(), metric.to_string())).into_iter().flatten();
        rounds.map(|(round, samples)| (*round, median(samples))).collect()
    }

    /// A figure of a cell: the counted value itself, or the median over rounds of the median of each round; of a ratio the geometric mean
    /// over rounds.
    pub fn value(&self, cell: &PlainCell, metric: &str) -> Option<f64> {
        let rounds = self.rounds.get(&(cell.clone(), metric.to_string()))?;
        let medians = rounds.values().map(|samples| median(samples));
        Some(match self.ratios.contains(metric) {
            true => mean(&medians.map(f64::ln).collect::<Vec<_>>()).exp(),
            false => median(&medians.collect::<Vec<_>>()),
        })
    }

    /// Log ratios of two cells measured side by side, one for each round that both have.
    pub fn log_ratios(&self, cell: &PlainCell, baseline: &PlainCell, metric: &str) -> Vec<f64> {
        self.log_ratios_by_round(cell, baseline, metric).into_values().collect()
    }

    /// [`Samples::log_ratios`] with the rounds.
    pub fn log_ratios_by_round(&self, cell: &PlainCell, baseline: &PlainCell, metric: &str) -> ByRound {
        let baseline = self.by_round(baseline, metric);
        let own = self.by_round(cell, metric).into_iter();
        own.filter_map(|(round, own)| Some((round, (own / baseline.get(&round)?).ln()))).collect()
    }

    /// A cell over its baseline: exact for counted bytes, an interval at error rate `alpha` for times.
    pub fn ratio(&self, cell: &PlainCell, baseline: &PlainCell, metric: &Metric, alpha: f64) -> Option<Interval> {
        if metric.pass == Pass::Time {
            return ratio_interval(&self.log_ratios(cell, baseline, metric.name), alpha);
        }
        let (a, b) = (self.value(cell, metric.name)?, self.value(baseline, metric.name)?);
        (b != 0.0).then(|| Interval::exact(a / b))
    }

    /// Whether a timed metric is a ratio, whose rounds are averaged as ratios are.
    pub fn is_ratio(&self, metric: &str) -> bool {
        self.ratios.contains(metric)
    }

    /// Whether a pass over a cell is still to be run: it had fewer rounds than `least`, and nothing that became of the cell says why.
    pub fn is_awaited(&self, cell: &PlainCell, pass: Pass, least: u32) -> bool {
        let Some(by_pass) = self.passes.get(cell) else { return true };
        let is_an_end = |(status, reason): &(Status, String)| match status {
            Status::Ok => false,
            Status::Skipped => reason != BUDGET_ENDED,
            _ => true,
        };
        let ended = |(of, outcome): (&Pass, &(Status, String))| is_an_end(outcome) && (*of == pass || outcome.0 != Status::Skipped);
        !by_pass.iter().any(ended) && self.turns.get(&(cell.clone(), pass)).is_none_or(|turns| *turns < least)
    }

    /// What became of each kind of pass over a cell, the worst of its rounds, with its reason; none of a cell that left no row.
    pub fn outcomes(&self, cell: &PlainCell) -> Option<&BTreeMap<Pass, (Status, String)>> {
        self.passes.get(cell)
    }

    /// What became of a cell: the worst of its passes, with the reason.
    pub fn status(&self, cell: &PlainCell) -> Option<(Status, &str)> {
        let passes = self.passes.get(cell)?;
        passes.values().max_by_key(|(status, _)| *status).map(|(status, reason)| (*status, reason.as_str()))
    }
}
