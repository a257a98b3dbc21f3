//! Where a claim holds, and why a cell says nothing.

use super::outcome::{Evidence, Outcome};
use crate::protocol::Cell;
use crate::results::{Samples, Status};
use crate::rounds::Rounds;
use std::collections::{BTreeMap, BTreeSet};

/// Why two cells have no ratio: one has no figure, or there are too few rounds of them.
pub(super) fn missing_ratio(samples: &Samples, cell: Cell, baseline: &Cell, metric: &str, rounds: &Rounds) -> (Cell, String) {
    match (samples.value(&cell, metric), samples.value(baseline, metric)) {
        (None, _) => missing(samples, cell),
        (Some(_), None) => {
            let (_, why) = missing(samples, baseline.clone());
            (cell, format!("its baseline has no figure: {why}"))
        }
        (Some(_), Some(0.0)) => (cell, "its baseline is 0".to_string()),
        (Some(_), Some(_)) => (cell, format!("{}, so no interval", few(rounds))),
    }
}

pub(super) fn few(rounds: &Rounds) -> String {
    format!("fewer than {} rounds", rounds.least().max(2))
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

/// Where a claim holds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Holds {
    /// Conjunctions of levels: the leaves of a greedy decision tree over the factors that vary. Levels that end in the same leaf are joined,
    /// `recipe=add reduction=sum|none`. Empty where no factor tells.
    pub paths: Vec<String>,
    /// In how many settings the claim holds, of how many.
    pub held: usize,
    pub of: usize,
}

/// The levels of some compared cells, and whether the claim holds there.
struct Setting {
    cell: Cell,
    holds: bool,
}

/// Where several parts of a claim hold at once. Parts look at different cells (with the technique, without it); what they have in common is the
/// setting: the levels that a part's own selection does not fix.
pub(super) fn holds_where<'a>(parts: impl Iterator<Item = &'a Evidence>) -> Holds {
    let mut settings: Vec<Setting> = Vec::new();
    let mut places: BTreeMap<Cell, usize> = BTreeMap::new();
    for part in parts {
        let fixed: Vec<&str> = part.rule.select().map_or(Vec::new(), fixed_by);
        for comparison in &part.comparisons {
            let levels = comparison.cell.levels().iter().filter(|(factor, _)| !fixed.contains(&factor.as_str()));
            let (cell, holds) = (Cell::new(levels.cloned().collect()), comparison.outcome == Outcome::Confirms);
            match places.get(&cell) {
                Some(place) => settings[*place].holds &= holds,
                None => {
                    places.insert(cell.clone(), settings.len());
                    settings.push(Setting { cell, holds });
                }
            }
        }
    }
    let names = |setting: &Setting| setting.cell.levels().iter().map(|(factor, _)| factor.clone()).collect::<Vec<_>>();
    let mut paths = Vec::new();
    let mut rest: Vec<&Setting> = settings.iter().collect();
    // Parts about different things have settings of different kinds, each with a tree of its own.
    while let Some(first) = rest.first().map(|setting| names(setting)) {
        let (alike, others): (Vec<&Setting>, Vec<&Setting>) = rest.into_iter().partition(|setting| names(setting) == first);
        split(&alike, &mut Vec::new(), &mut paths);
        rest = others;
    }
    let mut seen = BTreeSet::new();
    paths.retain(|path| seen.insert(path.clone()));
    Holds { paths, held: settings.iter().filter(|setting| setting.holds).count(), of: settings.len() }
}

/// The factors of which a selection leaves one level.
fn fixed_by(select: &str) -> Vec<&str> {
    // Of alternatives none is fixed.
    if select.contains(',') {
        return Vec::new();
    }
    let has_one_level = |(_, levels): &(&str, &str)| !levels.contains('|');
    select.split_whitespace().filter_map(|term| term.split_once('=')).filter(has_one_level).map(|(factor, _)| factor).collect()
}

fn split(settings: &[&Setting], path: &mut Vec<String>, paths: &mut Vec<String>) {
    let held = settings.iter().filter(|setting| setting.holds).count();
    if held == 0 {
        return;
    }
    let factors = || settings.iter().take(1).flat_map(|setting| setting.cell.levels().iter().map(|(factor, _)| factor.as_str()));
    let by_level = |factor: &str| {
        let mut levels: Vec<(String, Vec<&Setting>)> = Vec::new();
        for setting in settings {
            let level = setting.cell.get(factor).unwrap_or("").to_string();
            match levels.iter_mut().find(|(l, _)| *l == level) {
                Some((_, group)) => group.push(setting),
                None => levels.push((level, vec![setting])),
            }
        }
        levels
    };
    // The factor that leaves the least mixed groups, by Gini's measure. (The count of those in the minority would not tell a factor that says
    // nothing from one that sets half of the others apart.) Of equals the one whose levels have names, then the first.
    let impurity = |factor: &str| -> f64 {
        let mixed = |group: &Vec<&Setting>| {
            let held = group.iter().filter(|setting| setting.holds).count();
            (held * (group.len() - held)) as f64 / group.len() as f64
        };
        by_level(factor).iter().map(|(_, group)| mixed(group)).sum()
    };
    let mixture = (held * (settings.len() - held)) as f64 / settings.len() as f64;
    let is_number = |factor: &str| by_level(factor).iter().all(|(level, _)| level.parse::<f64>().is_ok());
    let varies = |factor: &str| by_level(factor).len() > 1;
    // Where nearly each batch is that of one model, it is the model that decides.
    let stands_for = |number: &str, named: &str| {
        let levels = by_level(number);
        let is_of_one = |group: &[&Setting]| group.iter().all(|setting| setting.cell.get(named) == group[0].cell.get(named));
        levels.iter().filter(|(_, group)| is_of_one(group)).count() * 4 >= levels.len() * 3
    };
    let is_nested = |number: &str| {
        is_number(number)
            && factors().any(|named| varies(named) && !is_number(named) && impurity(named) < mixture && stands_for(number, named))
    };
    let varying = factors().filter(|factor| varies(factor) && !is_nested(factor));
    let best = varying.min_by(|a, b| impurity(a).total_cmp(&impurity(b)).then(is_number(a).cmp(&is_number(b))));
    let Some(factor) = best.filter(|_| held < settings.len()) else {
        if held == settings.len() && !path.is_empty() {
            paths.push(path.join(" "));
        }
        return;
    };
    let levels = by_level(factor);
    let pure = |group: &Vec<&Setting>| group.iter().all(|setting| setting.holds);
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
    use crate::judge::{Comparison, Verdict};
    use crate::protocol::{Bound, Rule};
    use base::stats::Interval;

    /// Of no more than a selection.
    fn rule(of: &str) -> Rule {
        Rule::Value { metric: "failing".into(), of: of.into(), confirm: Bound::AtMost(0.0), refute: Bound::AtLeast(0.01) }
    }

    fn part(of: &str, found: &[(&str, bool)]) -> Evidence {
        let comparison = |(cell, holds): &(&str, bool)| Comparison {
            cell: Cell::parse(cell).unwrap(),
            baseline: None,
            effect: Interval::exact(0.0),
            rounds: 1,
            outcome: if *holds { Outcome::Confirms } else { Outcome::Refutes },
        };
        Evidence { verdict: Verdict::Depends, comparisons: found.iter().map(comparison).collect(), ..Evidence::nothing(&rule(of)) }
    }

    /// What fails without a call has to work with it, in the same setting; each in another one is nothing.
    #[test]
    fn parts_hold_together_or_not_at_all() {
        let fails = part("call=never", &[("who=me call=never", false), ("who=other call=never", true)]);
        let works = part("call=always", &[("who=me call=always", true), ("who=other call=always", false)]);
        assert_eq!(holds_where([&fails, &works].into_iter()), Holds { paths: vec![], held: 0, of: 2 });
        let works = part("call=always", &[("who=me call=always", true), ("who=other call=always", true)]);
        assert_eq!(holds_where([&fails, &works].into_iter()).paths, ["who=other"]);
        // The same said by two parts is said once.
        let alone = part("call=a|b", &[("who=me call=a size=1", false), ("who=me call=b size=1", true)]);
        let again = part("call=a|b", &[("who=me call=a", false), ("who=me call=b", true)]);
        assert_eq!(holds_where([&alone, &again].into_iter()).paths, ["call=b"]);
    }

    #[test]
    fn the_model_decides_and_not_the_batch_that_it_has() {
        let found = [("batch=4 model=gpt call=a", true), ("batch=32 model=bert call=a", true), ("batch=8 model=mlp call=a", false)];
        assert_eq!(holds_where([&part("call=a|b", &found)].into_iter()).paths, ["model=gpt|bert"]);
        // Also where a batch alone would tell them all, and one batch is that of two models.
        let found = [
            ("batch=4 model=gpt call=a", false),
            ("batch=8 model=bert call=a", false),
            ("batch=8 model=vit call=a", false),
            ("batch=32 model=resnet call=a", true),
            ("batch=128 model=resnet call=a", true),
            ("batch=1024 model=mlp call=a", false),
            ("batch=16384 model=mlp call=a", true),
        ];
        assert_eq!(holds_where([&part("call=a|b", &found)].into_iter()).paths, ["model=resnet", "model=mlp batch=16384"]);
    }
}
