//! Claims as the report shows them: the ledger, and each claim with its evidence.

use super::prose;
use super::recorded::Recorded;
use crate::protocol::{Cell, Rule};
use crate::record::Status;
use crate::stats::median;
use crate::units::{plain, significant};
use crate::verdict::{Comparison, Evidence, Judgement, Outcome, Verdict};
use serde::Serialize;

/// More comparisons than this are folded away, and only the most telling stand in the open.
const FEW: usize = 8;

/// One claim on one machine, as a line of the table at the top.
#[derive(Debug, Serialize)]
pub struct Entry {
    pub claim: String,
    pub text: String,
    pub machine: String,
    pub device: String,
    pub verdict: String,
    /// A line for each part of the claim's rule.
    pub effects: Vec<String>,
    pub intervals: Vec<String>,
}

/// A claim with what every machine found.
#[derive(Debug, Serialize)]
pub struct ClaimSection {
    pub id: String,
    pub from: String,
    pub text: String,
    pub findings: Vec<Finding>,
}

#[derive(Debug, Serialize)]
pub struct Finding {
    pub machine: String,
    pub device: String,
    pub verdict: String,
    pub meaning: String,
    pub evidence: Vec<Part>,
}

/// The evidence for one part of a claim's rule.
#[derive(Debug, Serialize)]
pub struct Part {
    pub verdict: String,
    pub comparison: String,
    pub confirm: String,
    pub refute: String,
    /// How many comparisons there are and where they fall.
    pub tally: String,
    pub effects: String,
    pub out_of_scope: String,
    pub missing: Vec<String>,
    /// What all compared cells have in common.
    pub common: String,
    pub head: Vec<String>,
    /// All comparisons, or the most telling ones where there are many.
    pub shown: Vec<Vec<String>>,
    /// All comparisons where not all are shown.
    pub all: Vec<Vec<String>>,
}

/// Every claim on every machine; machines without the experiment are named as such.
pub fn ledger(recorded: &[Recorded], machines: &[&Recorded]) -> Vec<Entry> {
    let mut entries = Vec::new();
    for of_experiment in recorded.chunk_by(|a, b| a.protocol.name == b.protocol.name) {
        for (id, text) in claims_of(of_experiment) {
            for machine in machines {
                let here = of_experiment.iter().find(|r| r.machine == machine.machine);
                let judged =
                    here.into_iter().flat_map(|r| r.judgements.iter().map(move |j| (r, j))).filter(|(_, j)| j.claim.id == id);
                let before = entries.len();
                entries.extend(judged.map(|(recorded, judgement)| entry(recorded, judgement)));
                if entries.len() == before {
                    entries.push(absent(id, text, machine));
                }
            }
        }
    }
    entries
}

/// The claims of an experiment over all machines: ids with their texts, in the order in which they first appear.
fn claims_of(of_experiment: &[Recorded]) -> Vec<(&'static str, &'static str)> {
    let mut claims: Vec<(&str, &str)> = Vec::new();
    for claim in of_experiment.iter().flat_map(|r| r.protocol.claims) {
        if !claims.iter().any(|(id, _)| *id == claim.id) {
            claims.push((claim.id, claim.text));
        }
    }
    claims
}

fn entry(recorded: &Recorded, judgement: &Judgement) -> Entry {
    let parts = || judgement.evidence.iter().filter(|e| !e.comparisons.is_empty());
    let protocol = recorded.protocol;
    let effect = |e: &Evidence| format!("{} {}", prose::subject(protocol, e.rule), prose::effects(protocol, e).unwrap_or_default());
    Entry {
        claim: judgement.claim.id.to_string(),
        text: judgement.claim.text.to_string(),
        machine: recorded.machine.clone(),
        device: prose::platform(judgement.platform).to_string(),
        verdict: prose::standing(judgement),
        effects: parts().map(effect).collect(),
        intervals: parts().filter_map(|e| prose::intervals(protocol, e)).collect(),
    }
}

fn absent(id: &str, text: &str, machine: &Recorded) -> Entry {
    Entry {
        claim: id.to_string(),
        text: text.to_string(),
        machine: machine.machine.clone(),
        device: prose::platform(machine.platform()).to_string(),
        verdict: format!("{}: experiment not run", prose::verdict(Verdict::NotMeasured)),
        effects: Vec::new(),
        intervals: Vec::new(),
    }
}

/// The claims of one experiment with the findings of its machines.
pub fn sections(of_experiment: &[Recorded]) -> Vec<ClaimSection> {
    let section = |(id, text): (&str, &str)| {
        let judged =
            || of_experiment.iter().flat_map(|r| r.judgements.iter().map(move |j| (r, j))).filter(|(_, j)| j.claim.id == id);
        ClaimSection {
            id: id.to_string(),
            from: judged().next().map_or(String::new(), |(_, j)| j.claim.from.to_string()),
            text: text.to_string(),
            findings: judged().map(|(recorded, judgement)| finding(recorded, judgement)).collect(),
        }
    };
    claims_of(of_experiment).into_iter().map(section).collect()
}

fn finding(recorded: &Recorded, judgement: &Judgement) -> Finding {
    Finding {
        machine: recorded.machine.clone(),
        device: prose::platform(judgement.platform).to_string(),
        verdict: prose::standing(judgement),
        meaning: prose::meaning(recorded.protocol, judgement),
        evidence: judgement.evidence.iter().map(|evidence| part(recorded, evidence)).collect(),
    }
}

fn part(recorded: &Recorded, evidence: &Evidence) -> Part {
    let protocol = recorded.protocol;
    let (confirm, refute) = prose::thresholds(protocol, evidence.rule).unwrap_or_default();
    let common = common(&evidence.comparisons);
    let row = |c: &Comparison| comparison_row(recorded, evidence.rule, c, &common);
    let many = evidence.comparisons.len() > FEW;
    let shown = if many { most_telling(&evidence.comparisons) } else { evidence.comparisons.iter().collect() };
    Part {
        verdict: prose::verdict(evidence.verdict),
        comparison: prose::comparison(protocol, evidence.rule),
        confirm,
        refute,
        tally: tally(&evidence.comparisons),
        effects: prose::effects(protocol, evidence).map_or(String::new(), |effects| {
            let intervals = prose::intervals(protocol, evidence).unwrap_or_default();
            let spread = if intervals == "exact" { "exact".to_string() } else { format!("intervals within {intervals}") };
            format!("{effects}, {spread}{}", prediction_quality(evidence))
        }),
        out_of_scope: out_of_scope(recorded, evidence),
        missing: missing(evidence),
        head: ["effect", "interval", "rounds", "outcome"].map(str::to_string).to_vec(),
        shown: shown.into_iter().map(row).collect(),
        all: if many { evidence.comparisons.iter().map(row).collect() } else { Vec::new() },
        common: common
            .iter()
            .filter(|(factor, _)| !is_named(evidence.rule, factor))
            .map(|(factor, level)| format!("{factor} = {level}"))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// For predictions: how far they are off, and how often they promise too much room.
fn prediction_quality(evidence: &Evidence) -> String {
    if !matches!(evidence.rule, Rule::Agreement { .. }) || evidence.comparisons.is_empty() {
        return String::new();
    }
    let ratios: Vec<f64> = evidence.comparisons.iter().map(|c| c.effect.estimate).collect();
    let errors: Vec<f64> = ratios.iter().map(|ratio| (ratio - 1.0).abs() * 100.0).collect();
    let too_little = ratios.iter().filter(|ratio| **ratio < 0.99).count();
    let share = too_little as f64 / ratios.len() as f64 * 100.0;
    let typical = median(&errors);
    let typical = if typical >= 0.01 { significant(typical) } else { plain(typical) };
    format!("; median error {typical} %, too little by more than 1 % in {share:.0} % of the cells")
}

/// Whether a rule's own selection says something about a factor, so that it need not be said again.
fn is_named(rule: &Rule, factor: &str) -> bool {
    match rule {
        Rule::Trend { along, .. } if *along == factor => true,
        Rule::Ratio { of, .. }
        | Rule::Value { of, .. }
        | Rule::Exponent { of, .. }
        | Rule::Trend { of, .. }
        | Rule::Agreement { of, .. } => {
            of.split_whitespace().any(|term| term.split_once('=').is_some_and(|(named, _)| named == factor))
        }
        Rule::All(_) => false,
    }
}

/// The levels that all compared cells share.
fn common(comparisons: &[Comparison]) -> Vec<(String, String)> {
    let Some(first) = comparisons.first().filter(|_| comparisons.len() > 1) else {
        return Vec::new();
    };
    let shared = |(factor, level): &&(String, String)| comparisons.iter().all(|c| c.cell.get(factor) == Some(level));
    first.cell.levels().iter().filter(shared).cloned().collect()
}

fn comparison_row(recorded: &Recorded, rule: &Rule, comparison: &Comparison, common: &[(String, String)]) -> Vec<String> {
    let factors: Vec<&str> = common.iter().map(|(factor, _)| factor.as_str()).collect();
    let name = |cell: &Cell| Some(cell.without(&factors)).filter(|name| !name.is_empty()).unwrap_or_else(|| cell.to_string());
    let cell = match (rule, &comparison.baseline) {
        // An exponent is about two cells, and its reader wants both.
        (Rule::Exponent { along, .. }, Some(before)) => {
            format!("`{}`, from {along} = {}", name(&comparison.cell), before.get(along).unwrap_or("?"))
        }
        (Rule::Trend { along, .. }, _) => format!("`{}`", comparison.cell.without(&[&factors[..], &[*along]].concat())),
        _ => format!("`{}`", name(&comparison.cell)),
    };
    let rounds = if comparison.effect.is_exact() { "–".to_string() } else { comparison.rounds.to_string() };
    vec![
        cell,
        prose::figure(recorded.protocol, rule, comparison.effect.estimate),
        prose::interval(recorded.protocol, rule, comparison.effect),
        rounds,
        prose::outcome(comparison.outcome).to_string(),
    ]
}

fn tally(comparisons: &[Comparison]) -> String {
    let count = |outcome: Outcome| comparisons.iter().filter(|c| c.outcome == outcome).count();
    let said = [
        (count(Outcome::Confirms), "confirm", "confirms"),
        (count(Outcome::Refutes), "refute", "refutes"),
        (count(Outcome::Between), "lie between the thresholds", "lies between the thresholds"),
        (count(Outcome::Straddles), "have an interval over a threshold", "has an interval over a threshold"),
    ];
    let parts: Vec<String> = said
        .into_iter()
        .filter(|(n, ..)| *n > 0)
        .map(|(n, many, one)| if n == 1 { format!("1 {one}") } else { format!("{n} {many}") })
        .collect();
    match comparisons.len() {
        0 => "nothing to compare".to_string(),
        n => format!("{}: {}", prose::counted(n, "comparison"), parts.join(", ")),
    }
}

/// The extremes of each outcome, in the order of the grid.
fn most_telling(comparisons: &[Comparison]) -> Vec<&Comparison> {
    let mut chosen: Vec<usize> = Vec::new();
    for outcome in [Outcome::Confirms, Outcome::Refutes, Outcome::Between, Outcome::Straddles] {
        let of_outcome = || comparisons.iter().enumerate().filter(|(_, c)| c.outcome == outcome);
        let by_effect = |a: &(usize, &Comparison), b: &(usize, &Comparison)| a.1.effect.estimate.total_cmp(&b.1.effect.estimate);
        chosen.extend(of_outcome().min_by(by_effect).map(|(i, _)| i));
        chosen.extend(of_outcome().max_by(by_effect).map(|(i, _)| i));
    }
    chosen.sort_unstable();
    chosen.dedup();
    chosen.into_iter().map(|i| &comparisons[i]).collect()
}

fn out_of_scope(recorded: &Recorded, evidence: &Evidence) -> String {
    match evidence.rule {
        Rule::Ratio { scope: Some(share), .. } => {
            let outside = match evidence.out_of_scope {
                0 => "none outside".to_string(),
                n => format!("{} outside", prose::counted(n, "cell")),
            };
            format!("Judged only where, {}: {outside}", prose::scope(recorded.protocol, share))
        }
        _ => String::new(),
    }
}

/// Cells that gave no figure, by reason.
fn missing(evidence: &Evidence) -> Vec<String> {
    let mut by_reason: Vec<(&str, Vec<String>)> = Vec::new();
    for (cell, reason) in &evidence.missing {
        let name = format!("`{cell}`");
        match by_reason.iter_mut().find(|(r, _)| r == reason) {
            Some((_, cells)) => cells.push(name),
            None => by_reason.push((reason, vec![name])),
        }
    }
    let said = |(reason, cells): (&str, Vec<String>)| {
        let reason = reason.trim_end_matches('.').replace("oom", prose::status(Status::Oom));
        match cells.len() {
            1..=3 => format!("{}: {reason}", cells.join(", ")),
            n => format!("{n} cells, {} the first: {reason}", cells[0]),
        }
    };
    by_reason.into_iter().map(said).collect()
}
