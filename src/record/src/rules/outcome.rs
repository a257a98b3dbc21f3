//! Where a comparison falls, and what several of them say together.

use super::{JudgedCells, RuleKind, RulePart};
use crate::protocol::cells::PlainCell;
use crate::protocol::metrics::Metric;
use crate::results::Samples;
use base::stats::Interval;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// Every matched comparison is beyond the threshold.
    Confirmed,
    /// None holds, and some or all are on the other side.
    Refuted,
    /// Some hold and some do not.
    Depends,
    /// Each is on the claim's side and clearly less than claimed: more rounds decide nothing.
    FallsShort,
    /// What can be judged here holds, and parts that decide, too, are not there.
    InPart,
    /// Intervals straddle a threshold, or something that belongs to the comparison failed.
    Inconclusive,
    /// Not all of the planned cells were measured yet, so nothing is decided.
    Incomplete,
    NotMeasured,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Verdict::Confirmed => "confirmed",
            Verdict::Refuted => "refuted",
            Verdict::Depends => "depends",
            Verdict::FallsShort => "falls short",
            Verdict::InPart => "in part",
            Verdict::Inconclusive => "not decided",
            Verdict::Incomplete => "not all measured",
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

/// One cell put against a claim's thresholds.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub cell: PlainCell,
    /// What it was compared with, where the rule is about a ratio.
    pub baseline: Option<PlainCell>,
    pub effect: Interval,
    /// Rounds behind an interval; 1 for an exact figure.
    pub rounds: usize,
    pub outcome: Outcome,
}

/// What one rule found.
#[derive(Debug, Clone, PartialEq)]
pub struct Evidence {
    pub rule: RulePart,
    pub verdict: Verdict,
    pub comparisons: Vec<Comparison>,
    /// Cells that the rule selects and its scope leaves out.
    pub out_of_scope: usize,
    /// Cells that the rule selects and that gave no figure.
    pub missing: Vec<PlainCell>,
    /// How many of the missing went wrong (failed, contradicted themselves), as opposed to not having been run or having run out of memory.
    pub failed: usize,
    /// Cells that the rule is about on this platform, and how many of them are still to be measured.
    pub planned: usize,
    pub awaited: usize,
    /// The only grids that the part is about; none where it is about all.
    pub grid: Option<String>,
    /// Whether the part is about anything that this platform has.
    pub is_judged: bool,
    /// Whether the claim cannot be confirmed without this part.
    pub decides: bool,
}

impl Evidence {
    pub(crate) fn nothing(rule: &RulePart) -> Evidence {
        Evidence {
            rule: rule.clone(),
            verdict: Verdict::NotMeasured,
            comparisons: Vec::new(),
            out_of_scope: 0,
            missing: Vec::new(),
            failed: 0,
            planned: 0,
            awaited: 0,
            grid: None,
            is_judged: true,
            decides: true,
        }
    }

    /// Adds an effect, with the rounds behind it, that two thresholds judge; or a cell that has none.
    pub(super) fn compare(
        &mut self,
        cell: PlainCell,
        baseline: Option<PlainCell>,
        found: Option<(Interval, usize)>,
        (confirm, refute): (Bound, Bound),
    ) {
        let Some((effect, rounds)) = found else { return self.missing.push(cell) };
        let outcome = classify(effect, confirm, refute);
        self.comparisons.push(Comparison { cell, baseline, effect, rounds, outcome });
    }

    /// Smallest and largest estimate.
    pub fn range(&self) -> Option<(f64, f64)> {
        let estimates = || self.comparisons.iter().map(|c| c.effect.estimate);
        Some((estimates().reduce(f64::min)?, estimates().reduce(f64::max)?))
    }
}

/// Whether every value of the interval satisfies the bound.
fn contains(bound: Bound, interval: Interval) -> bool {
    match bound {
        Bound::Outside(low, high) => interval.high < low || interval.low > high,
        _ => bound.holds(interval.low) && bound.holds(interval.high),
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

/// Where an effect falls.
fn classify(effect: Interval, confirm: Bound, refute: Bound) -> Outcome {
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

/// What outcomes say together. Where a cell that belongs to them failed, the others are not 'every one'.
pub(crate) fn combine_outcomes(outcomes: impl Iterator<Item = Outcome>, failed: usize) -> Verdict {
    let outcomes: BTreeSet<Outcome> = outcomes.collect();
    let has = |o| outcomes.contains(&o);
    let whole = failed == 0 && outcomes.len() == 1;
    if outcomes.is_empty() {
        Verdict::NotMeasured
    } else if has(Outcome::Confirms) && whole {
        Verdict::Confirmed
    } else if has(Outcome::Refutes) && whole {
        Verdict::Refuted
    } else if has(Outcome::Confirms) && (has(Outcome::Refutes) || (has(Outcome::Between) && !has(Outcome::Straddles))) {
        Verdict::Depends
    } else if has(Outcome::Between) && !has(Outcome::Confirms) && !has(Outcome::Straddles) && failed == 0 {
        if has(Outcome::Refutes) { Verdict::Refuted } else { Verdict::FallsShort }
    } else {
        Verdict::Inconclusive
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
    Within(f64, f64),
    /// Below the first or above the second.
    Outside(f64, f64),
}

impl Bound {
    pub fn holds(self, x: f64) -> bool {
        match self {
            Bound::AtMost(limit) => x <= limit,
            Bound::AtLeast(limit) => x >= limit,
            Bound::Within(low, high) => (low..=high).contains(&x),
            Bound::Outside(low, high) => x < low || x > high,
        }
    }

    /// Whether all of an effect lies on the side of 1 that the bound does; a range has no side.
    pub(super) fn points_at(self, effect: Interval) -> bool {
        match self {
            Bound::AtMost(_) => effect.high < 1.0,
            Bound::AtLeast(_) => effect.low > 1.0,
            Bound::Within(..) | Bound::Outside(..) => true,
        }
    }
}

/// The selected cells that have a baseline of their own and lie in the rule's scope, each with it.
pub(super) fn compared_with(
    rule: &dyn RuleKind,
    cells: &JudgedCells,
    metric: &Metric,
    samples: &Samples,
    evidence: &mut Evidence,
) -> Vec<(PlainCell, PlainCell)> {
    let mut found = Vec::new();
    for (grid, cell) in cells.measured(rule.select(), metric) {
        let baseline = grid.baseline_of(&cell);
        if cell == baseline {
            continue;
        }
        match rule.is_in_scope(&baseline, samples) {
            Some(false) => evidence.out_of_scope += 1,
            _ => found.push((cell, baseline)),
        }
    }
    found
}

/// The number of a bound that an estimate is nearest to, on a scale, as the scale has it.
pub(super) fn nearest_edge(confirm: Bound, refute: Bound, estimate: f64, scale: impl Fn(f64) -> f64) -> f64 {
    let edges = [confirm, refute].into_iter().flat_map(|bound| match bound {
        Bound::AtMost(x) | Bound::AtLeast(x) => vec![x],
        Bound::Within(low, high) | Bound::Outside(low, high) => vec![low, high],
    });
    let distance = |edge: &f64| (edge - scale(estimate)).abs();
    edges.map(&scale).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0.0)
}
