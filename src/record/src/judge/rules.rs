//! Each kind of rule: which cells it compares, and what their samples say.

use super::explain::{missing, missing_ratio};
use super::outcome::{Comparison, Evidence, Outcome, agree, fall, holds, place};
use crate::protocol::{Bound, Cell, Grid, Metric, Pass, Pick, Platform, Profile, Protocol, Rule, Share, selects};
use crate::results::{ByRound, Samples};
use crate::rounds::{ALPHA, Rounds, usual};
use base::stats::{
    Interval, false_alarms, holm_levels, local_exponent, mean, mean_interval, mean_p_value, rank_correlation, ratio_interval,
    share_ratio,
};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// The cells that a claim is judged by, and how they were measured.
pub(super) struct Cells<'a> {
    pub protocol: &'a Protocol,
    pub profile: Profile,
    pub rounds: &'a Rounds,
    /// What they ran on.
    pub device: Platform,
    /// Those of the PyTorch reference, or ours.
    pub references: bool,
}

impl<'a> Cells<'a> {
    /// Cells that a rule selects, each with its grid.
    fn selected(&self, of: &str) -> impl Iterator<Item = (&'a Grid, Cell)> {
        let cells = self.protocol.grids(self.profile).flat_map(|grid| grid.cells().into_iter().map(move |cell| (grid, cell)));
        cells.filter(move |(_, cell)| cell.is_reference() == self.references && selects(of, cell))
    }

    /// Those that the metric's pass is run over.
    fn measured(&self, of: &str, metric: &Metric) -> impl Iterator<Item = (&'a Grid, Cell)> {
        let pass = metric.pass;
        self.selected(of).filter(move |(grid, _)| grid.passes.contains(&pass))
    }

    /// Whether something went wrong with a cell or with what it is compared with, as opposed to not having been its turn.
    fn failed(&self, cell: &Cell, samples: &Samples) -> bool {
        let failed = |cell: &Cell| samples.status(cell).is_some_and(|(status, _)| status.is_failure());
        failed(cell) || self.protocol.grid_of(self.profile, cell).is_some_and(|grid| failed(&grid.baseline_of(cell)))
    }

    /// The intervals of several timed comparisons, each from one number a round, with the rounds behind them. Those up to the last look count,
    /// at the error rate of that look, and the rates are lowered as Holm's procedure says, so that the chance of any false decision among
    /// all of them stays at [`ALPHA`]. `edge` is the threshold that a mean is nearest to.
    fn together(&self, series: &[Vec<f64>], edge: impl Fn(f64) -> f64) -> Vec<Option<(Interval, usize)>> {
        let judged = |xs: &'_ Vec<f64>| self.rounds.judged(xs.len()).filter(|(rounds, _)| *rounds > 1);
        // A look's p value over its share of the error rate is a p value of the whole procedure.
        let p_value = |xs: &Vec<f64>| {
            let (rounds, alpha) = judged(xs)?;
            Some(mean_p_value(&xs[..rounds], edge(mean(&xs[..rounds])))? * ALPHA / alpha)
        };
        let p_values: Vec<Option<f64>> = series.iter().map(p_value).collect();
        let mut levels = holm_levels(&p_values.iter().flatten().copied().collect::<Vec<_>>(), ALPHA).into_iter();
        let mut found = Vec::new();
        for (xs, p_value) in series.iter().zip(&p_values) {
            let level = p_value.and_then(|_| levels.next());
            let interval = level
                .zip(judged(xs))
                .and_then(|(level, (rounds, alpha))| Some((mean_interval(&xs[..rounds], level * alpha / ALPHA)?, rounds)));
            found.push(interval);
        }
        found
    }
}

/// Whether a part of a claim is about anything that is there. One about the caching allocator says nothing of a CPU, one about `torch.load`
/// nothing of our own readers, one about times nothing of a simulated GPU, and the others are judged. A part that the profile plans no
/// cell for at all is one that lacks if it decides; if it only stands beside, another profile has it.
pub(super) fn is_about(cells: &Cells, rule: &Rule, decides: bool) -> bool {
    let metrics = || rule.metrics().into_iter().filter_map(|name| cells.protocol.metric(name));
    if cells.device == Platform::Dry && metrics().any(|metric| metric.pass != Pass::Memory) {
        return false;
    }
    let Some(of) = rule.select() else { return true };
    let planned = cells.protocol.grids(cells.profile).flat_map(|grid| grid.cells().into_iter().map(move |cell| (grid, cell)));
    let mut selected = planned.filter(|(_, cell)| selects(of, cell)).peekable();
    let is_there = |grid: &Grid| grid.only_on.is_empty() || grid.only_on.contains(&cells.device);
    if selected.peek().is_none() {
        return decides;
    }
    selected.any(|(grid, cell)| cell.is_reference() == cells.references && is_there(grid))
}

pub(super) fn weigh(planned: &Cells, rule: &Rule, samples: &Samples) -> Evidence {
    let mut evidence = Evidence::nothing(rule);
    match rule {
        Rule::Ratio { metric, of, confirm, refute, scope } => {
            ratios(planned, (metric, of), (*confirm, *refute), scope.as_ref(), samples, &mut evidence);
        }
        Rule::Frequency { metric, attempts, of, confirm, refute, least } => {
            frequencies(planned, (metric, attempts, of), (*confirm, *refute), *least, samples, &mut evidence);
        }
        Rule::Value { metric, of, confirm, refute } => {
            values(planned, (metric, of), (*confirm, *refute), samples, &mut evidence);
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
                    if !effect.estimate.is_finite() {
                        evidence.missing.push((last.2.clone(), "a figure of 0 has no growth".to_string()));
                        continue;
                    }
                    let outcome = place(effect, *confirm, *refute);
                    let (cell, baseline) = (last.2.clone(), Some(before.2.clone()));
                    evidence.comparisons.push(Comparison { cell, baseline, effect, rounds: 1, outcome });
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
        Rule::FalseAlarms { metric, of, at_most } => {
            alarms(planned, (metric, of), *at_most, samples, &mut evidence);
        }
        // These are taken apart before; see [`Rule::parts`].
        Rule::All(_) | Rule::Beside(_) | Rule::Changed { .. } => {}
    }
    (evidence.planned, evidence.awaited) = awaited(planned, rule, samples);
    evidence.failed = evidence.missing.iter().filter(|(cell, _)| planned.failed(cell, samples)).count();
    evidence.verdict = match rule {
        Rule::Agreement { share, .. } => agree(&evidence.comparisons, evidence.failed, *share),
        _ => fall(&evidence.comparisons, evidence.failed),
    };
    evidence
}

/// How many cells a rule is about on this platform, and how many of those, or of what they are compared with, are still to be measured.
fn awaited(planned: &Cells, rule: &Rule, samples: &Samples) -> (usize, usize) {
    let passes: BTreeSet<Pass> = rule.metrics().iter().filter_map(|name| Some(planned.protocol.metric(name)?.pass)).collect();
    let compares = matches!(rule, Rule::Ratio { .. } | Rule::Frequency { .. } | Rule::Trend { .. });
    let (mut all, mut lacking) = (0, 0);
    for grid in planned.protocol.grids(planned.profile) {
        if !grid.only_on.is_empty() && !grid.only_on.contains(&planned.device) {
            continue;
        }
        let own = passes.iter().filter(|pass| grid.passes.contains(pass)).collect::<Vec<_>>();
        let selected = grid.cells().into_iter().filter(|cell| cell.is_reference() == planned.references && rule.selects(cell));
        for cell in selected.filter(|_| !own.is_empty()) {
            let baseline = grid.baseline_of(&cell);
            if compares && (cell == baseline || is_out_of_scope(rule, &baseline, samples)) {
                continue;
            }
            let waits = |cell: &Cell| own.iter().any(|pass| samples.is_awaited(cell, **pass, planned.rounds.least_of(**pass)));
            all += 1;
            lacking += usize::from(waits(&cell) || (compares && waits(&baseline)));
        }
    }
    (all, lacking)
}

/// Whether a baseline's figures put what is compared with it out of a rule's scope.
fn is_out_of_scope(rule: &Rule, baseline: &Cell, samples: &Samples) -> bool {
    let share = |part: &str, whole: &str| Some(samples.value(baseline, part)? / samples.value(baseline, whole)?);
    match rule {
        Rule::Ratio { scope: Some(scope), .. } => share(&scope.part, &scope.whole).is_some_and(|share| share < scope.at_least),
        Rule::Frequency { metric, attempts, least, .. } => share(metric, attempts).is_some_and(|share| share < *least),
        _ => false,
    }
}

/// The rate of false positives among cells that differ in nothing but the name of the studied level, under the rounds that the profile
/// usually takes. The rate's interval decides: it lies below the bound, or above what an interval promises.
fn alarms(planned: &Cells, (metric, of): (&str, &str), at_most: f64, samples: &Samples, evidence: &mut Evidence) {
    let usual = usual(planned.profile);
    let looks: Vec<(usize, f64)> = usual.looks().iter().filter_map(|look| usual.judged(*look as usize)).collect();
    let least = looks.last().map_or(0, |(rounds, _)| *rounds);
    let mut same: BTreeMap<String, Vec<(Cell, ByRound)>> = BTreeMap::new();
    for (grid, cell) in planned.selected(of) {
        match samples.logs_by_round(&cell, metric) {
            Some(logs) => same.entry(cell.without(&[&grid.studied])).or_default().push((cell, logs)),
            None => evidence.missing.push(missing(samples, cell)),
        }
    }
    for levels in same.into_values() {
        let common: Vec<u32> =
            levels[0].1.keys().copied().filter(|round| levels.iter().all(|(_, logs)| logs.contains_key(round))).collect();
        let logs: Vec<Vec<f64>> = levels.iter().map(|(_, logs)| common.iter().map(|round| logs[round]).collect()).collect();
        let cell = levels[0].0.clone();
        match false_alarms(&logs, &looks) {
            Some(effect) => {
                let outcome = if effect.low > ALPHA {
                    Outcome::Refutes
                } else if effect.high <= at_most {
                    Outcome::Confirms
                } else {
                    Outcome::Straddles
                };
                evidence.comparisons.push(Comparison { cell, baseline: None, effect, rounds: common.len(), outcome });
            }
            None => evidence.missing.push((cell, format!("fewer than {least} rounds that all levels have, or a single level"))),
        }
    }
}

/// Takes the cells of a rule that have a baseline of their own and lie in its scope.
fn compared(
    planned: &Cells,
    (of, metric): (&str, &Metric),
    in_scope: impl Fn(&Cell) -> Option<bool>,
    evidence: &mut Evidence,
) -> Vec<(Cell, Cell)> {
    let mut found = Vec::new();
    for (grid, cell) in planned.measured(of, metric) {
        let baseline = grid.baseline_of(&cell);
        if cell == baseline {
            continue;
        }
        match in_scope(&baseline) {
            Some(false) => evidence.out_of_scope += 1,
            _ => found.push((cell, baseline)),
        }
    }
    found
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
    let in_scope = |baseline: &Cell| {
        let Some(share) = scope else { return Some(true) };
        Some(samples.value(baseline, &share.part)? / samples.value(baseline, &share.whole)? >= share.at_least)
    };
    let pairs = compared(planned, (of, metric), in_scope, evidence);
    let found: Vec<Option<(Interval, usize)>> = match metric.pass {
        Pass::Time => {
            let logs: Vec<Vec<f64>> = pairs.iter().map(|(cell, baseline)| samples.log_ratios(cell, baseline, name)).collect();
            let edge = |log: f64| nearest_edge(confirm, refute, log.exp(), |x| x.max(1e-12).ln());
            let exp = |i: Interval| Interval { estimate: i.estimate.exp(), low: i.low.exp(), high: i.high.exp() };
            planned.together(&logs, edge).into_iter().map(|found| found.map(|(log, rounds)| (exp(log), rounds))).collect()
        }
        _ => pairs.iter().map(|(cell, baseline)| Some((samples.ratio(cell, baseline, metric, ALPHA)?, 1))).collect(),
    };
    for ((cell, baseline), found) in pairs.into_iter().zip(found) {
        match found {
            Some((effect, rounds)) => {
                let outcome = place(effect, confirm, refute);
                evidence.comparisons.push(Comparison { cell, baseline: Some(baseline), effect, rounds, outcome });
            }
            None => evidence.missing.push(missing_ratio(samples, cell, &baseline, name, planned.rounds)),
        }
    }
}

/// Ratios of shares that are counts of chance: their intervals by Katz, widened by Holm.
fn frequencies(
    planned: &Cells,
    (name, attempts, of): (&str, &str, &str),
    (confirm, refute): (Bound, Bound),
    least: f64,
    samples: &Samples,
    evidence: &mut Evidence,
) {
    let Some(metric) = planned.protocol.metric(name) else {
        return;
    };
    let counts = |cell: &Cell| Some((samples.value(cell, name)?, samples.value(cell, attempts).filter(|all| *all > 0.0)?));
    let in_scope = |baseline: &Cell| counts(baseline).map(|(hits, all)| hits / all >= least);
    let mut found = Vec::new();
    for (cell, baseline) in compared(planned, (of, metric), in_scope, evidence) {
        match counts(&cell).zip(counts(&baseline)) {
            Some((own, theirs)) => found.push((cell, baseline, own, theirs)),
            None => evidence.missing.push(missing_ratio(samples, cell, &baseline, name, planned.rounds)),
        }
    }
    let p_value = |(_, _, own, theirs): &(Cell, Cell, (f64, f64), (f64, f64))| {
        let (ratio, _) = share_ratio(*own, *theirs, ALPHA, 1.0);
        share_ratio(*own, *theirs, ALPHA, nearest_edge(confirm, refute, ratio.estimate, |x| x.max(1e-12).ln()).exp()).1
    };
    let levels = holm_levels(&found.iter().map(p_value).collect::<Vec<_>>(), ALPHA);
    for ((cell, baseline, own, theirs), level) in found.into_iter().zip(levels) {
        let (effect, _) = share_ratio(own, theirs, level, 1.0);
        let outcome = place(effect, confirm, refute);
        evidence.comparisons.push(Comparison { cell, baseline: Some(baseline), effect, rounds: own.1 as usize, outcome });
    }
}

/// Figures as they are: counted ones exactly, timed ones with intervals over the rounds.
fn values(
    planned: &Cells,
    (name, of): (&str, &str),
    (confirm, refute): (Bound, Bound),
    samples: &Samples,
    evidence: &mut Evidence,
) {
    let Some(metric) = planned.protocol.metric(name) else {
        return;
    };
    let cells: Vec<Cell> = planned.selected(of).map(|(_, cell)| cell).collect();
    let found: Vec<Option<(Interval, usize)>> = match metric.pass {
        Pass::Time => {
            // A ratio is averaged as ratios are.
            let is_ratio = samples.is_ratio(name);
            let to = |x: f64| if is_ratio { x.max(1e-12).ln() } else { x };
            let from = |x: f64| if is_ratio { x.exp() } else { x };
            let rounds: Vec<Vec<f64>> =
                cells.iter().map(|cell| samples.by_round(cell, name).into_values().map(to).collect()).collect();
            let found = planned.together(&rounds, |mean| nearest_edge(confirm, refute, from(mean), to)).into_iter();
            let back = |i: Interval| Interval { estimate: from(i.estimate), low: from(i.low), high: from(i.high) };
            found.map(|found| found.map(|(interval, rounds)| (back(interval), rounds))).collect()
        }
        _ => cells.iter().map(|cell| Some((Interval::exact(samples.value(cell, name)?), 1))).collect(),
    };
    for (cell, found) in cells.into_iter().zip(found) {
        match found {
            Some((effect, rounds)) => {
                let outcome = place(effect, confirm, refute);
                evidence.comparisons.push(Comparison { cell, baseline: None, effect, rounds, outcome });
            }
            None => evidence.missing.push(missing(samples, cell)),
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
    for (cell, baseline) in compared(planned, (of, metric), |_| Some(true), evidence) {
        let ratios = match metric.pass {
            Pass::Time => samples.log_ratios_by_round(&cell, &baseline, name),
            _ => samples.ratio(&cell, &baseline, metric, ALPHA).map(|ratio| (1, ratio.estimate)).into_iter().collect(),
        };
        match cell.get(along).and_then(|level| level.parse().ok()) {
            Some(x) if !ratios.is_empty() => lines.entry(cell.without(&[along])).or_default().push((x, cell, ratios)),
            _ => evidence.missing.push(missing_ratio(samples, cell, &baseline, name, planned.rounds)),
        }
    }
    let mut series: Vec<(Cell, Vec<f64>)> = Vec::new();
    for mut points in lines.into_values() {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let xs: Vec<f64> = points.iter().map(|(x, ..)| *x).collect();
        let in_round = |round: &u32| points.iter().map(|(.., ratios)| ratios.get(round).copied()).collect::<Option<Vec<f64>>>();
        let rounds: Vec<f64> =
            points[0].2.keys().filter_map(in_round).map(|ys| rank_correlation(&xs, &ys)).filter(|r| !r.is_nan()).collect();
        let Some((_, cell, _)) = points.pop() else { continue };
        match xs.len() {
            3.. => series.push((cell, rounds)),
            _ => evidence.missing.push((cell, format!("a trend needs three levels of {along}"))),
        }
    }
    let rounds: Vec<Vec<f64>> = series.iter().map(|(_, rounds)| rounds.clone()).collect();
    let found = match metric.pass {
        Pass::Time => planned.together(&rounds, |r| nearest_edge(confirm, refute, r, |x| x)),
        _ => rounds.iter().map(|rounds| rounds.first().map(|r| (Interval::exact(*r), 1))).collect(),
    };
    for ((cell, _), found) in series.into_iter().zip(found) {
        match found {
            Some((Interval { estimate, low, high }, rounds)) => {
                let effect = Interval { estimate, low: low.max(-1.0), high: high.min(1.0) };
                let outcome = place(effect, confirm, refute);
                evidence.comparisons.push(Comparison { cell, baseline: None, effect, rounds, outcome });
            }
            None => evidence.missing.push((cell, format!("{}, so no interval", super::explain::few(planned.rounds)))),
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
        for (grid, cell) in planned.measured(select, metric) {
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
    let number = groups.len().max(1) as f64;
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
        let effect = match metric.pass {
            // A cell that is itself the best is level with it.
            _ if cell == best => Some((Interval::exact(1.0), 1)),
            Pass::Time => {
                let logs = samples.log_ratios(&cell, &best, name);
                let judged = planned.rounds.judged(logs.len());
                judged.and_then(|(rounds, alpha)| Some((ratio_interval(&logs[..rounds], alpha / number / pairs)?, rounds)))
            }
            _ => samples.ratio(&cell, &best, metric, ALPHA).map(|effect| (effect, 1)),
        };
        match effect {
            Some((effect, rounds)) => {
                let outcome = place(effect, confirm, refute);
                evidence.comparisons.push(Comparison { cell, baseline: Some(best), effect, rounds, outcome });
            }
            None => evidence.missing.push(missing_ratio(samples, cell, &best, name, planned.rounds)),
        }
    }
}

/// The number of a bound that an estimate is nearest to, on a scale, as the scale has it.
fn nearest_edge(confirm: Bound, refute: Bound, estimate: f64, scale: impl Fn(f64) -> f64) -> f64 {
    let edges = [confirm, refute].into_iter().flat_map(|bound| match bound {
        Bound::AtMost(x) | Bound::AtLeast(x) => vec![x],
        Bound::Within(low, high) | Bound::Outside(low, high) => vec![low, high],
    });
    let distance = |edge: &f64| (edge - scale(estimate)).abs();
    edges.map(&scale).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0.0)
}
