//! Where a claim holds, and why a cell says nothing.

use crate::protocol::{PlainCell, fixed_by};
use crate::rules::{Evidence, Outcome};
use std::collections::{BTreeMap, BTreeSet};

/// Where a claim holds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WhereItHolds {
    /// Conjunctions of levels: the leaves of a greedy decision tree over the factors that vary. Levels that end in the same leaf are joined,
    /// `recipe=add reduction=sum|none`. Empty where no factor tells.
    pub paths: Vec<String>,
    /// In how many settings the claim holds, of how many.
    pub held: usize,
    pub of: usize,
}

/// The levels of some compared cells, and whether the claim holds there.
struct Setting {
    cell: PlainCell,
    holds: bool,
}

/// Where several parts of a claim hold at once. Parts look at different cells (with the technique, without it); what they have in common is the
/// setting: the levels that a part's own selection does not fix.
pub(super) fn holds_where<'a>(parts: impl Iterator<Item = &'a Evidence>) -> WhereItHolds {
    let mut settings: Vec<Setting> = Vec::new();
    let mut places: BTreeMap<PlainCell, usize> = BTreeMap::new();
    for part in parts {
        let fixed: Vec<&str> = fixed_by(part.rule.select());
        for comparison in &part.comparisons {
            let levels = comparison.cell.levels().iter().filter(|(factor, _)| !fixed.contains(&factor.as_str()));
            let (cell, holds) = (PlainCell::new(levels.cloned().collect()), comparison.outcome == Outcome::Confirms);
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
    WhereItHolds { paths, held: settings.iter().filter(|setting| setting.holds).count(), of: settings.len() }
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
    use crate::rules::{Bound, Comparison, RulePart, ValueRule, Verdict};
    use base::stats::Interval;

    /// Of no more than a selection.
    fn rule(of: &str) -> RulePart {
        ValueRule { metric: "failing".into(), of: of.into(), confirm: Bound::AtMost(0.0), refute: Bound::AtLeast(0.01) }.into()
    }

    fn part(of: &str, found: &[(&str, bool)]) -> Evidence {
        let comparison = |(cell, holds): &(&str, bool)| Comparison {
            cell: PlainCell::parse(cell).unwrap(),
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
        assert_eq!(holds_where([&fails, &works].into_iter()), WhereItHolds { paths: vec![], held: 0, of: 2 });
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
