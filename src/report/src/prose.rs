//! Verdicts, effects and conditions in words.

use base::order::distinct;
use base::stats::Interval;
use base::units::{counted, range};
use record::judge::{Evidence, Judged, Judgement, Outcome, Reproduction, Verdict, WhereItHolds};
use record::protocol::{Metric, Pass, PlainCell, PlainProtocol, Platform, alternatives, conditions, shared_terms};
use record::results::Status;
use record::rules::{PlainRule, RulePart};
use std::collections::BTreeSet;

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
        Verdict::FallsShort => "△",
        Verdict::InPart => "◔",
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
        (_, Verdict::InPart) => "holds as far as it can be judged here".to_string(),
        _ => verdict.to_string(),
    }
}

/// What became of a claim or a published figure on one machine.
pub fn standing<T>(judged: &Judged<T>, against: Against) -> String {
    let (found, (measured, planned)) = (judged.verdict, judged.measured());
    let prediction = if judged.platform == Platform::Dry { " (prediction)" } else { "" };
    let standing = match (judged.carries, found) {
        (false, _) if against == Against::Published => format!("{SHOWN} not comparable"),
        (_, Verdict::NotMeasured) => verdict(found, against),
        (false, Verdict::Incomplete) => format!("{SHOWN} informational, {measured} of {planned} measured"),
        (false, _) => format!("{SHOWN} informational"),
        (true, Verdict::Incomplete) => {
            format!("{} {measured} of {planned} measured, so far {}{prediction}", symbol(found), word(judged.so_far, against))
        }
        (true, Verdict::Inconclusive) if against == Against::Claim => {
            format!("{}{prediction}{}", verdict(found, against), after(&judged.evidence))
        }
        (true, _) => format!("{}{prediction}", verdict(found, against)),
    };
    match judged.parts() {
        (some, all) if some < all && found != Verdict::NotMeasured => format!("{standing} ({some} of {all} parts)"),
        _ => standing,
    }
}

/// The verdict on a claim over all whose figures carry it: where they contradict each other, it depends. None where nobody's do.
pub fn together<'a>(judged: impl IntoIterator<Item = &'a Judgement>) -> Option<Verdict> {
    let carried = judged.into_iter().filter(|judged| judged.carries && judged.verdict != Verdict::NotMeasured);
    let mut verdicts: BTreeSet<Verdict> = carried.map(|judged| judged.verdict).collect();
    // What one machine leaves open or has not measured whole contradicts no other's.
    let [incomplete, open] = [Verdict::Incomplete, Verdict::Inconclusive].map(|open| verdicts.take(&open));
    let open = incomplete.or(open);
    let part = if verdicts.contains(&Verdict::Confirmed) { verdicts.take(&Verdict::InPart) } else { None };
    match verdicts.len() {
        0 | 1 => open.filter(|_| !verdicts.contains(&Verdict::Depends)).or(part).or(verdicts.first().copied()),
        _ => Some(Verdict::Depends),
    }
}

/// A metric's label, which says once that it is a prediction.
pub fn label(metric: &Metric, is_prediction: bool) -> String {
    let label = metric.label.to_string();
    if is_prediction && !label.starts_with("predicted") { format!("predicted {label}") } else { label }
}

/// Why nothing is decided: after how many rounds intervals still reach over a threshold, or what failed.
fn after(evidence: &[Evidence]) -> String {
    let open = || evidence.iter().filter(|e| e.is_judged).flat_map(|e| &e.comparisons).filter(|c| c.outcome == Outcome::Straddles);
    let failed: usize = evidence.iter().map(|e| e.failed).sum();
    match (open().map(|c| c.rounds).min(), open().map(|c| c.rounds).max()) {
        (Some(fewest), Some(most)) => format!(" after {} rounds", range(fewest.to_string(), most.to_string())),
        _ if failed > 0 => format!(": {failed} failed"),
        _ => String::new(),
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

/// More conditions than this are no sentence: then it is said how many configurations there are, and a table names them.
const MOST_PATHS: usize = 2;
const MOST_CONDITIONS: usize = 2;

/// Where a claim that depends holds, after its verb: `where model = gpt2 or resnet50`, `in 8 of 24 configurations`.
pub fn holds(holds: &WhereItHolds) -> String {
    let is_short = holds.paths.len() <= MOST_PATHS && holds.paths.iter().all(|path| path.split(' ').count() <= MOST_CONDITIONS);
    let paths: Vec<String> = holds.paths.iter().map(|path| conditions(path)).collect();
    match (holds.held, &paths[..]) {
        (0, _) => format!("in none of the {} that the claim is about", counted(holds.of, "configuration")),
        (held, [one]) if is_short && held < holds.of => format!("where {one}"),
        (held, [one, other]) if is_short && held < holds.of => format!("where {one}, and where {other}"),
        (held, _) => format!("in {held} of {} (see the evidence below)", counted(holds.of, "configuration")),
    }
}

/// Smallest to largest effect of one part of a rule, with the span of all intervals; empty where nothing was compared.
pub fn effects(protocol: &PlainProtocol, evidence: &Evidence) -> String {
    let Some((low, high)) = evidence.range() else { return String::new() };
    let written = |low, high| evidence.rule.effects(&protocol.metrics, low, high);
    let interval =
        spread(evidence).map_or("exact".to_string(), |(low, high, rounds)| format!("95 % CI {}, n = {rounds}", written(low, high)));
    format!("{}, {interval}{}", written(low, high), evidence.rule.remark(&evidence.comparisons))
}

/// The effects of all parts of a rule, with their intervals: changes in percent where they are ratios to a baseline.
pub fn effect_of_all(protocol: &PlainProtocol, evidence: &[Evidence]) -> String {
    let metrics = &protocol.metrics[..];
    let said = |part: &Evidence| {
        let (low, high) = part.range()?;
        if let Some(sentence) = part.rule.sentence(metrics, &part.comparisons) {
            return Some(sentence);
        }
        let interval = spread(part).map_or(String::new(), |(low, high, rounds)| {
            // In the effect's own unit.
            format!(" (95 % CI {}, n = {rounds})", part.rule.effects_in_words(metrics, low, high))
        });
        let (what, figure) = (part.rule.effect_subject(metrics), part.rule.effects_in_words(metrics, low, high));
        Some(format!("{what}{} {figure}{interval}", own_levels(protocol, evidence, part)))
    };
    // What two parts say alike is said once.
    distinct(evidence.iter().filter_map(said)).join("; ")
}

/// Parts about the same figure are distinguished by the levels that their selections do not share.
fn own_levels(protocol: &PlainProtocol, evidence: &[Evidence], part: &Evidence) -> String {
    let subject = |part: &Evidence| part.rule.subject(&protocol.metrics);
    let alike = evidence.iter().filter(|other| !other.comparisons.is_empty() && subject(other) == subject(part));
    let alike: Vec<Vec<&str>> = alike.map(|other| shared_terms(other.rule.select())).collect();
    let own = shared_terms(part.rule.select()).into_iter().filter(|term| !alike.iter().all(|terms| terms.contains(term)));
    let levels: Vec<String> = own.map(conditions).collect();
    if levels.is_empty() { String::new() } else { format!(" ({})", levels.join(", ")) }
}

/// An interval as the report writes it; an exact figure has none.
pub fn interval(protocol: &PlainProtocol, rule: &RulePart, effect: Interval) -> String {
    let write = |x: f64| rule.figure(&protocol.metrics, x);
    if effect.is_exact() { "exact".to_string() } else { format!("{} to {}", write(effect.low), write(effect.high)) }
}

/// Ends of all intervals, and the rounds behind them; none where every figure is exact.
fn spread(evidence: &Evidence) -> Option<(f64, f64, String)> {
    let all = || evidence.comparisons.iter().filter(|c| !c.effect.is_exact());
    let (low, high) = (all().map(|c| c.effect.low).reduce(f64::min)?, all().map(|c| c.effect.high).reduce(f64::max)?);
    let (fewest, most) = (all().map(|c| c.rounds).min()?, all().map(|c| c.rounds).max()?);
    Some((low, high, range(fewest.to_string(), most.to_string())))
}

/// What a verdict leaves unsaid: where a claim that depends holds, or why there is no verdict.
pub fn meaning(judgement: &Judgement) -> String {
    let text = match judgement.verdict {
        Verdict::Depends => format!("It holds {}.", holds(&judgement.holds)),
        Verdict::Incomplete => {
            let (measured, planned) = judgement.measured();
            format!("{measured} of {planned} configurations are measured, which is too few for a verdict.")
        }
        Verdict::InPart => {
            let (judged, all) = judgement.parts();
            format!("{judged} of {all} parts can be judged on this device and hold; the others decide, too.")
        }
        Verdict::FallsShort => "The effect is clear, and smaller than claimed: more rounds would not change that.".to_string(),
        _ => String::new(),
    };
    let whose = carriers(&judgement.of.judged_on);
    match judgement.carries {
        true => text,
        false => format!("{whose} carry this verdict; these figures alone would say: {}. {text}", judgement.verdict),
    }
}

/// Why a claim that such figures may judge has no verdict yet.
pub fn wanting(judged_on: &[Platform]) -> &'static str {
    if judged_on == [Platform::Gpu] { "not known yet: it needs a GPU" } else { "not measured yet" }
}

/// A machine as pages name it: `CPU (amd-epyc-2c)`, `simulated 24 GiB GPU`.
pub fn whose(of: Platform, machine: &str) -> String {
    let gib = machine.strip_prefix("dry-").and_then(|size| size.strip_suffix("gib")?.parse::<u32>().ok());
    match (gib, of) {
        (Some(gib), Platform::Dry) => format!("simulated {gib} GiB GPU"),
        (Some(gib), of) => format!("{} (simulated {gib} GiB GPU)", platform(of)),
        (None, of) => format!("{} ({machine})", platform(of)),
    }
}

/// Whose figures a verdict rests on, and whether PyTorch in Python took them: all others are this lab's, through libtorch.
pub fn taken_by<T>(judged: &Judged<T>, machine: &str) -> String {
    let cells = || judged.evidence.iter().filter(|part| part.is_judged).flat_map(|part| &part.comparisons).map(|c| &c.cell);
    let in_python = judged.platform != Platform::Python && cells().next().is_some() && cells().all(PlainCell::is_reference);
    format!("{}{}", whose(judged.platform, machine), if in_python { ", in Python" } else { "" })
}

fn carriers(judged_on: &[Platform]) -> String {
    match &judged_on.iter().map(|p| platform(*p)).collect::<Vec<_>>()[..] {
        [] => "Nobody's figures may".to_string(),
        on => format!("Only figures of a {} may", alternatives(on)),
    }
}

/// A text with a capital letter first.
pub fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().collect::<String>() + letters.as_str())
}

/// A whole number, in groups of three digits.
pub fn digits(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

/// Whether a rule, or a part of it, is about times.
pub fn is_timed(protocol: &PlainProtocol, rule: &PlainRule) -> bool {
    rule.metrics().any(|m| protocol.metric(m).is_none_or(|m| m.pass == Pass::Time))
}

/// Why a published figure stands as it does on one machine, where its evidence does not say it.
pub fn why(protocol: &PlainProtocol, reproduction: &Reproduction) -> String {
    let Some(rule) = &reproduction.of.rule else {
        return String::new();
    };
    match (reproduction.carries, reproduction.verdict) {
        (false, _) if !reproduction.of.judged_on.contains(&reproduction.platform) => {
            format!("Not comparable. {} be put against it.", carriers(&reproduction.of.judged_on))
        }
        (false, _) => "Not comparable: only times of a GPU may be put against it.".to_string(),
        (true, Verdict::NotMeasured) => not_measured(&reproduction.evidence),
        (true, _) if reproduction.platform == Platform::Gpu || !is_timed(protocol, rule) => String::new(),
        (true, _) => "By bytes alone: only times of a GPU may be put against the published ones.".to_string(),
    }
}

/// Why a published figure was not measured.
fn not_measured(evidence: &[Evidence]) -> String {
    let missing: usize = evidence.iter().map(|e| e.missing.len()).sum();
    let out_of_scope: usize = evidence.iter().map(|e| e.out_of_scope).sum();
    let why = match (missing, out_of_scope) {
        (0, 0) => "this profile plans no configuration that the figure is about".to_string(),
        (0, n) => format!("{} outside the figure's scope, none within it", counted(n, "configuration")),
        (n, 0) => format!("{} without a figure", counted(n, "configuration")),
        (n, m) => {
            format!("{} without a figure, {} outside the figure's scope", counted(n, "configuration"), counted(m, "configuration"))
        }
    };
    format!("Not measured here: {why}.")
}
