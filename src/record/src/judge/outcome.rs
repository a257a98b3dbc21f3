//! Where a comparison falls, and what several of them say together.

use crate::protocol::{Bound, Cell, Rule};
use base::stats::Interval;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// Every matched comparison is beyond the threshold.
    Confirmed,
    /// Every one is on the other side.
    Refuted,
    /// Some hold and some do not.
    Depends,
    /// Intervals straddle a threshold, or effects lie between the two.
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
            Verdict::Inconclusive => "inconclusive",
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
    pub rule: Rule,
    pub verdict: Verdict,
    pub comparisons: Vec<Comparison>,
    /// Cells that the rule selects and its scope leaves out.
    pub out_of_scope: usize,
    /// Cells that the rule selects and that gave no figure, with what became of them.
    pub missing: Vec<(Cell, String)>,
    /// How many of the missing went wrong (failed, contradicted themselves), as opposed to not having been run or having run out of memory.
    pub failed: usize,
    /// Cells that the rule is about on this platform, and how many of them are still to be measured.
    pub planned: usize,
    pub awaited: usize,
    /// Whether the part is about anything that this platform has.
    pub is_judged: bool,
    /// Whether the claim cannot be confirmed without this part.
    pub decides: bool,
}

impl Evidence {
    pub(super) fn nothing(rule: &Rule) -> Evidence {
        let (verdict, is_judged, decides) = (Verdict::NotMeasured, true, true);
        Evidence {
            rule: rule.clone(),
            verdict,
            comparisons: Vec::new(),
            out_of_scope: 0,
            missing: Vec::new(),
            failed: 0,
            planned: 0,
            awaited: 0,
            is_judged,
            decides,
        }
    }

    /// Smallest and largest estimate.
    pub fn range(&self) -> Option<(f64, f64)> {
        let estimates = || self.comparisons.iter().map(|c| c.effect.estimate);
        Some((estimates().reduce(f64::min)?, estimates().reduce(f64::max)?))
    }
}

pub(super) fn holds(bound: Bound, x: f64) -> bool {
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

pub(super) fn place(effect: Interval, confirm: Bound, refute: Bound) -> Outcome {
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

/// The verdict of matched comparisons. Where a cell that belongs to them failed, the others are not 'every one'.
pub(super) fn fall(comparisons: &[Comparison], failed: usize) -> Verdict {
    let outcomes: BTreeSet<Outcome> = comparisons.iter().map(|c| c.outcome).collect();
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
    } else {
        Verdict::Inconclusive
    }
}

/// The verdict of a prediction that has to be right in a share of its cells: there is nothing between. Those that failed could be either.
pub(super) fn agree(comparisons: &[Comparison], failed: usize, share: f64) -> Verdict {
    let right = comparisons.iter().filter(|c| c.outcome == Outcome::Confirms).count();
    let wanted = share * (comparisons.len() + failed) as f64;
    if comparisons.is_empty() {
        Verdict::NotMeasured
    } else if right as f64 >= wanted {
        Verdict::Confirmed
    } else if ((right + failed) as f64) < wanted {
        Verdict::Refuted
    } else {
        Verdict::Inconclusive
    }
}
