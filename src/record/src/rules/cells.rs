//! The cells that rules read.

use super::outcome::nearest_edge;
use super::{Bound, RulePart};
use crate::protocol::{Metric, Pass, PlainCell, PlainGrid, Platform, Profile, selects};
use crate::results::Samples;
use crate::rounds::{ALPHA, Rounds};
use base::stats::{Interval, holm_levels, mean, mean_interval, mean_p_value};
use std::collections::BTreeSet;

/// The cells that a claim is judged by, and how they were measured.
pub struct JudgedCells<'a> {
    pub grids: Vec<&'a PlainGrid>,
    pub metrics: &'a [Metric],
    pub profile: Profile,
    pub rounds: &'a Rounds,
    /// What they ran on.
    pub device: Platform,
    /// Its name, as that of its results.
    pub machine: &'a str,
    /// Those of the PyTorch reference, or ours.
    pub references: bool,
}

impl<'a> JudgedCells<'a> {
    pub(super) fn metric(&self, name: &str) -> Option<&'a Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }

    fn planned(&self) -> impl Iterator<Item = (&'a PlainGrid, PlainCell)> {
        self.grids.iter().flat_map(|grid| grid.cells().into_iter().map(move |cell| (*grid, cell)))
    }

    /// Cells that a rule selects, each with its grid.
    pub(super) fn selected(&self, of: &str) -> impl Iterator<Item = (&'a PlainGrid, PlainCell)> {
        self.planned().filter(move |(_, cell)| cell.is_reference() == self.references && selects(of, cell))
    }

    /// Those that the metric's pass is run over.
    pub(super) fn measured(&self, of: &str, metric: &Metric) -> impl Iterator<Item = (&'a PlainGrid, PlainCell)> {
        let pass = metric.pass;
        self.selected(of).filter(move |(grid, _)| grid.passes.contains(&pass))
    }

    /// Whether something went wrong with a cell or with what it is compared with, as opposed to not having been its turn.
    pub(super) fn failed(&self, cell: &PlainCell, samples: &Samples) -> bool {
        let failed = |cell: &PlainCell| samples.status(cell).is_some_and(|(status, _)| status.is_failure());
        let grid = self.grids.iter().find(|grid| grid.contains(cell));
        failed(cell) || grid.is_some_and(|grid| failed(&grid.baseline_of(cell)))
    }

    /// The intervals of several timed comparisons, each from one number a round, with the rounds behind them. Those up to the last look count,
    /// at the error rate of that look, and the rates are lowered as Holm's procedure says, so that the chance of any false decision among
    /// all of them stays at [`ALPHA`]. Numbers that are ratios come as logarithms, and are averaged as ratios are.
    pub(super) fn together(
        &self,
        series: &[Vec<f64>],
        are_logs: bool,
        (confirm, refute): (Bound, Bound),
    ) -> Vec<Option<(Interval, usize)>> {
        let from_log = |x: f64| if are_logs { x.exp() } else { x };
        let edge = |mean: f64| nearest_edge(confirm, refute, from_log(mean), |x| if are_logs { x.max(1e-12).ln() } else { x });
        let judged = |xs: &'_ Vec<f64>| self.rounds.judged(xs.len()).filter(|(rounds, _)| *rounds > 1);
        // A look's p value over its share of the error rate is a p value of the whole procedure.
        let p_value = |xs: &Vec<f64>| {
            let (rounds, alpha) = judged(xs)?;
            Some(mean_p_value(&xs[..rounds], edge(mean(&xs[..rounds])))? * ALPHA / alpha)
        };
        let p_values: Vec<Option<f64>> = series.iter().map(p_value).collect();
        let mut levels = holm_levels(&p_values.iter().flatten().copied().collect::<Vec<_>>(), ALPHA).into_iter();
        let interval = |(xs, p_value): (&Vec<f64>, Option<f64>)| {
            let level = p_value.and_then(|_| levels.next())?;
            let (rounds, alpha) = judged(xs)?;
            let Interval { estimate, low, high } = mean_interval(&xs[..rounds], level * alpha / ALPHA)?;
            Some((Interval { estimate: from_log(estimate), low: from_log(low), high: from_log(high) }, rounds))
        };
        series.iter().zip(p_values).map(interval).collect()
    }

    /// Whether a part of a claim is about anything that is there. One about the caching allocator says nothing of a CPU, one about
    /// `torch.load` nothing of our own readers, one about times nothing of a simulated GPU, and the others are judged. A part that the profile
    /// plans no cell for at all is one that lacks if it decides; if it is informational, another profile has it.
    pub fn have(&self, rule: &RulePart, decides: bool) -> bool {
        let mut metrics = rule.metrics().into_iter().filter_map(|name| self.metric(name));
        if self.device == Platform::Dry && metrics.any(|metric| metric.pass != Pass::Memory) {
            return false;
        }
        if !rule.reads_cells() {
            return !self.references;
        }
        let mut selected = self.planned().filter(|(_, cell)| selects(rule.select(), cell)).peekable();
        if selected.peek().is_none() {
            return decides;
        }
        selected.any(|(grid, cell)| cell.is_reference() == self.references && self.is_there(grid))
    }

    fn is_there(&self, grid: &PlainGrid) -> bool {
        grid.only_on.is_empty() || grid.only_on.contains(&self.device)
    }

    /// How many cells a rule is about on this platform, and how many of those, or of what they are compared with, are still to be measured.
    pub(super) fn awaited(&self, rule: &RulePart, samples: &Samples) -> (usize, usize) {
        let passes: BTreeSet<Pass> = rule.metrics().iter().filter_map(|name| Some(self.metric(name)?.pass)).collect();
        let compares = rule.compares_with_baseline();
        let (mut all, mut lacking) = (0, 0);
        for grid in self.grids.iter().filter(|grid| self.is_there(grid)) {
            let own = passes.iter().filter(|pass| grid.passes.contains(pass)).collect::<Vec<_>>();
            let selected = grid.cells().into_iter().filter(|cell| cell.is_reference() == self.references && rule.reads(cell));
            for cell in selected.filter(|_| !own.is_empty()) {
                let baseline = grid.baseline_of(&cell);
                if compares && (cell == baseline || rule.is_in_scope(&baseline, samples) == Some(false)) {
                    continue;
                }
                let waits =
                    |cell: &PlainCell| own.iter().any(|pass| samples.is_awaited(cell, **pass, self.rounds.least_of(**pass)));
                all += 1;
                lacking += usize::from(waits(&cell) || (compares && waits(&baseline)));
            }
        }
        (all, lacking)
    }
}
