//! Verdicts, effects and conditions in words.

use super::effects::change;
use super::words;
use base::stats::Interval;
use base::units::{plain, quantity, ratio, significant};
use record::judge::{Evidence, Holds, Judgement, Outcome, Reproduction, Verdict};
use record::protocol::{Bound, Pass, Pick, Platform, Protocol, Rule, Share};
use record::results::Status;
use record::rounds::ALPHA;

/// What figures are put against: a verdict's words differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Against {
    Claim,
    Published,
}

/// Stands for figures that carry no verdict.
pub const SHOWN: &str = "○";

pub fn symbol(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Confirmed => "✔",
        Verdict::Refuted => "✘",
        Verdict::Depends => "◐",
        Verdict::Inconclusive => "?",
        Verdict::Incomplete => "◌",
        Verdict::NotMeasured => "–",
    }
}

/// A verdict as symbol and word.
pub fn verdict(verdict: Verdict, against: Against) -> String {
    format!("{} {}", symbol(verdict), word(verdict, against))
}

pub fn word(verdict: Verdict, against: Against) -> String {
    match (against, verdict) {
        (Against::Published, Verdict::Confirmed) => "reproduced".to_string(),
        (Against::Published, Verdict::Refuted) => "not reproduced".to_string(),
        (Against::Published, Verdict::Depends) => "reproduced in part".to_string(),
        (Against::Published, Verdict::Inconclusive) => "undecided".to_string(),
        _ => verdict.to_string(),
    }
}

/// What became of a claim on one machine.
pub fn standing(judgement: &Judgement) -> String {
    let found = (judgement.verdict, judgement.so_far(), judgement.measured());
    let standing = standing_of(found, judgement.platform, judgement.carries, Against::Claim);
    format!("{standing}{}", in_part(judgement.verdict, judgement.parts()))
}

/// What became of a published figure on one machine.
pub fn reproduction(reproduction: &Reproduction) -> String {
    let found = (reproduction.verdict, reproduction.so_far(), reproduction.measured());
    let standing = standing_of(found, reproduction.platform, reproduction.comparable, Against::Published);
    format!("{standing}{}", in_part(reproduction.verdict, reproduction.parts()))
}

/// Of how many parts a verdict is, where not of all.
fn in_part(verdict: Verdict, (judged, all): (usize, usize)) -> String {
    if judged == all || verdict == Verdict::NotMeasured { String::new() } else { format!(" ({judged} of {all} parts)") }
}

fn standing_of(
    (found, so_far, (measured, planned)): (Verdict, Verdict, (usize, usize)),
    of: Platform,
    carries: bool,
    against: Against,
) -> String {
    let prediction = if of == Platform::Dry { " (prediction)" } else { "" };
    match (carries, found) {
        (false, _) if against == Against::Published => format!("{SHOWN} not comparable"),
        (_, Verdict::NotMeasured) => verdict(found, against),
        (false, Verdict::Incomplete) => format!("{SHOWN} informational, {measured} of {planned} measured"),
        (false, _) => format!("{SHOWN} informational"),
        (true, Verdict::Incomplete) => {
            format!("{} {measured} of {planned} measured, so far {}{prediction}", symbol(found), word(so_far, against))
        }
        (true, _) => format!("{}{prediction}", verdict(found, against)),
    }
}

pub fn outcome(outcome: Outcome, against: Against) -> &'static str {
    match (outcome, against) {
        (Outcome::Confirms, Against::Claim) => "✔ confirms",
        (Outcome::Refutes, Against::Claim) => "✘ refutes",
        (Outcome::Confirms, Against::Published) => "✔ reproduces it",
        (Outcome::Refutes, Against::Published) => "✘ does not",
        (Outcome::Between, _) => "between the thresholds",
        (Outcome::Straddles, _) => "? the interval includes a threshold",
    }
}

pub fn status(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Oom => "out of memory",
        Status::Skipped => "skipped",
        Status::Error => "error",
        Status::Timeout => "timed out",
        Status::Crashed => "crashed",
        Status::Invalid => "invalid",
    }
}

pub fn platform(platform: Platform) -> &'static str {
    match platform {
        Platform::Cpu => "CPU",
        Platform::Gpu => "GPU",
        Platform::Dry => "simulated GPU",
        Platform::Python => "PyTorch in Python",
    }
}

/// `k=4 recipe=divide|weighted` as `k = 4 and recipe = divide or weighted`.
pub fn conditions(select: &str) -> String {
    let term = |term: &str| match term.split_once('=') {
        Some((factor, levels)) => format!("{factor} = {}", alternatives(&levels.split('|').collect::<Vec<_>>())),
        None => term.to_string(),
    };
    let shared: Vec<String> = shared_terms(select).into_iter().map(term).collect();
    let listed = select.split(", ").count();
    match (shared.is_empty(), listed) {
        (_, 1) => shared.join(" and "),
        (true, _) => format!("the configuration is one of {listed}"),
        (false, _) => format!("{} ({listed} configurations)", shared.join(" and ")),
    }
}

/// The terms of a selection; where it lists configurations, those that all of them share.
fn shared_terms(select: &str) -> Vec<&str> {
    let mut listed = select.split(", ").map(|cell| cell.split_whitespace().collect::<Vec<_>>());
    let first = listed.next().unwrap_or_default();
    let others: Vec<Vec<&str>> = listed.collect();
    first.into_iter().filter(|term| others.iter().all(|other| other.contains(term))).collect()
}

/// `a`, `a or b`, `a, b or c`.
fn alternatives(levels: &[&str]) -> String {
    match levels {
        [] => String::new(),
        [one] => (*one).to_string(),
        [rest @ .., last] => format!("{} or {last}", rest.join(", ")),
    }
}

/// More conditions than this are no sentence: then it is said how many configurations there are, and a table names them.
const MOST_PATHS: usize = 2;
const MOST_CONDITIONS: usize = 2;

/// Where a claim that depends holds, after its verb: `where model = gpt2 or resnet50`, `in 8 of 24 configurations`.
pub fn holds(holds: &Holds) -> String {
    let is_short = holds.paths.len() <= MOST_PATHS && holds.paths.iter().all(|path| path.split(' ').count() <= MOST_CONDITIONS);
    let paths: Vec<String> = holds.paths.iter().map(|path| conditions(path)).collect();
    match (holds.held, &paths[..]) {
        (0, _) => format!("in none of the {} that the claim is about", counted(holds.of, "configuration")),
        (held, [one]) if is_short && held < holds.of => format!("where {one}"),
        (held, [one, other]) if is_short && held < holds.of => format!("where {one}, and where {other}"),
        (held, _) => format!("in {held} of {} (see the evidence below)", counted(holds.of, "configuration")),
    }
}

/// Puts the place where a claim holds into its sentence.
fn placed(text: &str, found: &Holds) -> String {
    let place = holds(found);
    // 'Only in no configuration' would say nothing.
    let nowhere = if found.held == 0 { text.replace("only where {where}", &place) } else { text.to_string() };
    nowhere.replace("where {where}", &place).replace("{where}", &place)
}

/// A count with its noun: `1 cell`, `3 cells`.
pub fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// The figure that a rule is about, as a column head.
pub fn subject(protocol: &Protocol, rule: &Rule) -> String {
    let label = |name: &str| protocol.metric(name).map_or_else(|| name.replace('_', " "), |metric| metric.label.to_string());
    match rule {
        Rule::Ratio { metric, .. } | Rule::Value { metric, .. } | Rule::Picked { metric, .. } => label(metric),
        Rule::Frequency { metric, attempts, .. } => format!("share of {} of {}", label(metric), label(attempts)),
        Rule::Exponent { metric, along, .. } => format!("{} grows as a power of {along}:", label(metric)),
        Rule::FalseAlarms { .. } => "false positives".to_string(),
        Rule::Trend { metric, along, .. } => format!("rank correlation of the gain in {} with {along}", label(metric)),
        Rule::Agreement { metric, reference, .. } => format!("{} relative to {}", label(metric), label(reference)),
        Rule::All(_) => "several figures".to_string(),
        Rule::Beside(rule) | Rule::Changed { now: rule, .. } => subject(protocol, rule),
    }
}

/// One effect of a rule: a ratio, a value with its unit, an exponent.
pub fn figure(protocol: &Protocol, rule: &Rule, value: f64) -> String {
    match rule {
        Rule::Ratio { .. } | Rule::Picked { .. } | Rule::Agreement { .. } | Rule::Frequency { .. } => ratio(value),
        Rule::Value { metric, .. } => quantity(value, protocol.metric(metric).map_or("1", |m| words::unit(metric, m.unit))),
        Rule::FalseAlarms { .. } => format!("{} %", significant(value * 100.0)),
        Rule::Exponent { .. } | Rule::Trend { .. } | Rule::All(_) => plain(value),
        Rule::Beside(rule) | Rule::Changed { now: rule, .. } => figure(protocol, rule, value),
    }
}

pub fn bound(protocol: &Protocol, rule: &Rule, bound: Bound) -> String {
    let write = |x: f64| figure(protocol, rule, x);
    match bound {
        Bound::AtMost(x) => format!("at most {}", write(x)),
        Bound::AtLeast(x) => format!("at least {}", write(x)),
        Bound::Within(low, high) => format!("{} to {}", write(low), write(high)),
        Bound::Outside(low, high) => format!("less than {} or more than {}", write(low), write(high)),
    }
}

/// The two thresholds of a rule: what confirms and what refutes.
pub fn thresholds(protocol: &Protocol, rule: &Rule) -> Option<(String, String)> {
    match rule {
        Rule::Ratio { confirm, refute, .. }
        | Rule::Value { confirm, refute, .. }
        | Rule::Exponent { confirm, refute, .. }
        | Rule::Trend { confirm, refute, .. }
        | Rule::Frequency { confirm, refute, .. }
        | Rule::Picked { confirm, refute, .. } => Some((bound(protocol, rule, *confirm), bound(protocol, rule, *refute))),
        Rule::Agreement { within, share, .. } => {
            let (within, share) = (bound(protocol, rule, *within), share * 100.0);
            Some((format!("{within} in {share:.0} % of the configurations"), format!("fewer of them within {within}")))
        }
        Rule::FalseAlarms { at_most, .. } => {
            let write = |x: f64| figure(protocol, rule, x);
            Some((
                format!("an interval of the rate below {}", write(*at_most)),
                format!("an interval of the rate above {}", write(ALPHA)),
            ))
        }
        Rule::Beside(rule) | Rule::Changed { now: rule, .. } => thresholds(protocol, rule),
        Rule::All(_) => None,
    }
}

/// What a rule compares, as a sentence without its full stop.
pub fn comparison(protocol: &Protocol, rule: &Rule) -> String {
    let subject = subject(protocol, rule);
    let of = |select: &str| match select {
        "" => String::new(),
        _ => format!(" where {}", conditions(select)),
    };
    match rule {
        Rule::Ratio { of: select, .. } => format!("{subject} relative to the baseline{}", of(select)),
        Rule::Value { of: select, .. } => format!("{subject}{}", of(select)),
        Rule::Exponent { of: select, .. } => format!("{subject}, between its two largest levels{}", of(select)),
        Rule::Picked { pick, of: select, over, .. } => {
            let which = if *pick == Pick::Lowest { "lowest" } else { "highest" };
            let best = if over.is_empty() { "all".to_string() } else { format!("those{}", of(over)) };
            format!("the {which} {subject}{} relative to the highest of {best}", of(select))
        }
        Rule::FalseAlarms { metric, of: select, .. } => format!(
            "{subject}: how often the 95 % CI of a ratio of {} excludes 1, in 4000 resamplings of two identical levels and as many rounds as the \
             profile usually takes{}",
            metric.replace('_', " "),
            of(select)
        ),
        Rule::Frequency { of: select, .. } => format!("{subject} relative to the baseline{}", of(select)),
        Rule::Beside(rule) | Rule::Changed { now: rule, .. } => comparison(protocol, rule),
        Rule::Trend { of: select, .. } => format!("{subject}{}", of(select)),
        Rule::Agreement { of: select, .. } => format!("{subject}, configuration by configuration{}", of(select)),
        Rule::All(_) => subject,
    }
}

pub fn scope(protocol: &Protocol, share: &Share) -> String {
    let label = |name: &str| protocol.metric(name).map_or(name.to_string(), |metric| metric.label.to_string());
    format!("in the baseline, {} make at least {:.0} % of {}", label(&share.part), share.at_least * 100.0, label(&share.whole))
}

fn range(low: String, high: String) -> String {
    if low == high { low } else { format!("{low} to {high}") }
}

/// Smallest to largest effect of one part of a rule; none where nothing was compared.
pub fn effects(protocol: &Protocol, evidence: &Evidence) -> Option<String> {
    let (low, high) = evidence.range()?;
    Some(range(figure(protocol, &evidence.rule, low), figure(protocol, &evidence.rule, high)))
}

/// For one metric that should equal another: in how many configurations it does, and how far it is off in the others. None where it does in
/// none, and the range of their ratio has to do.
fn equalities(protocol: &Protocol, evidence: &Evidence) -> Option<String> {
    let Rule::Agreement { metric, reference, .. } = &evidence.rule else { return None };
    let label = |name: &str| protocol.metric(name).map_or_else(|| name.replace('_', " "), |metric| metric.label.to_string());
    let off = |c: &record::judge::Comparison| (c.effect.estimate - 1.0).abs();
    let (all, equal) = (evidence.comparisons.len(), evidence.comparisons.iter().filter(|c| off(c) == 0.0).count());
    let most = evidence.comparisons.iter().map(off).fold(0.0, f64::max) * 100.0;
    let (ours, theirs) = (label(metric), label(reference));
    match all - equal {
        _ if equal == 0 => None,
        0 => Some(format!("{ours} = {theirs} in all {}", counted(all, "configuration"))),
        _ => Some(format!(
            "{ours} = {theirs} in {equal} of {}, within {} % in the others",
            counted(all, "configuration"),
            significant(most)
        )),
    }
}

/// The effects of all parts of a rule, with their intervals: changes in percent where they are ratios to a baseline.
pub fn effect_of_all(protocol: &Protocol, evidence: &[Evidence]) -> String {
    let said = |part: &Evidence| {
        let (low, high) = part.range()?;
        if let Some(equalities) = equalities(protocol, part) {
            return Some(equalities);
        }
        let figure = match &part.rule {
            Rule::Ratio { .. } => change(low, high),
            Rule::Exponent { along, .. } => range(format!("{along}^{low:.2}"), format!("{along}^{high:.2}")),
            _ => effects(protocol, part)?,
        };
        let what = match &part.rule {
            Rule::Exponent { metric, .. } => format!("{} grows as", protocol.metric(metric).map_or("", |m| m.label)),
            rule => subject(protocol, rule),
        };
        let interval = spread(part).map_or(String::new(), |(low, high, rounds)| {
            // In the effect's own unit.
            let span =
                if matches!(part.rule, Rule::Ratio { .. }) { change(low, high) } else { span(protocol, &part.rule, low, high) };
            format!(" (95 % CI {span}, n = {rounds})")
        });
        Some(format!("{what}{} {figure}{interval}", own_levels(protocol, evidence, part)))
    };
    once(evidence.iter().filter_map(said))
}

/// Parts in a row; what two say alike is said once.
fn once(parts: impl Iterator<Item = String>) -> String {
    let mut said: Vec<String> = Vec::new();
    parts.for_each(|part| said.extend((!said.contains(&part)).then_some(part)));
    said.join("; ")
}

/// Parts about the same figure are told apart by the levels that their selections do not share.
fn own_levels(protocol: &Protocol, evidence: &[Evidence], part: &Evidence) -> String {
    fn terms(part: &Evidence) -> Vec<&str> {
        shared_terms(part.rule.select().unwrap_or_default())
    }
    let alike: Vec<Vec<&str>> = evidence
        .iter()
        .filter(|other| !other.comparisons.is_empty() && subject(protocol, &other.rule) == subject(protocol, &part.rule))
        .map(terms)
        .collect();
    let own = terms(part).into_iter().filter(|term| !alike.iter().all(|terms| terms.contains(term)));
    let levels: Vec<String> = own.map(conditions).collect();
    if levels.is_empty() { String::new() } else { format!(" ({})", levels.join(", ")) }
}

/// What `{effect}` stands for: the effects bare for a single figure, labelled where a claim has several.
fn effect(protocol: &Protocol, judgement: &Judgement) -> String {
    let found = judgement.evidence.iter().filter_map(|e| Some((e, effects(protocol, e)?)));
    let said = |(e, text): (&Evidence, String)| match equalities(protocol, e) {
        // A claim of one part has a sentence around a bare figure.
        _ if judgement.evidence.len() == 1 => text,
        Some(equalities) => equalities,
        None => format!("{}{} {text}", subject(protocol, &e.rule), own_levels(protocol, &judgement.evidence, e)),
    };
    once(found.map(said))
}

/// An interval as the report writes it; an exact figure has none.
pub fn interval(protocol: &Protocol, rule: &Rule, effect: Interval) -> String {
    match effect.is_exact() {
        true => "exact".to_string(),
        false => format!("{} to {}", figure(protocol, rule, effect.low), figure(protocol, rule, effect.high)),
    }
}

/// The span of all intervals of one part of a rule, with the rounds behind them.
pub fn intervals(protocol: &Protocol, evidence: &Evidence) -> Option<String> {
    if evidence.comparisons.is_empty() {
        return None;
    }
    let Some((low, high, rounds)) = spread(evidence) else { return Some("exact".to_string()) };
    Some(format!("95 % CI {}, n = {rounds}", span(protocol, &evidence.rule, low, high)))
}

/// Ends of all intervals, and the rounds behind them; none where every figure is exact.
fn spread(evidence: &Evidence) -> Option<(f64, f64, String)> {
    let all = || evidence.comparisons.iter().filter(|c| !c.effect.is_exact());
    let (low, high) = (all().map(|c| c.effect.low).reduce(f64::min)?, all().map(|c| c.effect.high).reduce(f64::max)?);
    let (fewest, most) = (all().map(|c| c.rounds).min()?, all().map(|c| c.rounds).max()?);
    Some((low, high, range(fewest.to_string(), most.to_string())))
}

fn span(protocol: &Protocol, rule: &Rule, low: f64, high: f64) -> String {
    range(figure(protocol, rule, low), figure(protocol, rule, high))
}

/// What a verdict means for the reader.
pub fn meaning(protocol: &Protocol, judgement: &Judgement) -> String {
    let meaning = &judgement.claim.meaning;
    let text = match judgement.verdict {
        Verdict::Confirmed => &meaning.confirmed,
        Verdict::Refuted => &meaning.refuted,
        Verdict::Depends => &meaning.depends,
        Verdict::Inconclusive => &meaning.inconclusive,
        Verdict::Incomplete => {
            let (measured, planned) = judgement.measured();
            return format!("{measured} of {planned} configurations are measured, which is too few for a verdict.");
        }
        // What nobody's figures may carry was not left out by chance: the claim says why.
        Verdict::NotMeasured if judgement.claim.judged_on.is_empty() => return format!("Not measured: {}", meaning.inconclusive),
        Verdict::NotMeasured => return not_measured(&judgement.evidence, Against::Claim),
    };
    let text = match judgement.holds_in_part() {
        true => {
            let (judged, all) = judgement.parts();
            let rest = if judged == 1 { "holds" } else { "hold" };
            format!(
                "{judged} of {all} parts can be judged on this device and {rest} ({}); the others decide, too.",
                effect(protocol, judgement)
            )
        }
        false => filled(protocol, judgement, text),
    };
    match (judgement.carries, judgement.platform) {
        (false, _) => {
            let whose = carriers(&judgement.claim.judged_on);
            format!("Informational: {whose} carry this verdict. These figures alone would say: {}.", judgement.verdict)
        }
        (true, Platform::Dry) => format!("A prediction, from bytes alone. {text}"),
        (true, _) => text,
    }
}

/// A machine as pages name it: `simulated GPU (dry-24gib)`.
pub fn whose(of: Platform, machine: &str) -> String {
    format!("{} ({machine})", platform(of))
}

/// The same for a verdict that carries, without saying whose figures it rests on.
pub fn advice(protocol: &Protocol, judgement: &Judgement) -> String {
    let meaning = &judgement.claim.meaning;
    let text = match judgement.verdict {
        Verdict::Confirmed => &meaning.confirmed,
        Verdict::Refuted => &meaning.refuted,
        Verdict::Depends => &meaning.depends,
        Verdict::Inconclusive | Verdict::Incomplete | Verdict::NotMeasured => &meaning.inconclusive,
    };
    filled(protocol, judgement, text)
}

fn filled(protocol: &Protocol, judgement: &Judgement, text: &str) -> String {
    placed(text, &judgement.holds).replace("{effect}", &effect(protocol, judgement))
}

fn carriers(judged_on: &[Platform]) -> String {
    match &judged_on.iter().map(|p| platform(*p)).collect::<Vec<_>>()[..] {
        [] => "nobody's figures may".to_string(),
        on => format!("only figures of a {} may", alternatives(on)),
    }
}

/// Whether a rule, or a part of it, is about times.
pub fn is_timed(protocol: &Protocol, rule: &Rule) -> bool {
    rule.metrics().iter().any(|m| protocol.metric(m).is_none_or(|m| m.pass == Pass::Time))
}

/// Why a published figure stands as it does on one machine, where its evidence does not say it.
pub fn why(protocol: &Protocol, reproduction: &Reproduction) -> String {
    let Some(rule) = &reproduction.published.rule else {
        return String::new();
    };
    match (reproduction.comparable, reproduction.verdict) {
        (false, _) if !reproduction.published.judged_on.contains(&reproduction.platform) => {
            format!("Not comparable: {} be put against it.", carriers(&reproduction.published.judged_on))
        }
        (false, _) => "Not comparable: only times of a GPU may be put against it.".to_string(),
        (true, Verdict::NotMeasured) => not_measured(&reproduction.evidence, Against::Published),
        (true, _) if reproduction.platform == Platform::Gpu || !is_timed(protocol, rule) => String::new(),
        (true, _) => "By bytes alone: only times of a GPU may be put against the published ones.".to_string(),
    }
}

fn not_measured(evidence: &[Evidence], against: Against) -> String {
    let missing: usize = evidence.iter().map(|e| e.missing.len()).sum();
    let out_of_scope: usize = evidence.iter().map(|e| e.out_of_scope).sum();
    let what = if against == Against::Claim { "claim" } else { "figure" };
    let why = match (missing, out_of_scope) {
        (0, 0) => format!("this profile plans no configuration that the {what} is about"),
        (0, n) => format!("{} outside the {what}'s scope, none within it", counted(n, "configuration")),
        (n, 0) => format!("{} without a figure", counted(n, "configuration")),
        (n, m) => {
            format!("{} without a figure, {} outside the {what}'s scope", counted(n, "configuration"), counted(m, "configuration"))
        }
    };
    format!("Not measured here: {why}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_in_words() {
        assert_eq!(conditions("recipe=add reduction=sum|none"), "recipe = add and reduction = sum or none");
        assert_eq!(conditions("k=2|4|8"), "k = 2, 4 or 8");
        assert_eq!(conditions(""), "");
        assert_eq!(conditions("k=2 mode=a, k=4 mode=a"), "mode = a (2 configurations)");
    }

    #[test]
    fn a_place_is_a_sentence_of_its_own_or_a_count() {
        let found = |paths: &[&str], held, of| Holds { paths: paths.iter().map(|path| path.to_string()).collect(), held, of };
        assert_eq!(holds(&found(&["a=1|2", "b=2 c=3"], 3, 9)), "where a = 1 or 2, and where b = 2 and c = 3");
        assert_eq!(holds(&found(&["a=1 b=2 c=3"], 1, 9)), "in 1 of 9 configurations (see the evidence below)");
        assert_eq!(holds(&found(&[], 2, 9)), "in 2 of 9 configurations (see the evidence below)");
        assert_eq!(
            placed("It pays only where {where}.", &found(&[], 0, 9)),
            "It pays in none of the 9 configurations that the claim is about."
        );
        assert_eq!(placed("It pays only where {where}.", &found(&["a=1"], 4, 9)), "It pays only where a = 1.");
    }
}
