//! Where a claim holds, and why a cell says nothing.

use crate::protocol::{PlainCell, fixed_by};
use crate::rules::{Evidence, Outcome, Verdict, combine_outcomes};
use base::order::{distinct, grouped};
use std::collections::BTreeSet;

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

/// The levels of some compared cells, and what all parts of a claim that speak of them say together.
struct Setting {
    cell: PlainCell,
    outcome: Outcome,
}

impl Setting {
    fn holds(&self) -> bool {
        self.outcome == Outcome::Confirms
    }

    /// The names of its factors: parts about different things have settings of different kinds.
    fn kind(&self) -> Vec<&str> {
        self.cell.levels().iter().map(|(factor, _)| factor.as_str()).collect()
    }
}

/// What several parts of a claim say together of one setting: all must hold there.
fn both(a: Outcome, b: Outcome) -> Outcome {
    let worst =
        |outcome: Outcome| [Outcome::Refutes, Outcome::Between, Outcome::Straddles].iter().position(|o| *o == outcome).unwrap_or(3);
    if worst(a) <= worst(b) { a } else { b }
}

/// The settings of some parts. Parts look at different cells (with the technique, without it); what they have in common is the setting: the levels
/// that a part's own selection does not fix. Parts that ask the same of different cells are about different settings, and what they fix tells them
/// apart.
fn settings(parts: &[&Evidence]) -> Vec<Setting> {
    let mut found: Vec<(PlainCell, Outcome)> = Vec::new();
    for part in parts {
        let dropped = dropped(part, parts);
        let is_kept = |(factor, _): &&(String, String)| !dropped.contains(&factor.as_str());
        let setting = |cell: &PlainCell| PlainCell::new(cell.levels().iter().filter(is_kept).cloned().collect());
        found.extend(part.comparisons.iter().map(|comparison| (setting(&comparison.cell), comparison.outcome)));
    }
    let together =
        |(cell, outcomes): (PlainCell, Vec<Outcome>)| Some(Setting { cell, outcome: outcomes.into_iter().reduce(both)? });
    grouped(found).into_iter().filter_map(together).collect()
}

/// The factors that a part's selection fixes, without those by which it is another case than a part that asks the same.
fn dropped<'a>(part: &'a Evidence, parts: &[&Evidence]) -> Vec<&'a str> {
    let level =
        |evidence: &Evidence, factor: &str| evidence.comparisons.first().and_then(|c| c.cell.get(factor).map(str::to_string));
    let asks_the_same = |other: &&&Evidence| {
        other.rule.metrics() == part.rule.metrics() && other.rule.bounds() == part.rule.bounds() && !other.comparisons.is_empty()
    };
    let tells_apart = |factor: &str| {
        let others = parts.iter().filter(asks_the_same).filter(|other| fixed_by(other.rule.select()).contains(&factor));
        others.into_iter().any(|other| level(other, factor) != level(part, factor))
    };
    fixed_by(part.rule.select()).into_iter().filter(|factor| !tells_apart(factor)).collect()
}

/// Parts that share settings, with the verdict on the claim of them alone: case by case.
pub(super) fn joined<'a>(parts: &[&'a Evidence]) -> Vec<(Verdict, Vec<&'a Evidence>)> {
    // What is judged as a whole, and what has nothing to compare, stands by itself.
    let (by_case, alone): (Vec<&Evidence>, Vec<&Evidence>) =
        parts.iter().partition(|part| !part.rule.holds_by_share() && !part.comparisons.is_empty());
    let mut groups: Vec<(BTreeSet<Vec<String>>, Vec<&Evidence>)> = Vec::new();
    for part in by_case {
        let own: BTreeSet<Vec<String>> =
            settings(&[part]).iter().map(|setting| setting.kind().into_iter().map(str::to_string).collect()).collect();
        // Beside those that ask the same it keeps more of its levels, all of them alike.
        let (mut meets, others): (Vec<_>, Vec<_>) = groups.into_iter().partition(|(kinds, _)| !kinds.is_disjoint(&own));
        groups = others;
        let mut group = (own, Vec::new());
        for (kinds, parts) in meets.drain(..) {
            group.0.extend(kinds);
            group.1.extend(parts);
        }
        group.1.push(part);
        groups.push(group);
    }
    let mut found: Vec<(Verdict, Vec<&Evidence>)> = alone.into_iter().map(|part| (part.verdict, vec![part])).collect();
    for (_, group) in groups {
        let verdict = match group[..] {
            [one] => one.verdict,
            _ => {
                combine_outcomes(settings(&group).iter().map(|setting| setting.outcome), group.iter().map(|part| part.failed).sum())
            }
        };
        found.push((verdict, group));
    }
    found
}

/// Where several parts of a claim hold at once.
pub(super) fn holds_where(parts: &[&Evidence]) -> WhereItHolds {
    let settings = settings(parts);
    let mut paths = Vec::new();
    let mut rest: Vec<&Setting> = settings.iter().collect();
    // Settings of different kinds have a tree each.
    while let Some(first) = rest.first().map(|setting| setting.kind()) {
        let (alike, others): (Vec<&Setting>, Vec<&Setting>) = rest.into_iter().partition(|setting| setting.kind() == first);
        split(&alike, &mut Vec::new(), &mut paths);
        rest = others;
    }
    WhereItHolds { paths: distinct(paths), held: settings.iter().filter(|setting| setting.holds()).count(), of: settings.len() }
}

fn split(settings: &[&Setting], path: &mut Vec<String>, paths: &mut Vec<String>) {
    let held = settings.iter().filter(|setting| setting.holds()).count();
    if held == 0 {
        return;
    }
    let factors = || settings.iter().take(1).flat_map(|setting| setting.cell.levels().iter().map(|(factor, _)| factor.as_str()));
    let by_level = |factor: &str| grouped(settings.iter().map(|setting| (setting.cell.get(factor).unwrap_or(""), *setting)));
    // The factor that leaves the least mixed groups, by Gini's measure. (The count of those in the minority would not tell a factor that says
    // nothing from one that sets half of the others apart.) Of equals the one whose levels have names, then the first.
    let impurity = |factor: &str| -> f64 {
        let mixed = |group: &Vec<&Setting>| {
            let held = group.iter().filter(|setting| setting.holds()).count();
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
    let pure = |group: &Vec<&Setting>| group.iter().all(|setting| setting.holds());
    let joined: Vec<&str> = levels.iter().filter(|(_, group)| pure(group)).map(|(level, _)| *level).collect();
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
    use crate::rules::{Bound, Comparison, RulePart, ValueRule};
    use base::stats::Interval;

    fn part(of: &str, found: &[(&str, bool)]) -> Evidence {
        part_that_asks(Bound::AtMost(0.0), of, found)
    }

    fn part_that_asks(confirm: Bound, of: &str, found: &[(&str, bool)]) -> Evidence {
        let rule: RulePart = ValueRule { metric: "failing".into(), of: of.into(), confirm, refute: Bound::AtLeast(0.01) }.into();
        let comparison = |(cell, holds): &(&str, bool)| Comparison {
            cell: PlainCell::parse(cell).unwrap(),
            baseline: None,
            effect: Interval::exact(0.0),
            rounds: 1,
            outcome: if *holds { Outcome::Confirms } else { Outcome::Refutes },
        };
        Evidence { verdict: Verdict::Depends, comparisons: found.iter().map(comparison).collect(), ..Evidence::nothing(&rule) }
    }

    /// What fails without a call has to work with it, in the same setting; each in another one is nothing.
    #[test]
    fn parts_hold_together_or_not_at_all() {
        let fails =
            part_that_asks(Bound::AtLeast(1.0), "call=never", &[("who=me call=never", false), ("who=other call=never", true)]);
        let works = part("call=always", &[("who=me call=always", true), ("who=other call=always", false)]);
        assert_eq!(holds_where(&[&fails, &works]), WhereItHolds { paths: vec![], held: 0, of: 2 });
        let works = part("call=always", &[("who=me call=always", true), ("who=other call=always", true)]);
        assert_eq!(holds_where(&[&fails, &works]).paths, ["who=other"]);
        // Both depend, and there is no setting in which both hold.
        let works = part("call=always", &[("who=me call=always", true), ("who=other call=always", false)]);
        assert_eq!(joined(&[&fails, &works])[0].0, Verdict::Refuted);
        // What asks the same of other cells is about other settings.
        let (one, other) = (part("kept=sum", &[("who=me kept=sum", false)]), part("kept=output", &[("who=me kept=output", true)]));
        assert_eq!(joined(&[&one, &other]).iter().map(|(verdict, _)| *verdict).collect::<Vec<_>>(), [Verdict::Depends]);
        assert_eq!(holds_where(&[&one, &other]).paths, ["kept=output"]);
        // The same said by two parts is said once.
        let alone = part("call=a|b", &[("who=me call=a size=1", false), ("who=me call=b size=1", true)]);
        let again = part("call=a|b", &[("who=me call=a", false), ("who=me call=b", true)]);
        assert_eq!(holds_where(&[&alone, &again]).paths, ["call=b"]);
    }

    #[test]
    fn the_model_decides_and_not_the_batch_that_it_has() {
        let found = [("batch=4 model=gpt call=a", true), ("batch=32 model=bert call=a", true), ("batch=8 model=mlp call=a", false)];
        assert_eq!(holds_where(&[&part("call=a|b", &found)]).paths, ["model=gpt|bert"]);
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
        assert_eq!(holds_where(&[&part("call=a|b", &found)]).paths, ["model=resnet", "model=mlp batch=16384"]);
    }
}
