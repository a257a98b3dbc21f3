//! The two tables at the report's head: every claim and every published figure, one line each, with a column for each machine.

use super::claims::{claims_of, published_of};
use super::prose;
use super::recorded::Recorded;
use crate::judge::{Evidence, Reproduction, Verdict};
use crate::protocol::{Platform, Rule};
use serde::Serialize;
use std::collections::BTreeSet;

/// One claim or published figure.
#[derive(Debug, Serialize)]
pub struct Line {
    pub id: String,
    pub text: String,
    /// Where a published figure comes from; empty for a claim.
    pub source: String,
    /// What each machine found: symbols and effects.
    pub cells: Vec<String>,
}

/// The heads of the machines' columns.
pub fn heads(machines: &[&Recorded]) -> Vec<String> {
    machines.iter().map(|machine| format!("{} ({})", machine.machine, prose::platform(machine.platform()))).collect()
}

/// Every claim on every machine.
pub fn of_claims(recorded: &[Recorded], machines: &[&Recorded]) -> Vec<Line> {
    lines(
        recorded,
        machines,
        |runs| {
            let line = |(id, text): (&'static str, &'static str)| (id, text, "");
            claims_of(runs).into_iter().map(line).collect()
        },
        |run, id| {
            let own = run.judgements.iter().filter(|j| j.claim.id == id);
            own.map(|j| Found { symbol: prose::judged(j), platform: j.platform, evidence: j.evidence.iter().collect() }).collect()
        },
    )
}

/// Every published figure on every machine.
pub fn of_published(recorded: &[Recorded], machines: &[&Recorded]) -> Vec<Line> {
    lines(
        recorded,
        machines,
        |runs| published_of(runs).into_iter().map(|p| (p.id, p.figure, p.source)).collect(),
        |run, id| run.reproductions.iter().filter(|r| r.published.id == id).map(|r| Found::of_figure(run, r)).collect(),
    )
}

/// What a run found of one line.
struct Found<'a> {
    symbol: &'static str,
    platform: Platform,
    /// The parts that the symbol rests on; all where it rests on none.
    evidence: Vec<&'a Evidence>,
}

impl<'a> Found<'a> {
    fn of_figure(run: &Recorded, found: &'a Reproduction) -> Found<'a> {
        let is_judged =
            |e: &&Evidence| !found.comparable || run.platform() == Platform::Gpu || !prose::is_timed(run.protocol, e.rule);
        let evidence = found.evidence.iter().filter(is_judged).collect();
        Found { symbol: prose::compared(found), platform: found.platform, evidence }
    }
}

fn lines(
    recorded: &[Recorded],
    machines: &[&Recorded],
    named: impl Fn(&[Recorded]) -> Vec<(&'static str, &'static str, &'static str)>,
    found: impl for<'a> Fn(&'a Recorded, &str) -> Vec<Found<'a>>,
) -> Vec<Line> {
    let mut all = Vec::new();
    for runs in recorded.chunk_by(|a, b| a.protocol.name == b.protocol.name) {
        for (id, text, source) in named(runs) {
            let cell = |machine: &&Recorded| match runs.iter().find(|run| run.machine == machine.machine) {
                Some(run) => {
                    let said: Vec<String> = found(run, id).iter().map(|found| say(run, found)).collect();
                    if said.is_empty() { not_measured() } else { said.join("<br>") }
                }
                None => format!("{} not run", not_measured()),
            };
            all.push(Line {
                id: id.to_string(),
                text: text.to_string(),
                source: source.to_string(),
                cells: machines.iter().map(cell).collect(),
            });
        }
    }
    all
}

fn not_measured() -> String {
    prose::symbol(Verdict::NotMeasured).to_string()
}

/// A symbol and the effects behind it, one for each part of the rule.
fn say(run: &Recorded, found: &Found) -> String {
    let by = if found.platform == Platform::Python { format!("{}: ", prose::platform(found.platform)) } else { String::new() };
    // Where its parts differ, each has its own symbol.
    let verdicts: BTreeSet<Verdict> = found.evidence.iter().filter(|e| !e.comparisons.is_empty()).map(|e| e.verdict).collect();
    if verdicts.len() > 1 && found.symbol != prose::SHOWN {
        let part = |e: &&Evidence| Some(format!("{} {}", prose::symbol(e.verdict), effect(run, e, &found.evidence)?));
        let parts: Vec<String> = found.evidence.iter().filter_map(part).collect();
        return format!("{by}{} in parts:<br>{}", found.symbol, parts.join("<br>"));
    }
    let effects: Vec<String> = found.evidence.iter().filter_map(|evidence| effect(run, evidence, &found.evidence)).collect();
    format!("{by}{} {}", found.symbol, effects.join("<br>")).trim_end().to_string()
}

/// The terms of the selection of cells that a rule is about.
fn selected(rule: &Rule) -> impl Iterator<Item = &'static str> {
    rule.select().unwrap_or_default().split_whitespace()
}

/// One part's effects. Parts about the same figure are told apart by the levels that their cells do not share.
fn effect(run: &Recorded, evidence: &Evidence, parts: &[&Evidence]) -> Option<String> {
    let subject = |e: &Evidence| prose::subject(run.protocol, e.rule);
    let alike = || parts.iter().filter(|e| subject(e) == subject(evidence));
    let is_shared = |term: &str| alike().all(|e| selected(e.rule).any(|t| t == term));
    let own = selected(evidence.rule).filter(|term| !is_shared(term));
    let levels: Vec<String> = own.filter_map(|term| Some(term.split_once('=')?.1.replace('|', " or "))).collect();
    let which = if levels.is_empty() { String::new() } else { format!(" ({})", levels.join(", ")) };

    let effects = prose::effects(run.protocol, evidence)?;
    let interval = prose::intervals(run.protocol, evidence).filter(|text| text != "exact");
    let interval = interval.map_or(String::new(), |text| format!(", within {text}"));
    Some(format!("{}{which} {effects}{interval}", subject(evidence)))
}
