//! What a technique does, over all of its cells: how far a figure falls or rises against its baseline.

use super::plots::{distinct, extent};
use super::prose;
use super::recorded::Recorded;
use base::stats::{Interval, median};
use base::units::change;
use record::protocol::{BY, PlainCell, selects};

/// The ratios of one metric to its baseline over the cells that a selection names.
#[derive(Debug, Clone, PartialEq)]
pub struct Effect {
    pub machine: String,
    pub device: &'static str,
    pub is_own: bool,
    pub label: String,
    pub middle: f64,
    /// Smallest and largest ratio, with their intervals where they have any.
    pub low: f64,
    pub high: f64,
    /// What was compared, in words: the models, or how many cells.
    pub rests_on: String,
    /// Cells that are measured in full, and those that will be once all is.
    pub measured: usize,
    pub planned: usize,
}

impl Effect {
    /// The ratios of the metric on one machine; none where it has no such figure.
    pub fn of(run: &Recorded, select: &str, metric: &str) -> Option<Effect> {
        let metric = run.protocol.metric(metric)?;
        let cells = compared(run, select);
        let found: Vec<(&PlainCell, Interval)> = cells.iter().filter_map(|cell| Some((cell, run.ratio(cell, metric)?))).collect();
        if found.is_empty() {
            return None;
        }
        let is_awaited = |cell: &PlainCell| {
            let grid = run.grid_of(cell).filter(|grid| grid.passes.contains(&metric.pass));
            grid.is_some_and(|grid| [cell, &grid.baseline_of(cell)].iter().any(|cell| run.is_awaited(cell, metric.pass)))
        };
        let has_figure = |cell: &PlainCell| found.iter().any(|(known, _)| *known == cell);
        let planned = cells.iter().filter(|cell| has_figure(cell) || is_awaited(cell)).count();
        let estimates: Vec<f64> = found.iter().map(|(_, ratio)| ratio.estimate).collect();
        Some(Effect {
            machine: run.machine.clone(),
            device: prose::platform(run.platform()),
            is_own: run.is_own,
            label: metric.label.to_string(),
            middle: median(&estimates),
            low: extent(found.iter().map(|(_, ratio)| ratio.low)).0,
            high: extent(found.iter().map(|(_, ratio)| ratio.high)).1,
            rests_on: rests_on(found.iter().map(|(cell, _)| *cell)),
            measured: cells.iter().filter(|cell| has_figure(cell) && !is_awaited(cell)).count(),
            planned,
        })
    }

    /// `, 3 of 7 measured`; nothing where all are.
    pub fn progress(&self) -> String {
        if self.measured == self.planned { String::new() } else { format!(", {} of {} measured", self.measured, self.planned) }
    }

    /// `-56 % to -75 %`, the larger saving last.
    pub fn change(&self) -> String {
        change(self.low, self.high)
    }
}

/// Cells of a selection that are compared with another; who runs a cell is no technique.
pub fn compared(run: &Recorded, select: &str) -> Vec<PlainCell> {
    let is_compared = |cell: &PlainCell| {
        let grid = run.grid_of(cell);
        selects(select, cell)
            && grid.is_some_and(|grid| !grid.repeats(cell) && grid.studied != BY && grid.baseline_of(cell) != *cell)
    };
    run.all_cells().into_iter().filter(is_compared).collect()
}

/// Factors that say what was computed, the most telling first.
const SUBJECTS: [&str; 6] = ["model", "workload", "operation", "transform", "dropped", "case"];

/// More levels than these are counted, not named.
const MOST_NAMED: usize = 20;

/// The models of some cells, or else what tells them apart.
pub fn rests_on<'a>(cells: impl Iterator<Item = &'a PlainCell>) -> String {
    let cells: Vec<&PlainCell> = cells.collect();
    let levels = |factor: &str| distinct(cells.iter().filter_map(|cell| cell.get(factor)));
    let counted = |factor: &str, levels: &[&str]| format!("{} levels of {factor}", levels.len());
    if let Some((factor, found)) = SUBJECTS.iter().map(|factor| (factor, levels(factor))).find(|(_, levels)| !levels.is_empty()) {
        return if found.len() > MOST_NAMED { counted(factor, &found) } else { found.join(", ") };
    }
    let factors = cells.first().into_iter().flat_map(|cell| cell.levels().iter().map(|(factor, _)| factor.as_str()));
    match factors.map(|factor| (factor, levels(factor))).find(|(_, levels)| levels.len() > 1) {
        Some((factor, levels)) if levels.len() > MOST_NAMED => counted(factor, &levels),
        Some((factor, levels)) => format!("{factor} {}", levels.join(", ")),
        None => cells.first().map_or_else(|| "nothing".to_string(), |cell| cell.to_string().replace('=', " ")),
    }
}
