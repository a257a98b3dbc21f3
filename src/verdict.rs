//! From a protocol and its samples to a verdict for each claim.

use crate::protocol::{Bound, Cell, Claim, Grid, Metric, Pass, Pick, Platform, Profile, Protocol, Published, Rule, Share, selects};
use crate::record::{PassRecord, Status};
use crate::stats::{
    Interval, false_alarms, holm_levels, local_exponent, mean_interval, median, rank_correlation, ratio_interval, ratio_p_value,
};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Chance that a claim whose true effect lies on a threshold is decided by noise.
const ALPHA: f64 = 0.05;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Every matched comparison is beyond the threshold.
    Confirmed,
    /// Every one is on the other side.
    Refuted,
    /// Some hold and some do not.
    Depends,
    /// Intervals straddle a threshold, or effects lie between the two.
    Inconclusive,
    NotMeasured,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Verdict::Confirmed => "confirmed",
            Verdict::Refuted => "refuted",
            Verdict::Depends => "depends",
            Verdict::Inconclusive => "inconclusive",
            Verdict::NotMeasured => "not measured here",
        })
    }
}

/// Where one comparison falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    Confirms,
    Refutes,
    /// Between the two thresholds: the effect is there, and smaller than claimed.
    Between,
    /// The interval reaches over a threshold.
    Straddles,
}

/// One figure for each round.
type ByRound = BTreeMap<u32, f64>;

/// The samples of one run, by cell and metric.
#[derive(Debug, Default)]
pub struct Samples {
    /// Samples of each round, in order.
    rounds: BTreeMap<(Cell, String), BTreeMap<u32, Vec<f64>>>,
    passes: BTreeMap<Cell, BTreeMap<Pass, (Status, String)>>,
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
            if record.status != Status::Ok {
                continue;
            }
            for sample in &record.samples {
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

    /// A figure of a cell: the counted value itself, or the median over rounds of the median of each round.
    pub fn value(&self, cell: &Cell, metric: &str) -> Option<f64> {
        let rounds = self.rounds.get(&(cell.clone(), metric.to_string()))?;
        Some(median(&rounds.values().map(|samples| median(samples)).collect::<Vec<_>>()))
    }

    /// The details of a cell whose names have a prefix, by the rest of the name; see [`crate::protocol::is_detail`].
    pub fn details<'a>(&'a self, cell: &'a Cell, prefix: &'a str) -> impl Iterator<Item = (&'a str, f64)> + 'a {
        let own = self.rounds.range((cell.clone(), prefix.to_string())..);
        let own = own.take_while(move |((of, metric), _)| of == cell && metric.starts_with(prefix));
        own.filter_map(move |((_, metric), _)| Some((&metric[prefix.len()..], self.value(cell, metric)?)))
    }

    /// All samples of a metric, round by round.
    pub fn samples(&self, cell: &Cell, metric: &str) -> Vec<Vec<f64>> {
        let rounds = self.rounds.get(&(cell.clone(), metric.to_string()));
        rounds.map(|rounds| rounds.values().cloned().collect()).unwrap_or_default()
    }

    /// Log ratios of two cells measured side by side, one for each round that both have.
    pub fn log_ratios(&self, cell: &Cell, baseline: &Cell, metric: &str) -> Vec<f64> {
        self.log_ratios_by_round(cell, baseline, metric).into_values().collect()
    }

    fn log_ratios_by_round(&self, cell: &Cell, baseline: &Cell, metric: &str) -> ByRound {
        let rounds = |c: &Cell| self.rounds.get(&(c.clone(), metric.to_string()));
        let (Some(a), Some(b)) = (rounds(cell), rounds(baseline)) else {
            return BTreeMap::new();
        };
        a.iter().filter_map(|(round, xs)| Some((*round, (median(xs) / median(b.get(round)?)).ln()))).collect()
    }

    /// A cell over its baseline: exact for counted bytes, an interval at error rate `alpha` for times.
    pub fn ratio(&self, cell: &Cell, baseline: &Cell, metric: &Metric, alpha: f64) -> Option<Interval> {
        match metric.pass {
            Pass::Time => ratio_interval(&self.log_ratios(cell, baseline, metric.name), alpha),
            _ => {
                let (a, b) = (self.value(cell, metric.name)?, self.value(baseline, metric.name)?);
                (b != 0.0).then(|| Interval::exact(a / b))
            }
        }
    }

    /// exp of a weighted sum of logarithms over cells that were measured side by side; weights of 1 and -1 give the ratio of two. Exact for
    /// counted bytes, an interval at error rate `alpha` for times, over the rounds that all cells have.
    pub fn contrast(&self, weighed: &[(&Cell, f64)], metric: &Metric, alpha: f64) -> Option<Interval> {
        let sum = |value: &dyn Fn(&Cell) -> Option<f64>| {
            let terms = weighed.iter().map(|(cell, weight)| Some(weight * value(cell).filter(|v| *v > 0.0)?.ln()));
            terms.sum::<Option<f64>>()
        };
        if metric.pass != Pass::Time {
            return sum(&|cell| self.value(cell, metric.name)).map(|log| Interval::exact(log.exp()));
        }
        let rounds = |cell: &Cell| self.rounds.get(&(cell.clone(), metric.name.to_string()));
        let (first, _) = weighed.first()?;
        let logs = rounds(first)?.keys().filter_map(|round| sum(&|cell| Some(median(rounds(cell)?.get(round)?))));
        ratio_interval(&logs.collect::<Vec<_>>(), alpha)
    }

    /// A figure of a cell with the rounds behind it: exact where it was counted, an interval over the rounds where it moves.
    pub fn figure(&self, cell: &Cell, metric: &Metric, alpha: f64) -> Option<(Interval, usize)> {
        if metric.pass != Pass::Time {
            return Some((Interval::exact(self.value(cell, metric.name)?), 1));
        }
        let medians: Vec<f64> = self.samples(cell, metric.name).iter().map(|samples| median(samples)).collect();
        Some((mean_interval(&medians, alpha)?, medians.len()))
    }

    /// What became of a cell: the worst of its passes, with the reason.
    pub fn status(&self, cell: &Cell) -> Option<(Status, &str)> {
        let passes = self.passes.get(cell)?;
        passes.values().max_by_key(|(status, _)| *status).map(|(status, reason)| (*status, reason.as_str()))
    }
}

/// One cell put against a claim's thresholds.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub cell: Cell,
    /// What it was compared with, where the rule is about a ratio.
    pub baseline: Option<Cell>,
    pub effect: Interval,
    /// Rounds behind an interval; 1 for an exact figure.
    pub rounds: usize,
    pub outcome: Outcome,
}

/// What one rule found.
#[derive(Debug, Clone, PartialEq)]
pub struct Evidence {
    pub rule: &'static Rule,
    pub verdict: Verdict,
    pub comparisons: Vec<Comparison>,
    /// Cells that the rule selects and its scope leaves out.
    pub out_of_scope: usize,
    /// Cells that the rule selects and that gave no figure, with what became of them.
    pub missing: Vec<(Cell, String)>,
}

impl Evidence {
    /// Smallest and largest estimate.
    pub fn range(&self) -> Option<(f64, f64)> {
        let estimates = || self.comparisons.iter().map(|c| c.effect.estimate);
        Some((estimates().reduce(f64::min)?, estimates().reduce(f64::max)?))
    }
}

/// A claim, judged on one machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    pub claim: &'static Claim,
    /// Whose figures these are: the device's, or those that PyTorch in Python gave on it.
    pub platform: Platform,
    pub verdict: Verdict,
    /// Whether this platform's figures may carry the verdict; else they are shown, not judged.
    pub carries: bool,
    /// One for each part of the claim's rule.
    pub evidence: Vec<Evidence>,
    /// Where the claim holds, as conjunctions of levels, if the verdict is 'depends' or the claim is about a prediction.
    pub holds_where: Vec<String>,
}

impl Judgement {
    /// Whether the claim is about any cell of this platform at all.
    fn is_about_something(&self) -> bool {
        self.evidence.iter().any(|e| !e.comparisons.is_empty() || !e.missing.is_empty() || e.out_of_scope > 0)
    }
}

/// Judges every claim of a protocol from the samples of one run. Cells that PyTorch's twin in Python ran are judged apart from ours, so a
/// claim may have two judgements.
pub fn judge(protocol: &'static Protocol, profile: Profile, platform: Platform, samples: &Samples) -> Vec<Judgement> {
    let both = |claim: &'static Claim| {
        let own = judge_claim(protocol, profile, claim, (platform, platform), samples);
        let twin = judge_claim(protocol, profile, claim, (Platform::Python, platform), samples);
        match (own.is_about_something(), twin.is_about_something()) {
            (true, true) => vec![own, twin],
            (false, true) => vec![twin],
            (_, false) => vec![own],
        }
    };
    protocol.claims.iter().flat_map(both).collect()
}

/// Judges a claim by the cells of a platform; `device` is what they ran on, also where PyTorch in Python ran them.
fn judge_claim(
    protocol: &'static Protocol,
    profile: Profile,
    claim: &'static Claim,
    (platform, device): (Platform, Platform),
    samples: &Samples,
) -> Judgement {
    // A dry device has no time, so there a claim is judged by its bytes alone.
    let (evidence, parts) = weigh_parts(protocol, profile, &claim.rule, (platform, device), platform != Platform::Dry, samples);
    let verdict = combine(&parts);
    let mixed = evidence.iter().filter(|e| e.verdict == Verdict::Depends || matches!(e.rule, Rule::Agreement { .. }));
    let holds_where = mixed.flat_map(|e| holds_where(&e.comparisons)).collect();
    Judgement { claim, platform, verdict, carries: claim.judged_on.contains(&platform), evidence, holds_where }
}

/// The evidence for each part of a rule, and the verdicts of those parts that count: those that are about something that is there, and those
/// about times only where times do.
fn weigh_parts(
    protocol: &'static Protocol,
    profile: Profile,
    rule: &'static Rule,
    (platform, device): (Platform, Platform),
    times_count: bool,
    samples: &Samples,
) -> (Vec<Evidence>, Vec<Verdict>) {
    let cells = Planned { protocol, profile, twins: platform == Platform::Python };
    let evidence: Vec<Evidence> = rule.parts().iter().map(|rule| weigh(&cells, rule, samples)).collect();
    let is_timed = |e: &&Evidence| e.rule.metrics().iter().any(|m| protocol.metric(m).is_none_or(|m| m.pass == Pass::Time));
    let counts = |e: &&Evidence| is_about(&cells, e.rule, device) && (times_count || !is_timed(e));
    let parts = evidence.iter().filter(counts).map(|e| e.verdict).collect();
    (evidence, parts)
}

/// A published figure, put against one machine's.
#[derive(Debug, Clone, PartialEq)]
pub struct Reproduction {
    pub published: &'static Published,
    /// Whose figures these are: the device's, or those that PyTorch in Python gave on it.
    pub platform: Platform,
    /// `Confirmed` is reproduced, `Refuted` not reproduced, `Depends` reproduced in part.
    pub verdict: Verdict,
    /// Whether this platform's figures can be put against the published one at all; else they are shown.
    pub comparable: bool,
    /// One for each part of the figure's rule; none where it has no rule.
    pub evidence: Vec<Evidence>,
}

/// Puts one run's figures against those that others published. Times were published of GPUs, so only a GPU's are put against them.
pub fn reproduce(protocol: &'static Protocol, profile: Profile, device: Platform, samples: &Samples) -> Vec<Reproduction> {
    let on = |published: &'static Published, platform| {
        let (evidence, parts) = match &published.rule {
            Some(rule) => weigh_parts(protocol, profile, rule, (platform, device), device == Platform::Gpu, samples),
            None => Default::default(),
        };
        let comparable = published.judged_on.contains(&platform) && !parts.is_empty();
        Reproduction { published, platform, verdict: reproduced(&parts), comparable, evidence }
    };
    let both = |published| {
        let (own, twin) = (on(published, device), on(published, Platform::Python));
        let has_figures = |r: &Reproduction| r.evidence.iter().any(|e| !e.comparisons.is_empty());
        match (has_figures(&own), has_figures(&twin)) {
            (true, true) => vec![own, twin],
            (false, true) => vec![twin],
            (_, false) => vec![own],
        }
    };
    protocol.published.iter().flat_map(both).collect()
}

/// The verdict on a published table: a part that does not come out leaves the others reproduced.
fn reproduced(parts: &[Verdict]) -> Verdict {
    let all = |v| parts.iter().all(|part| *part == v);
    let any = |v| parts.contains(&v);
    if all(Verdict::NotMeasured) {
        Verdict::NotMeasured
    } else if all(Verdict::Confirmed) {
        Verdict::Confirmed
    } else if all(Verdict::Refuted) {
        Verdict::Refuted
    } else if any(Verdict::Confirmed) || any(Verdict::Depends) {
        Verdict::Depends
    } else {
        Verdict::Inconclusive
    }
}

/// The cells that a claim is judged by.
struct Planned {
    protocol: &'static Protocol,
    profile: Profile,
    /// Those of PyTorch's twin in Python, or ours.
    twins: bool,
}

impl Planned {
    /// Cells that a rule selects, each with its grid.
    fn selected(&self, of: &str) -> impl Iterator<Item = (&'static Grid, Cell)> {
        let cells = self.protocol.grids(self.profile).flat_map(|grid| grid.cells().into_iter().map(move |cell| (grid, cell)));
        cells.filter(move |(_, cell)| cell.is_twin() == self.twins && selects(of, cell))
    }
}

/// Whether a part of a claim is about anything that is there. One about the caching allocator says nothing of a CPU, one about
/// `torch.load` nothing of our own readers, and the others decide. A part that the profile plans no cell for at all is one that lacks.
fn is_about(cells: &Planned, rule: &'static Rule, device: Platform) -> bool {
    let Some(of) = rule.select() else { return true };
    let planned = cells.protocol.grids(cells.profile).flat_map(|grid| grid.cells().into_iter().map(move |cell| (grid, cell)));
    let mut selected = planned.filter(|(_, cell)| selects(of, cell)).peekable();
    selected.peek().is_none()
        || selected.any(|(grid, cell)| cell.is_twin() == cells.twins && (grid.only_on.is_empty() || grid.only_on.contains(&device)))
}

/// The verdict on a claim whose parts must all hold.
fn combine(parts: &[Verdict]) -> Verdict {
    let any = |v| parts.contains(&v);
    if parts.is_empty() || parts.iter().all(|v| *v == Verdict::NotMeasured) {
        Verdict::NotMeasured
    } else if any(Verdict::Refuted) {
        Verdict::Refuted
    } else if any(Verdict::Inconclusive) || any(Verdict::NotMeasured) {
        Verdict::Inconclusive
    } else if any(Verdict::Depends) {
        Verdict::Depends
    } else {
        Verdict::Confirmed
    }
}

/// The verdict of matched comparisons.
fn fall(comparisons: &[Comparison]) -> Verdict {
    let outcomes: BTreeSet<Outcome> = comparisons.iter().map(|c| c.outcome).collect();
    let has = |o| outcomes.contains(&o);
    if outcomes.is_empty() {
        Verdict::NotMeasured
    } else if has(Outcome::Confirms) && outcomes.len() == 1 {
        Verdict::Confirmed
    } else if has(Outcome::Refutes) && outcomes.len() == 1 {
        Verdict::Refuted
    } else if has(Outcome::Confirms) && (has(Outcome::Refutes) || (has(Outcome::Between) && !has(Outcome::Straddles))) {
        Verdict::Depends
    } else {
        Verdict::Inconclusive
    }
}

fn holds(bound: Bound, x: f64) -> bool {
    match bound {
        Bound::AtMost(limit) => x <= limit,
        Bound::AtLeast(limit) => x >= limit,
        Bound::Within(low, high) => (low..=high).contains(&x),
        Bound::Outside(low, high) => x < low || x > high,
    }
}

/// Whether every value of the interval satisfies the bound.
fn contains(bound: Bound, interval: Interval) -> bool {
    match bound {
        Bound::Outside(low, high) => interval.high < low || interval.low > high,
        _ => holds(bound, interval.low) && holds(bound, interval.high),
    }
}

/// Whether some value of the interval satisfies the bound.
fn touches(bound: Bound, interval: Interval) -> bool {
    match bound {
        Bound::AtMost(limit) => interval.low <= limit,
        Bound::AtLeast(limit) => interval.high >= limit,
        Bound::Within(low, high) => interval.low <= high && interval.high >= low,
        Bound::Outside(low, high) => interval.low < low || interval.high > high,
    }
}

fn place(effect: Interval, confirm: Bound, refute: Bound) -> Outcome {
    if contains(confirm, effect) {
        Outcome::Confirms
    } else if contains(refute, effect) {
        Outcome::Refutes
    } else if touches(confirm, effect) || touches(refute, effect) {
        Outcome::Straddles
    } else {
        Outcome::Between
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

fn weigh(planned: &Planned, rule: &'static Rule, samples: &Samples) -> Evidence {
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
    planned: &Planned,
    (metric, of): (&str, &str),
    (rounds, at_most): (usize, f64),
    samples: &Samples,
    evidence: &mut Evidence,
) {
    let mut same: BTreeMap<String, Vec<(Cell, ByRound)>> = BTreeMap::new();
    for (grid, cell) in planned.selected(of) {
        let of_rounds = samples.rounds.get(&(cell.clone(), metric.to_string()));
        match of_rounds {
            Some(of_rounds) => {
                let logs = of_rounds.iter().map(|(round, samples)| (*round, median(samples).ln())).collect();
                same.entry(cell.without(&[grid.studied])).or_default().push((cell, logs));
            }
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

/// The verdict of a prediction that has to be right in a share of its cells: there is nothing between.
fn agree(comparisons: &[Comparison], share: f64) -> Verdict {
    let right = comparisons.iter().filter(|c| c.outcome == Outcome::Confirms).count();
    match comparisons.len() {
        0 => Verdict::NotMeasured,
        all if right as f64 >= share * all as f64 => Verdict::Confirmed,
        _ => Verdict::Refuted,
    }
}

fn ratios(
    planned: &Planned,
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
        let edge = nearest_edge(confirm, refute, crate::stats::mean(logs).exp());
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
    planned: &Planned,
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
    planned: &Planned,
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

/// Why two cells have no ratio: one has no figure, or there are too few rounds of them.
fn missing_ratio(samples: &Samples, cell: Cell, baseline: &Cell, metric: &str) -> (Cell, String) {
    match (samples.value(&cell, metric), samples.value(baseline, metric)) {
        (None, _) => missing(samples, cell),
        (Some(_), None) => {
            let (_, why) = missing(samples, baseline.clone());
            (cell, format!("its baseline has no figure: {why}"))
        }
        (Some(_), Some(0.0)) => (cell, "its baseline is 0".to_string()),
        (Some(_), Some(_)) => (cell, "fewer than two rounds, so no interval".to_string()),
    }
}

fn missing(samples: &Samples, cell: Cell) -> (Cell, String) {
    let what = match samples.status(&cell) {
        Some((Status::Ok, _)) => "this pass was not run".to_string(),
        Some((status, "")) => status.to_string(),
        Some((status, reason)) => format!("{status}: {reason}"),
        None => "not run".to_string(),
    };
    (cell, what)
}

/// Where comparisons hold, as conjunctions of levels: the leaves of a greedy decision tree over the factors that vary. Levels that
/// end in the same leaf are joined, `recipe=add reduction=sum|none`.
fn holds_where(comparisons: &[Comparison]) -> Vec<String> {
    let all: Vec<&Comparison> = comparisons.iter().collect();
    let mut paths = Vec::new();
    split(&all, &mut Vec::new(), &mut paths);
    paths
}

fn split(comparisons: &[&Comparison], path: &mut Vec<String>, paths: &mut Vec<String>) {
    let held = comparisons.iter().filter(|c| c.outcome == Outcome::Confirms).count();
    if held == 0 {
        return;
    }
    let factors: Vec<&str> = comparisons.first().map_or(Vec::new(), |c| c.cell.levels().iter().map(|(f, _)| f.as_str()).collect());
    let by_level = |factor: &str| {
        let mut levels: Vec<(String, Vec<&Comparison>)> = Vec::new();
        for c in comparisons {
            let level = c.cell.get(factor).unwrap_or("").to_string();
            match levels.iter_mut().find(|(l, _)| *l == level) {
                Some((_, group)) => group.push(c),
                None => levels.push((level, vec![c])),
            }
        }
        levels
    };
    // The factor that leaves the least mixed groups, by Gini's measure; the first of equals. (The count of those in the minority
    // would not tell a factor that says nothing from one that sets half of the others apart.)
    let impurity = |factor: &str| -> f64 {
        let mixed = |group: &Vec<&Comparison>| {
            let held = group.iter().filter(|c| c.outcome == Outcome::Confirms).count();
            (held * (group.len() - held)) as f64 / group.len() as f64
        };
        by_level(factor).iter().map(|(_, group)| mixed(group)).sum()
    };
    let best = factors.into_iter().filter(|f| by_level(f).len() > 1).min_by(|a, b| impurity(a).total_cmp(&impurity(b)));
    let Some(factor) = best.filter(|_| held < comparisons.len()) else {
        if held == comparisons.len() {
            paths.push(path.join(" "));
        }
        return;
    };
    let levels = by_level(factor);
    let pure = |group: &Vec<&Comparison>| group.iter().all(|c| c.outcome == Outcome::Confirms);
    let joined: Vec<&str> = levels.iter().filter(|(_, group)| pure(group)).map(|(level, _)| level.as_str()).collect();
    if !joined.is_empty() {
        path.push(format!("{factor}={}", joined.join("|")));
        paths.push(path.join(" "));
        path.pop();
    }
    for (level, group) in levels.iter().filter(|(_, group)| !pure(group)) {
        path.push(format!("{factor}={level}"));
        split(group, path, paths);
        path.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::*;
    use crate::record::Sample;

    const MEANING: Meaning = Meaning { confirmed: "", refuted: "", depends: "", inconclusive: "" };

    const PROTOCOL: Protocol = Protocol {
        name: "x",
        title: "",
        question: "",
        hypothesis: "",
        factors: &[],
        grids: &[Grid {
            name: "memory",
            profiles: &[Profile::Quick],
            studied: "k",
            axes: &[axis("model", &["mlp", "gpt"]), axis("depth", &["8", "16", "32"]), axis("k", &["1", "4"])],
            passes: &[Pass::Memory, Pass::Time],
            only_on: &[],
        }],
        metrics: &[PEAK, ACTIVATIONS, TIME],
        checks: &[],
        claims: &[
            Claim {
                id: "less",
                from: "",
                text: "",
                judged_on: &[Platform::Cpu],
                rule: Rule::Ratio {
                    metric: "requested_peak",
                    of: "k=4",
                    confirm: Bound::AtMost(0.6),
                    refute: Bound::AtLeast(0.9),
                    scope: Some(Share { part: "activations", whole: "requested_peak", at_least: 0.5 }),
                },
                meaning: MEANING,
            },
            Claim {
                id: "fast",
                from: "",
                text: "",
                judged_on: &[Platform::Gpu],
                rule: Rule::Ratio {
                    metric: "time",
                    of: "k=4",
                    confirm: Bound::AtMost(1.5),
                    refute: Bound::AtLeast(1.5),
                    scope: None,
                },
                meaning: MEANING,
            },
            Claim {
                id: "grows",
                from: "",
                text: "",
                judged_on: &[Platform::Cpu],
                rule: Rule::Exponent {
                    metric: "requested_peak",
                    along: "depth",
                    of: "k=1",
                    confirm: Bound::Within(0.9, 1.1),
                    refute: Bound::AtMost(0.8),
                },
                meaning: MEANING,
            },
        ],
        published: &[],
        plots: &[],
        threats: &[],
    };

    fn pass(cell: &Cell, pass: Pass, round: u32, figures: &[(&str, f64)]) -> PassRecord {
        let sample = |(metric, value): &(&str, f64)| Sample {
            metric: metric.to_string(),
            unit: "B".into(),
            value: *value,
            sample: 0,
            reason: String::new(),
        };
        PassRecord {
            cell: cell.clone(),
            pass,
            round,
            status: Status::Ok,
            reason: String::new(),
            seconds: None,
            samples: figures.iter().map(sample).collect(),
        }
    }

    /// Judges one claim with peaks, activation shares and times given by cell.
    fn judged(id: &str, peak: impl Fn(&Cell) -> f64, share: impl Fn(&Cell) -> f64, time: impl Fn(&Cell, u32) -> f64) -> Judgement {
        let mut records = Vec::new();
        for cell in PROTOCOL.grids[0].cells() {
            let p = peak(&cell);
            records.push(pass(&cell, Pass::Memory, 1, &[("requested_peak", p), ("activations", p * share(&cell))]));
            records.extend((1..=6).map(|round| pass(&cell, Pass::Time, round, &[("time", time(&cell, round))])));
        }
        let samples = Samples::new(&records);
        judge(&PROTOCOL, Profile::Quick, Platform::Cpu, &samples).into_iter().find(|j| j.claim.id == id).unwrap()
    }

    fn is(cell: &Cell, select: &str) -> bool {
        selects(select, cell)
    }

    #[test]
    fn a_contrast_averages_over_what_else_varies() {
        let metric = |pass| Metric { name: "y", label: "", unit: "", pass };
        let cells: Vec<Cell> = ["with=none", "with=a", "with=b", "with=a+b"].map(|text| Cell::parse(text).unwrap()).into();
        // a halves; with b beside it, it leaves three quarters.
        let values = [(8.0, 0), (4.0, 1), (2.0, 2), (1.5, 3)];
        let in_rounds = |pass, drift: f64| -> Samples {
            let of_round = |round: u32| {
                values.map(|(y, n)| super::tests::pass(&cells[n], pass, round, &[("y", y * (1.0 + drift * f64::from(round)))]))
            };
            Samples::new(&(1..=3).flat_map(of_round).collect::<Vec<_>>())
        };
        let main: Vec<(&Cell, f64)> = cells.iter().zip([-0.5, 0.5, -0.5, 0.5]).collect();
        let both: Vec<(&Cell, f64)> = cells.iter().zip([1.0, -1.0, -1.0, 1.0]).collect();
        let counted = in_rounds(Pass::Memory, 0.0);
        let effect = |samples: &Samples, weighed: &[(&Cell, f64)], pass| samples.contrast(weighed, &metric(pass), 0.05).unwrap();
        assert!((effect(&counted, &main, Pass::Memory).estimate - (0.5f64 * 0.75).sqrt()).abs() < 1e-12);
        assert!((effect(&counted, &both, Pass::Memory).estimate - 1.5).abs() < 1e-12);
        // What slows a whole round down is in no contrast.
        let timed = effect(&in_rounds(Pass::Time, 0.3), &both, Pass::Time);
        assert!((timed.low - 1.5).abs() < 1e-9 && (timed.high - 1.5).abs() < 1e-9, "{timed:?}");
        let missing = Cell::parse("with=c").unwrap();
        assert_eq!(counted.contrast(&[(&missing, 1.0)], &metric(Pass::Memory), 0.05), None);
    }

    #[test]
    fn exact_bytes_fall_by_threshold_and_scope() {
        let with = |ratio: f64| judged("less", |c| if is(c, "k=4") { 100.0 * ratio } else { 100.0 }, |_| 0.7, |_, _| 1.0);
        assert_eq!(with(0.60).verdict, Verdict::Confirmed);
        assert_eq!(with(0.90).verdict, Verdict::Refuted);
        assert_eq!(with(0.75).verdict, Verdict::Inconclusive, "between the thresholds");
        let none = judged("less", |_| 100.0, |_| 0.4, |_, _| 1.0);
        assert_eq!((none.verdict, none.evidence[0].out_of_scope), (Verdict::NotMeasured, 6));
    }

    #[test]
    fn depends_names_where_it_holds() {
        let peak = |c: &Cell| {
            if is(c, "k=4 model=gpt depth=8|32") || is(c, "k=4 model=mlp depth=8") { 50.0 } else { 100.0 }
        };
        let j = judged("less", peak, |_| 0.7, |_, _| 1.0);
        assert_eq!(j.verdict, Verdict::Depends);
        assert_eq!(j.holds_where, ["depth=8", "depth=32 model=gpt"]);
    }

    #[test]
    fn times_need_their_interval_beyond_the_threshold() {
        let noisy = |effect: f64, noise: f64| {
            judged(
                "fast",
                |_| 1.0,
                |_| 1.0,
                move |c, round| {
                    let wobble = 1.0 + noise * f64::from(round % 3);
                    if is(c, "k=4") { effect * wobble } else { 1.0 }
                },
            )
        };
        assert_eq!(noisy(1.2, 0.01).verdict, Verdict::Confirmed);
        assert_eq!(noisy(1.9, 0.01).verdict, Verdict::Refuted);
        assert_eq!(noisy(1.4, 0.2).verdict, Verdict::Inconclusive);
        let j = noisy(1.2, 0.01);
        assert!(!j.carries, "the claim is about GPUs");
        assert!(j.evidence[0].comparisons.iter().all(|c| c.rounds == 6 && c.effect.low < c.effect.high));
    }

    #[test]
    fn exponents_come_from_the_two_largest_levels() {
        let depth = |c: &Cell| c.get("depth").unwrap().parse::<f64>().unwrap();
        let j = judged("grows", |c| if depth(c) < 16.0 { 1000.0 } else { depth(c) }, |_| 1.0, |_, _| 1.0);
        assert_eq!(j.verdict, Verdict::Confirmed);
        let j = judged("grows", |c| depth(c).sqrt(), |_| 1.0, |_, _| 1.0);
        assert_eq!(j.verdict, Verdict::Refuted);
        assert!((j.evidence[0].comparisons[0].effect.estimate - 0.5).abs() < 1e-9);
    }

    const TREND: Protocol = Protocol {
        claims: &[Claim {
            id: "trend",
            from: "",
            text: "",
            judged_on: &[Platform::Cpu],
            rule: Rule::Trend {
                metric: "time",
                along: "depth",
                of: "model=gpt",
                confirm: Bound::AtLeast(0.8),
                refute: Bound::AtMost(0.8),
            },
            meaning: MEANING,
        }],
        ..PROTOCOL
    };

    /// Judges the trend of the ratio of k=4 to k=1 over the depths, given by depth and round.
    fn trend(ratio: impl Fn(f64, u32) -> f64) -> Judgement {
        let mut records = Vec::new();
        for cell in PROTOCOL.grids[0].cells() {
            let depth = cell.get("depth").unwrap().parse().unwrap();
            let time = |round| if is(&cell, "k=4") { ratio(depth, round) } else { 1.0 };
            records.extend((1..=6).map(|round| pass(&cell, Pass::Time, round, &[("time", time(round))])));
        }
        judge(&TREND, Profile::Quick, Platform::Cpu, &Samples::new(&records)).remove(0)
    }

    #[test]
    fn a_trend_is_the_rank_correlation_of_the_effect() {
        let grows = trend(|depth, _| 1.0 + depth);
        assert_eq!(grows.verdict, Verdict::Confirmed);
        let found = &grows.evidence[0].comparisons;
        assert_eq!((found.len(), found[0].effect.estimate, found[0].rounds), (1, 1.0, 6));
        assert_eq!(found[0].cell.get("depth"), Some("32"));
        assert_eq!(trend(|depth, _| 1.0 / depth).verdict, Verdict::Refuted);
        let noisy = trend(|depth, round| if round % 3 == 0 { 1.0 / depth } else { depth });
        assert_eq!(noisy.verdict, Verdict::Inconclusive, "{:?}", noisy.evidence[0].comparisons);
        assert_eq!(trend(|_, _| 1.0).verdict, Verdict::NotMeasured, "equal ratios have no order");
    }

    #[test]
    fn invalid_cells_carry_nothing_and_missing_ones_say_why() {
        let cell = Cell::parse("model=mlp depth=8 k=4").unwrap();
        let mut broken = pass(&cell, Pass::Check, 1, &[]);
        broken.status = Status::Invalid;
        broken.reason = "gradients differ".into();
        let base = cell.with("k", "1");
        let records = [
            pass(&base, Pass::Memory, 1, &[("requested_peak", 9.0)]),
            pass(&cell, Pass::Memory, 1, &[("requested_peak", 1.0)]),
            broken,
        ];
        let samples = Samples::new(&records);
        assert_eq!(samples.value(&cell, "requested_peak"), None);
        let j = judge(&PROTOCOL, Profile::Quick, Platform::Cpu, &samples);
        assert_eq!(j[0].verdict, Verdict::NotMeasured);
        assert!(j[0].evidence[0].missing.contains(&(cell, "invalid: gradients differ".to_string())));
    }

    #[test]
    fn a_prediction_has_to_be_right_in_its_share_of_cells() {
        let comparison = |outcome| Comparison {
            cell: Cell::parse("k=1").unwrap(),
            baseline: None,
            effect: Interval::exact(1.0),
            rounds: 1,
            outcome,
        };
        let of = |right: usize, wrong: usize| {
            let right = std::iter::repeat_n(comparison(Outcome::Confirms), right);
            agree(&right.chain(std::iter::repeat_n(comparison(Outcome::Refutes), wrong)).collect::<Vec<_>>(), 0.9)
        };
        assert_eq!((of(9, 1), of(17, 3), of(0, 0)), (Verdict::Confirmed, Verdict::Refuted, Verdict::NotMeasured));
    }

    #[test]
    fn a_part_about_what_a_platform_lacks_does_not_count_there() {
        const fn at_most_one(of: &'static str) -> Rule {
            Rule::Value { metric: "requested_peak", of, confirm: Bound::AtMost(1.0), refute: Bound::AtLeast(2.0) }
        }
        const fn grid(axes: &'static [Axis], only_on: &'static [Platform]) -> Grid {
            Grid { name: "", profiles: &[Profile::Quick], studied: "moment", axes, passes: &[Pass::Memory], only_on }
        }
        const HALVES: Protocol = Protocol {
            grids: &[
                grid(&[axis("moment", &["before", "dropped"])], &[]),
                grid(&[axis("moment", &["emptied", "later"])], &[Platform::Gpu]),
            ],
            claims: &[Claim {
                id: "two-parts",
                from: "",
                text: "",
                judged_on: &[Platform::Cpu],
                rule: Rule::All(&[at_most_one("moment=dropped"), at_most_one("moment=emptied")]),
                meaning: MEANING,
            }],
            ..PROTOCOL
        };
        let records = [pass(&Cell::parse("moment=dropped").unwrap(), Pass::Memory, 1, &[("requested_peak", 0.5)])];
        let on = |platform| judge(&HALVES, Profile::Quick, platform, &Samples::new(&records))[0].verdict;
        assert_eq!((on(Platform::Cpu), on(Platform::Gpu)), (Verdict::Confirmed, Verdict::Inconclusive));
    }

    #[test]
    fn a_claim_of_several_parts_needs_them_all() {
        use Verdict::*;
        assert_eq!(combine(&[Confirmed, Confirmed]), Confirmed);
        assert_eq!(combine(&[Confirmed, Refuted]), Refuted);
        assert_eq!(combine(&[Confirmed, NotMeasured]), Inconclusive);
        assert_eq!(combine(&[Depends, Confirmed]), Depends);
        assert_eq!(combine(&[NotMeasured]), NotMeasured);
    }

    const PUBLISHED: Protocol = Protocol {
        published: &[
            Published {
                id: "table",
                source: "",
                figure: "",
                judged_on: &[Platform::Cpu, Platform::Gpu],
                rule: Some(Rule::All(&[
                    published_ratio(&PEAK, "model=mlp depth=8 k=4", 0.5),
                    published_ratio(&TIME, "model=mlp depth=8 k=4", 1.2),
                ])),
                setup: "",
            },
            Published { id: "nowhere", source: "", figure: "", judged_on: &[Platform::Cpu], rule: None, setup: "no such data" },
        ],
        ..PROTOCOL
    };

    #[test]
    fn a_published_figure_is_reproduced_within_a_tenth_and_a_table_in_parts() {
        let found = |peak: f64, time: f64, platform| {
            let cell = |k: &str| Cell::parse(&format!("model=mlp depth=8 k={k}")).unwrap();
            let mut records = vec![
                pass(&cell("1"), Pass::Memory, 1, &[("requested_peak", 100.0)]),
                pass(&cell("4"), Pass::Memory, 1, &[("requested_peak", peak)]),
            ];
            for round in 1..=6 {
                let wobble = 1.0 + 1e-3 * f64::from(round);
                records.push(pass(&cell("1"), Pass::Time, round, &[("time", 1.0)]));
                records.push(pass(&cell("4"), Pass::Time, round, &[("time", time * wobble)]));
            }
            let mut all = reproduce(&PUBLISHED, Profile::Quick, platform, &Samples::new(&records));
            (all.remove(0), all.remove(0))
        };
        let verdict = |peak, time| found(peak, time, Platform::Gpu).0.verdict;
        assert_eq!(verdict(46.0, 1.3), Verdict::Confirmed);
        assert_eq!(verdict(46.0, 1.5), Verdict::Depends, "one part of two");
        assert_eq!(verdict(44.0, 0.9), Verdict::Refuted, "too small is as wrong as too large");
        let (table, nowhere) = found(50.0, 9.9, Platform::Dry);
        assert_eq!((table.verdict, table.comparable), (Verdict::Confirmed, false), "nobody compares a dry device here");
        let (table, _) = found(50.0, 9.9, Platform::Cpu);
        assert_eq!((table.verdict, table.comparable), (Verdict::Confirmed, true), "a CPU's time is put against nobody's");
        assert_eq!((nowhere.verdict, nowhere.comparable), (Verdict::NotMeasured, false));
    }

    #[test]
    fn an_interval_around_a_range_is_not_outside_it() {
        let wide = Interval { estimate: 1.0, low: 0.5, high: 1.5 };
        assert_eq!(place(wide, Bound::Within(0.9, 1.1), Bound::Outside(0.9, 1.1)), Outcome::Straddles);
        let beside = Interval { estimate: 1.3, low: 1.2, high: 1.5 };
        assert_eq!(place(beside, Bound::Within(0.9, 1.1), Bound::Outside(0.9, 1.1)), Outcome::Refutes);
    }

    const ALIKE: Protocol = Protocol {
        grids: &[Grid {
            name: "one level",
            profiles: &[Profile::Quick],
            studied: "name",
            axes: &[axis("name", &["a", "b", "c", "d"])],
            passes: &[Pass::Time],
            only_on: &[],
        }],
        claims: &[Claim {
            id: "same-level",
            from: "",
            text: "",
            judged_on: &[Platform::Cpu],
            rule: Rule::FalseAlarms { metric: "time", of: "", rounds: 5, at_most: 0.05 },
            meaning: MEANING,
        }],
        ..PROTOCOL
    };

    #[test]
    fn a_name_that_is_always_slower_raises_false_alarms() {
        let judged = |rounds: u32, slower: f64| {
            let mut records = Vec::new();
            for round in 1..=rounds {
                for (n, name) in ["a", "b", "c", "d"].iter().enumerate() {
                    // Scattered over 0 to 1 and the same every time.
                    let mixed = (round * 4 + n as u32).wrapping_mul(0x9E37_79B1);
                    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x85EB_CA77);
                    let noise = f64::from((mixed ^ (mixed >> 13)) >> 8) / f64::from(1 << 24);
                    let time = 1.0 + 0.1 * noise + if *name == "a" { slower } else { 0.0 };
                    let cell = Cell::parse(&format!("name={name}")).unwrap();
                    records.push(pass(&cell, Pass::Time, round, &[("time", time)]));
                }
            }
            judge(&ALIKE, Profile::Quick, Platform::Cpu, &Samples::new(&records)).remove(0)
        };
        let alike = judged(20, 0.0);
        assert_eq!(alike.verdict, Verdict::Confirmed, "{:?}", alike.evidence[0].comparisons);
        let biased = judged(20, 0.5);
        assert_eq!(biased.verdict, Verdict::Refuted);
        let rate = biased.evidence[0].comparisons[0].effect;
        assert!((0.45..0.6).contains(&rate.estimate) && rate.low > 0.05, "half of the pairs have the slow one: {rate:?}");
        assert_eq!(judged(4, 0.0).verdict, Verdict::NotMeasured, "too few rounds");
    }

    const TWINS: Protocol = Protocol {
        grids: &[Grid {
            name: "twins",
            profiles: &[Profile::Quick],
            studied: "k",
            axes: &[axis("by", &["vramlab", "pytorch"]), axis("k", &["1", "4"])],
            passes: &[Pass::Time],
            only_on: &[],
        }],
        claims: &[
            Claim {
                id: "both",
                from: "",
                text: "",
                judged_on: &[Platform::Cpu, Platform::Python],
                rule: Rule::Ratio {
                    metric: "time",
                    of: "k=4",
                    confirm: Bound::AtMost(0.9),
                    refute: Bound::AtLeast(1.1),
                    scope: None,
                },
                meaning: MEANING,
            },
            Claim {
                id: "python",
                from: "",
                text: "",
                judged_on: &[Platform::Python],
                rule: Rule::Value {
                    metric: "time",
                    of: "by=pytorch k=1",
                    confirm: Bound::AtLeast(1.5),
                    refute: Bound::AtMost(1.5),
                },
                meaning: MEANING,
            },
        ],
        ..PROTOCOL
    };

    #[test]
    fn twins_are_judged_apart() {
        let times = [("vramlab", "1", 2.0), ("vramlab", "4", 1.0), ("pytorch", "1", 2.0), ("pytorch", "4", 4.0)];
        let records: Vec<PassRecord> = times
            .iter()
            .flat_map(|(by, k, time)| {
                (1..=5).map(move |round| {
                    let sample = crate::record::Sample {
                        metric: "time".into(),
                        unit: "s".into(),
                        value: time * (1.0 + f64::from(round) * 1e-3),
                        sample: 0,
                        reason: String::new(),
                    };
                    PassRecord {
                        cell: Cell::parse(&format!("by={by} k={k}")).unwrap(),
                        pass: Pass::Time,
                        round,
                        status: Status::Ok,
                        reason: String::new(),
                        seconds: None,
                        samples: vec![sample],
                    }
                })
            })
            .collect();
        let judged = judge(&TWINS, Profile::Quick, Platform::Cpu, &Samples::new(&records));
        let found: Vec<_> = judged.iter().map(|j| (j.claim.id, j.platform, j.verdict, j.carries)).collect();
        assert_eq!(
            found,
            [
                ("both", Platform::Cpu, Verdict::Confirmed, true),
                ("both", Platform::Python, Verdict::Refuted, true),
                ("python", Platform::Python, Verdict::Confirmed, true),
            ]
        );
        let value = &judged[2].evidence[0].comparisons[0];
        assert!(value.rounds == 5 && value.effect.low < 2.006 && 2.006 < value.effect.high, "an interval over rounds: {value:?}");
    }

    const COUNTS: Protocol = Protocol {
        grids: &[Grid {
            name: "workers",
            profiles: &[Profile::Quick],
            studied: "workers",
            axes: &[axis("transform", &["light", "heavy"]), axis("workers", &["0", "1x", "2x", "4x"])],
            passes: &[Pass::Time],
            only_on: &[],
        }],
        metrics: &[Metric { name: "rate", label: "images/s", unit: "1", pass: Pass::Time }],
        claims: &[
            Claim {
                id: "some-worse",
                from: "",
                text: "",
                judged_on: &[Platform::Cpu],
                rule: Rule::Picked {
                    metric: "rate",
                    pick: Pick::Lowest,
                    of: "workers=2x|4x",
                    over: "",
                    confirm: Bound::AtMost(0.95),
                    refute: Bound::AtLeast(0.98),
                },
                meaning: MEANING,
            },
            Claim {
                id: "best-better",
                from: "",
                text: "",
                judged_on: &[Platform::Cpu],
                rule: Rule::Picked {
                    metric: "rate",
                    pick: Pick::Highest,
                    of: "workers=2x|4x",
                    over: "workers=1x",
                    confirm: Bound::AtLeast(1.05),
                    refute: Bound::AtMost(1.02),
                },
                meaning: MEANING,
            },
        ],
        ..PROTOCOL
    };

    /// Both claims about worker counts, from images per second at 0, 1x, 2x and 4x.
    fn counted_workers(rates: fn(&str) -> [f64; 4], spread: f64) -> Vec<Judgement> {
        let mut records = Vec::new();
        for cell in COUNTS.grids[0].cells() {
            let at = ["0", "1x", "2x", "4x"].iter().position(|level| cell.get("workers") == Some(level)).unwrap();
            let rate = rates(cell.get("transform").unwrap())[at];
            records.extend((1..=6).map(|round| {
                let noise = spread * (f64::from((round * 7 + at as u32 * 3) % 5) - 2.0);
                pass(&cell, Pass::Time, round, &[("rate", rate * (1.0 + noise))])
            }));
        }
        judge(&COUNTS, Profile::Quick, Platform::Cpu, &Samples::new(&records))
    }

    #[test]
    fn the_worst_of_some_is_put_against_the_best_of_all() {
        let verdicts = |rates, spread| counted_workers(rates, spread).iter().map(|j| j.verdict).collect::<Vec<_>>();
        assert_eq!(verdicts(|_| [500.0, 900.0, 900.0, 700.0], 1e-3), [Verdict::Confirmed, Verdict::Refuted]);
        assert_eq!(verdicts(|_| [500.0, 900.0, 1000.0, 1000.0], 1e-3), [Verdict::Refuted, Verdict::Confirmed]);
        assert_eq!(verdicts(|_| [500.0, 900.0, 900.0, 900.0], 0.05), [Verdict::Inconclusive, Verdict::Inconclusive]);
        let mixed =
            |transform: &str| if transform == "light" { [500.0, 900.0, 900.0, 700.0] } else { [500.0, 900.0, 910.0, 909.0] };
        let judged = counted_workers(mixed, 1e-3);
        assert_eq!((judged[0].verdict, &judged[0].holds_where[..]), (Verdict::Depends, &["transform=light".to_string()][..]));
        let comparison = &judged[0].evidence[0].comparisons[0];
        assert_eq!(comparison.cell.to_string(), "transform=light workers=4x");
        assert_eq!(comparison.baseline.as_ref().unwrap().get("transform"), Some("light"), "best of its own group");
        assert!((comparison.effect.estimate - 700.0 / 900.0).abs() < 0.01);
    }

    #[test]
    fn a_cell_that_failed_is_missing_and_the_others_are_compared() {
        let cells = COUNTS.grids[0].cells();
        let records: Vec<PassRecord> = cells
            .iter()
            .filter(|cell| !is(cell, "workers=4x"))
            .flat_map(|cell| (1..=5).map(move |round| pass(cell, Pass::Time, round, &[("rate", 100.0 + f64::from(round))])))
            .collect();
        let judged = judge(&COUNTS, Profile::Quick, Platform::Cpu, &Samples::new(&records));
        let evidence = &judged[1].evidence[0];
        assert_eq!((evidence.comparisons.len(), evidence.missing.len()), (2, 2));
    }
}
