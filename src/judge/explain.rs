//! Where a claim holds, and why a cell says nothing.

use super::outcome::{Comparison, Outcome};
use crate::protocol::Cell;
use crate::results::{Samples, Status};

/// Why two cells have no ratio: one has no figure, or there are too few rounds of them.
pub(super) fn missing_ratio(samples: &Samples, cell: Cell, baseline: &Cell, metric: &str) -> (Cell, String) {
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

pub(super) fn missing(samples: &Samples, cell: Cell) -> (Cell, String) {
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
pub(super) fn holds_where(comparisons: &[Comparison]) -> Vec<String> {
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
