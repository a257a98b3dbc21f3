//! Each kind of rule: which cells it compares, and what their samples say.

use super::explain::{missing, missing_ratio};
use super::outcome::{Comparison, Evidence, Outcome, Verdict, agree, fall, holds, place};
use crate::protocol::{Bound, Cell, Grid, Pass, Pick, Platform, Profile, Protocol, Rule, Share, selects};
use crate::results::{ByRound, Samples};
use crate::stats::{Interval, false_alarms, holm_levels, local_exponent, mean, mean_interval, rank_correlation, ratio_p_value};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Chance that a claim whose true effect lies on a threshold is decided by noise.
const ALPHA: f64 = 0.05;

/// The cells that a claim is judged by.
pub(super) struct Cells {
    pub protocol: &'static Protocol,
    pub profile: Profile,
    /// Those of PyTorch's twin in Python, or ours.
    pub twins: bool,
}

impl Cells {
    /// Cells that a rule selects, each with its grid.
    fn selected(&self, of: &str) -> impl Iterator<Item = (&'static Grid, Cell)> {
        let cells = self.protocol.grids(self.profile).flat_map(|grid| grid.cells().into_iter().map(move |cell| (grid, cell)));
        cells.filter(move |(_, cell)| cell.is_twin() == self.twins && selects(of, cell))
    }
}

/// Whether a part of a claim is about anything that is there. One about the caching allocator says nothing of a CPU, one about
/// `torch.load` nothing of our own readers, and the others decide. A part that the profile plans no cell for at all is one that lacks.
pub(super) fn is_about(cells: &Cells, rule: &'static Rule, device: Platform) -> bool {
    let Some(of) = rule.select() else { return true };
    let planned = cells.protocol.grids(cells.profile).flat_map(|grid| grid.cells().into_iter().map(move |cell| (grid, cell)));
    let mut selected = planned.filter(|(_, cell)| selects(of, cell)).peekable();
    selected.peek().is_none()
        || selected.any(|(grid, cell)| cell.is_twin() == cells.twins && (grid.only_on.is_empty() || grid.only_on.contains(&device)))
}

pub(super) fn weigh(planned: &Cells, rule: &'static Rule, samples: &Samples) -> Evidence {
    let mut evidence =
        Evidence { rule, verdict: Verdict::NotMeasured, comparisons: Vec::new(), out_of_scope: 0, missing: Vec::new() };
    match rule {
        Rule::Ratio { metric, of, confirm, refute, scope } => {
            ratios(planned, (metric, of), (*confirm, *refute), scope.as_ref(), samples, &mut evidence);
        }
        Rule::Value { metric, of, confirm, refute } => {
            for (_, cell) in planned.selected(of) {
                let metric = planned.protocol.metric(metric);
                match metric.and_then(|metric| samples.figure(&cell, metric, ALPHA)) {
                    Some((effect, rounds)) => {
                        let outcome = place(effect, *confirm, *refute);
                        evidence.comparisons.push(Comparison { cell, baseline: None, effect, rounds, outcome });
                    }
                    None => evidence.missing.push(missing(samples, cell)),
                }
            }
        }
        Rule::Exponent { metric, along, of, confirm, refute } => {
            let mut lines: BTreeMap<String, Vec<(f64, f64, Cell)>> = BTreeMap::new();
            for (_, cell) in planned.selected(of) {
                let x = cell.get(along).and_then(|level| level.parse::<f64>().ok());
                match (x, samples.value(&cell, metric)) {
                    (Some(x), Some(y)) => lines.entry(cell.without(&[along])).or_default().push((x, y, cell)),
                    _ => evidence.missing.push(missing(samples, cell)),
                }
            }
            for mut points in lines.into_values() {
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                if let [.., before, last] = &points[..] {
                    let effect = Interval::exact(local_exponent((before.0, last.0), (before.1, last.1)));
                    evidence.comparisons.push(Comparison {
                        cell: last.2.clone(),
                        baseline: Some(before.2.clone()),
                        effect,
                        rounds: 1,
                        outcome: place(effect, *confirm, *refute),
                    });
                }
            }
        }
        Rule::Picked { metric, pick, of, over, confirm, refute } => {
            picked(planned, metric, (*pick, of, over), (*confirm, *refute), samples, &mut evidence);
        }
        Rule::Agreement { metric, reference, of, within, .. } => {
            for (_, cell) in planned.selected(of) {
                match (samples.value(&cell, metric), samples.value(&cell, reference)) {
                    (Some(value), Some(true_value)) if true_value != 0.0 => {
                        let effect = Interval::exact(value / true_value);
                        let outcome = if holds(*within, effect.estimate) { Outcome::Confirms } else { Outcome::Refutes };
                        evidence.comparisons.push(Comparison { cell, baseline: None, effect, rounds: 1, outcome });
                    }
                    _ => evidence.missing.push(missing(samples, cell)),
                }
            }
        }
        Rule::Trend { metric, along, of, confirm, refute } => {
            trends(planned, (metric, along, of), (*confirm, *refute), samples, &mut evidence);
        }
        Rule::FalseAlarms { metric, of, rounds, at_most } => {
            alarms(planned, (metric, of), (*rounds, *at_most), samples, &mut evidence);
        }
        // Parts of parts are not a thing that a claim needs; a protocol that nests them is judged not measured.
        Rule::All(_) => {}
    }
    evidence.verdict = match rule {
        Rule::Agreement { share, .. } => agree(&evidence.comparisons, *share),
        _ => fall(&evidence.comparisons),
    };
    evidence
}

/// The rate of false alarms among cells that differ in nothing but the name of the studied level. It is decided by the estimate, and only
/// refuted where chance does not explain it.
fn alarms(
    planned: &Cells,
    (metric, of): (&str, &str),
    (rounds, at_most): (usize, f64),
    samples: &Samples,
    evidence: &mut Evidence,
) {
    let mut same: BTreeMap<String, Vec<(Cell, ByRound)>> = BTreeMap::new();
    for (grid, cell) in planned.selected(of) {
        match samples.logs_by_round(&cell, metric) {
            Some(logs) => same.entry(cell.without(&[grid.studied])).or_default().push((cell, logs)),
            None => evidence.missing.push(missing(samples, cell)),
        }
    }
    for levels in same.into_values() {
        let common: Vec<u32> =
            levels[0].1.keys().copied().filter(|round| levels.iter().all(|(_, logs)| logs.contains_key(round))).collect();
        let logs: Vec<Vec<f64>> = levels.iter().map(|(_, logs)| common.iter().map(|round| logs[round]).collect()).collect();
        let cell = levels[0].0.clone();
        match false_alarms(&logs, rounds, ALPHA) {
            Some(effect) => {
                let outcome = if effect.estimate <= at_most {
                    Outcome::Confirms
                } else if effect.low > at_most {
                    Outcome::Refutes
                } else {
                    Outcome::Straddles
                };
                evidence.comparisons.push(Comparison { cell, baseline: None, effect, rounds: common.len(), outcome });
            }
            None => evidence.missing.push((cell, format!("fewer than {rounds} rounds that all levels have, or a single level"))),
        }
    }
}

fn ratios(
    planned: &Cells,
    (name, of): (&str, &str),
    (confirm, refute): (Bound, Bound),
    scope: Option<&Share>,
    samples: &Samples,
    evidence: &mut Evidence,
) {
    let Some(metric) = planned.protocol.metric(name) else {
        return;
    };
    let mut found: Vec<(Cell, Cell, Vec<f64>)> = Vec::new();
    for (grid, cell) in planned.selected(of).filter(|(grid, _)| grid.passes.contains(&metric.pass)) {
        let baseline = grid.baseline_of(&cell);
        if cell == baseline {
            continue;
        }
        let share = |s: &Share| Some(samples.value(&baseline, s.part)? / samples.value(&baseline, s.whole)?);
        if scope.is_some_and(|s| share(s).is_some_and(|found| found < s.at_least)) {
            evidence.out_of_scope += 1;
            continue;
        }
        match samples.ratio(&cell, &baseline, metric, ALPHA) {
            Some(_) => {
                let logs = samples.log_ratios(&cell, &baseline, name);
                found.push((cell, baseline, logs));
            }
            None => evidence.missing.push(missing_ratio(samples, cell, &baseline, name)),
        }
    }
    let timed = metric.pass == Pass::Time;
    let p_value = |logs: &Vec<f64>| {
        let edge = nearest_edge(confirm, refute, mean(logs).exp());
        ratio_p_value(logs, edge).unwrap_or(1.0)
    };
    let levels = match timed {
        true => holm_levels(&found.iter().map(|(_, _, logs)| p_value(logs)).collect::<Vec<_>>(), ALPHA),
        false => vec![ALPHA; found.len()],
    };
    for ((cell, baseline, logs), level) in found.into_iter().zip(levels) {
        if let Some(effect) = samples.ratio(&cell, &baseline, metric, level) {
            let rounds = if timed { logs.len() } else { 1 };
            let outcome = place(effect, confirm, refute);
            evidence.comparisons.push(Comparison { cell, baseline: Some(baseline), effect, rounds, outcome });
        }
    }
}

/// The rank correlation of each line of cells: of counted figures exactly, of timed ones round by round with an interval. Noise only
/// weakens a correlation, so it speaks against the claim.
fn trends(
    planned: &Cells,
    (name, along, of): (&str, &str, &str),
    (confirm, refute): (Bound, Bound),
    samples: &Samples,
    evidence: &mut Evidence,
) {
    let Some(metric) = planned.protocol.metric(name) else {
        return;
    };
    let mut lines: BTreeMap<String, Vec<(f64, Cell, ByRound)>> = BTreeMap::new();
    for (grid, cell) in planned.selected(of).filter(|(grid, _)| grid.passes.contains(&metric.pass)) {
        let baseline = grid.baseline_of(&cell);
        if cell == baseline {
            continue;
        }
        let ratios = match metric.pass {
            Pass::Time => samples.log_ratios_by_round(&cell, &baseline, name),
            _ => samples.ratio(&cell, &baseline, metric, ALPHA).map(|ratio| (1, ratio.estimate)).into_iter().collect(),
        };
        match cell.get(along).and_then(|level| level.parse().ok()) {
            Some(x) if !ratios.is_empty() => lines.entry(cell.without(&[along])).or_default().push((x, cell, ratios)),
            _ => evidence.missing.push(missing_ratio(samples, cell, &baseline, name)),
        }
    }
    for mut points in lines.into_values() {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let xs: Vec<f64> = points.iter().map(|(x, ..)| *x).collect();
        let in_round = |round: &u32| points.iter().map(|(.., ratios)| ratios.get(round).copied()).collect::<Option<Vec<f64>>>();
        let rounds: Vec<f64> =
            points[0].2.keys().filter_map(in_round).map(|ys| rank_correlation(&xs, &ys)).filter(|r| !r.is_nan()).collect();
        let effect = match (metric.pass, &rounds[..]) {
            (Pass::Time, rounds) => mean_interval(rounds, ALPHA),
            (_, rounds) => rounds.first().map(|r| Interval::exact(*r)),
        };
        let Some((_, cell, _)) = points.pop() else { continue };
        match effect.filter(|_| xs.len() > 2) {
            Some(Interval { estimate, low, high }) => {
                let effect = Interval { estimate, low: low.max(-1.0), high: high.min(1.0) };
                let outcome = place(effect, confirm, refute);
                evidence.comparisons.push(Comparison { cell, baseline: None, effect, rounds: rounds.len(), outcome });
            }
            None => evidence.missing.push((cell, format!("a trend needs three levels of {along} and two rounds"))),
        }
    }
}

/// Compares one cell of each group with the best that it could have been. The intervals are widened by the number of pairs that the two were
/// picked from (Bonferroni): the luckiest and the unluckiest of several that are equal differ by luck.
fn picked(
    planned: &Cells,
    name: &str,
    (pick, of, over): (Pick, &str, &str),
    (confirm, refute): (Bound, Bound),
    samples: &Samples,
    evidence: &mut Evidence,
) {
    let Some(metric) = planned.protocol.metric(name) else {
        return;
    };
    // Candidates and references that differ in the studied factor alone.
    let mut groups: Vec<(Cell, Vec<Cell>, Vec<Cell>)> = Vec::new();
    for select in [of, over] {
        for (grid, cell) in planned.selected(select).filter(|(grid, _)| grid.passes.contains(&metric.pass)) {
            if samples.value(&cell, name).is_none() {
                if !evidence.missing.iter().any(|(known, _)| *known == cell) {
                    evidence.missing.push(missing(samples, cell));
                }
                continue;
            }
            let baseline = grid.baseline_of(&cell);
            let at = groups.iter().position(|(of_group, ..)| *of_group == baseline).unwrap_or_else(|| {
                groups.push((baseline, Vec::new(), Vec::new()));
                groups.len() - 1
            });
            let side = if select == of { &mut groups[at].1 } else { &mut groups[at].2 };
            side.push(cell);
        }
    }
    let alpha = ALPHA / groups.len().max(1) as f64;
    let highest = |cells: &[Cell]| {
        cells.iter().max_by(|a, b| samples.value(a, name).partial_cmp(&samples.value(b, name)).unwrap_or(Ordering::Equal)).cloned()
    };
    let lowest = |cells: &[Cell]| {
        cells.iter().min_by(|a, b| samples.value(a, name).partial_cmp(&samples.value(b, name)).unwrap_or(Ordering::Equal)).cloned()
    };
    for (_, candidates, references) in groups {
        let cell = if pick == Pick::Lowest { lowest(&candidates) } else { highest(&candidates) };
        let (Some(cell), Some(best)) = (cell, highest(&references)) else {
            continue;
        };
        let pairs = (candidates.len() * references.len()) as f64;
        // A cell that is itself the best is level with it.
        let effect = if cell == best { Some(Interval::exact(1.0)) } else { samples.ratio(&cell, &best, metric, alpha / pairs) };
        match effect {
            Some(effect) => {
                let rounds = if effect.is_exact() { 1 } else { samples.log_ratios(&cell, &best, name).len() };
                let outcome = place(effect, confirm, refute);
                evidence.comparisons.push(Comparison { cell, baseline: Some(best), effect, rounds, outcome });
            }
            None => evidence.missing.push(missing_ratio(samples, cell, &best, name)),
        }
    }
}

/// The number of a bound that an estimate is nearest to.
fn nearest_edge(confirm: Bound, refute: Bound, estimate: f64) -> f64 {
    let edges = [confirm, refute].into_iter().flat_map(|bound| match bound {
        Bound::AtMost(x) | Bound::AtLeast(x) => vec![x],
        Bound::Within(low, high) | Bound::Outside(low, high) => vec![low, high],
    });
    let distance = |edge: &f64| (edge.max(1e-12).ln() - estimate.ln()).abs();
    edges.min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(1.0)
}
