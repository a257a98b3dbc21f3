//! What nothing but a circle of references holds: a metric that has its own method as an attribute, the frames of an exception that is kept.

use super::super::facts::Facts;
use super::super::reply::brief;
use super::{Finding, FindingKind};
use crate::words::{bytes, short};
use base::units::counted;
use sim::trace::Bound;
use std::cmp::Reverse;
use std::collections::BTreeMap;

const ROWS: usize = 6;
/// It is told where it has more than this part of the peak.
const LEAST_PART: i64 = 50;

pub fn find(facts: &Facts) -> Option<Finding> {
    let mut lines: BTreeMap<String, (i64, usize)> = BTreeMap::new();
    for block in facts.live(facts.moment).filter(|block| block.bound == Bound::Garbage) {
        let (bytes, blocks) = lines.entry(facts.own_line(block).unwrap_or_default()).or_default();
        (*bytes, *blocks) = (*bytes + block.rounded, *blocks + 1);
    }
    let held: i64 = lines.values().map(|(bytes, _)| bytes).sum();
    if held * LEAST_PART < facts.bytes_at_peak(|_| true) || held == 0 {
        return None;
    }
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.sort_by_key(|(_, (bytes, _))| Reverse(*bytes));
    let row = |(line, (held, blocks)): (String, (i64, usize))| {
        format!("{}  {} in {}", short(&line), bytes(held), counted(blocks, "block"))
    };
    let cure = "Break the circle (a method or an exception kept in what it refers to: weakref, or del it), or call gc.collect() each step.";
    let of = lines.first().map_or("", |(line, _)| brief(line)).to_string();
    let title =
        format!("{} of {of} at the peak are garbage in a circle of references, which only Python's collector frees.", bytes(held));
    let rows = lines.into_iter().take(ROWS).map(row).chain([cure.to_string()]);
    Some(Finding { cure: Some(cure.to_string()), ..Finding::new(FindingKind::Garbage, title, rows)?.of(held, None) })
}
