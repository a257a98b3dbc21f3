//! Each source's records of a card taken together, beside the two simpler ways to predict them.

use super::*;
use std::collections::BTreeMap;

const STEPS: Metric = Metric::counted("steps", "steps", "1");
const ERROR: Metric = Metric::counted("median", "median error", "1");
const NEARER: Metric = Metric::counted("nearer", "median error of PyTorch's estimate over ours", "x");
const INSIDE: Metric = Metric::counted("inside", "share inside of the band of other sources", "1");
const CONCORDANCE: Metric = Metric::counted("concordance", "pairs of models in the right order", "1");

/// Fewer steps of one card have no order.
const LEAST: usize = 3;

cell! { Records { source: Source, card: CardName, way: Way } }

/// Sources and cards that have as many records, once each.
pub fn records() -> Vec<(&'static str, &'static str)> {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for row in steps::rows() {
        *counts.entry((row.source, row.card)).or_default() += 1;
    }
    counts.into_iter().filter(|(_, count)| *count >= LEAST).map(|((source, card), _)| (kept(&source), kept(&card))).collect()
}

pub fn median(errors: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = errors.collect();
    all.sort_by(f64::total_cmp);
    let upper = all.len() / 2;
    (all[(all.len() - 1) / 2] + all[upper]) / 2.0
}

/// Of all pairs that differ in the second: the share that the first puts in the same order.
pub fn concordance(pairs: &[(f64, f64)]) -> Option<f64> {
    let orders =
        pairs.iter().enumerate().flat_map(|(at, one)| pairs[..at].iter().map(move |other| (one.0 - other.0) * (one.1 - other.1)));
    let told: Vec<f64> = orders.filter(|order| *order != 0.0).collect();
    let right = told.iter().filter(|order| **order > 0.0).count();
    (!told.is_empty()).then(|| right as f64 / told.len() as f64)
}

fn step(cell: Records, _: &Bench) -> Result<Step> {
    let mut own = steps::rows();
    own.retain(|row| row.source == cell.source.0 && row.card == cell.card.0);
    ensure!(own.len() >= LEAST, "steps.csv has no {LEAST} rows for {cell:?}");
    Ok(Step::new(move |probe| {
        let off = |way: Way| median(own.iter().map(|row| (row.by(way) / row.measured - 1.0).abs()));
        probe.emit(STEPS, own.len());
        probe.emit(ERROR, off(cell.way));
        if cell.way == Way::Rehearsal && is_step(&cell) {
            probe.emit(NEARER, off(Way::Pytorch) / off(Way::Rehearsal));
            let inside = own.iter().filter(|row| steps::nearest(row) == row.measured).count();
            probe.emit(INSIDE, inside as f64 / own.len() as f64);
        }
        if let Some(concordance) = concordance(&own.iter().map(|row| (row.by(cell.way), row.measured)).collect::<Vec<_>>()) {
            probe.emit(CONCORDANCE, concordance);
        }
        Ok(())
    }))
}

fn is_step(cell: &Records) -> bool {
    cell.source != Source("liger")
}

pub fn grid() -> Grid<Records> {
    let is_ours = |cell: &Records| cell.way == Way::Rehearsal && is_step(cell);
    let grid = Grid::new("sources", step)
        .metrics(&[STEPS, ERROR, NEARER, INSIDE, CONCORDANCE])
        .claim(
            Claim::new(
                "real-times-order",
                "this lab",
                "of two models on a card the slower one is predicted to be slower in 97 % of the pairs",
            )
            .rule(value(CONCORDANCE).of(is_ours).holds(at_least(0.97)))
            .on(FILES),
        )
        .claim(
            Claim::new("real-times-pytorch", "this lab", "the median error is a third of that of PyTorch's own estimate, or less")
                .rule(value(NEARER).of(is_ours).holds(at_least(3.0)))
                .on(FILES),
        )
        .no_plots();
    of_all(grid, records().into_iter().map(|(source, card)| Records::cross(source, card, Way::ALL)))
}
