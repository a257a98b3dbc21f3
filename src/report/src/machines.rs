//! The machines behind a report: how each was set up, what it found on the whole, and what went wrong there.

use super::claims::claims_of;
use super::findings::Findings;
use super::markup::Markdown;
use super::prose;
use super::recorded::Recorded;
use base::order::grouped;
use base::units::{Bytes, counted};
use minijinja::{Value, context};
use record::judge::{Judgement, Verdict};
use record::results::{Manifest, Status};
use std::collections::BTreeMap;

/// The machines as columns, and every claim that one of them has figures of with its verdicts, machine by machine.
pub fn claims(findings: &Findings) -> (Vec<String>, Vec<Value>) {
    let mut rows = Vec::new();
    for experiment in &findings.experiments {
        let page = Markdown::link(&experiment.runs[0].protocol.title, &experiment.page());
        for (id, text) in claims_of(experiment.runs) {
            let on = |machine: &&Recorded| {
                let of_machine = experiment.runs.iter().filter(|run| run.machine == machine.machine);
                let judged =
                    of_machine.flat_map(|run| &run.judgements).filter(|j| j.of.id == id && j.verdict != Verdict::NotMeasured);
                let signs: Vec<&str> = judged.map(|j| if j.carries { prose::symbol(j.verdict) } else { prose::SHOWN }).collect();
                signs.join(" ")
            };
            let verdicts: Vec<String> = findings.machines.iter().map(on).collect();
            if verdicts.iter().any(|signs| !signs.is_empty()) {
                rows.push(context! { claim => text, verdicts, page => &page });
            }
        }
    }
    (findings.machines.iter().map(|machine| machine.whose()).collect(), rows)
}

/// Each way in which a machine was set up, with the experiments that were run so: rows of a table.
pub fn setups(recorded: &[Recorded]) -> Vec<Vec<String>> {
    let mut ordered: Vec<&Recorded> = recorded.iter().collect();
    ordered.sort_by(|a, b| (a.platform(), &a.machine).cmp(&(b.platform(), &b.machine)));
    let rows = grouped(ordered.into_iter().map(|run| (setup(run), run.protocol.name.as_str())));
    rows.into_iter().map(|(setup, experiments)| [&setup[..], &[experiments.join(", ")]].concat()).collect()
}

/// Machine, device, hardware, libtorch, flags, profile and revision.
fn setup(run: &Recorded) -> [String; 7] {
    let Manifest { identity, profile, .. } = &run.manifest;
    let pairs = |map: &BTreeMap<String, String>| map.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>();
    let mut hardware = pairs(&identity.hardware);
    if let Some(limit) = identity.memory_limit {
        hardware.push(format!("memory limited to {}", Bytes(limit)));
    }
    let short = |revision: &&str| revision.chars().take(12).collect::<String>();
    let revisions = run.manifest.revisions().iter().map(short).collect::<Vec<_>>().join(", ");
    [
        run.machine.clone(),
        prose::platform(run.platform()).to_string(),
        hardware.join(", "),
        identity.libtorch.clone(),
        pairs(&identity.flags).join(", "),
        profile.to_string(),
        if run.manifest.is_dirty() { format!("{revisions} with local changes") } else { revisions },
    ]
}

/// Claims by what became of them on one machine, counted once each, and apart from those about the lab itself.
pub fn summary(recorded: &[Recorded], machine: &Recorded) -> String {
    let own = recorded.iter().filter(|r| r.machine == machine.machine);
    let mut claims: BTreeMap<(&str, &str), Vec<&Judgement>> = BTreeMap::new();
    let mut checks: BTreeMap<(&str, &str), bool> = BTreeMap::new();
    for (run, judgement) in own.flat_map(|run| run.judgements.iter().map(move |judgement| (run, judgement))) {
        let id = (run.protocol.name.as_str(), judgement.of.id.as_str());
        if !run.is_self_check(&judgement.of.id) {
            claims.entry(id).or_default().push(judgement);
        } else if judgement.carries && !matches!(judgement.verdict, Verdict::NotMeasured | Verdict::Incomplete) {
            *checks.entry(id).or_insert(true) &= judgement.verdict == Verdict::Confirmed;
        }
    }
    let mut counts: BTreeMap<(Verdict, &str), usize> = BTreeMap::new();
    for judged in claims.values() {
        // Where our side and PyTorch's differ it depends; what only one of them has is that one's.
        let verdict = prose::together(judged.iter().copied()).unwrap_or(Verdict::NotMeasured);
        let name = match verdict {
            Verdict::Confirmed => "confirmed",
            Verdict::Refuted => "refuted",
            Verdict::Depends => "depending",
            Verdict::FallsShort => "falling short",
            Verdict::InPart => "holding in part",
            Verdict::Inconclusive => "not decided",
            Verdict::Incomplete => "not all measured",
            Verdict::NotMeasured if judged.iter().any(|judged| judged.verdict != Verdict::NotMeasured) => "informational",
            Verdict::NotMeasured => "need another device",
        };
        *counts.entry((verdict, name)).or_default() += 1;
    }
    let said: Vec<String> = counts.iter().map(|((_, name), count)| format!("{count} {name}")).collect();
    let of = if machine.is_prediction() { "predictions for " } else { "" };
    let hold = checks.values().filter(|holds| **holds).count();
    let checks = if checks.is_empty() { String::new() } else { format!("; self-checks: {hold} of {} hold", checks.len()) };
    format!(
        "{}: {of}{}: {}{}{checks}",
        machine.whose(),
        counted(claims.len(), "claim"),
        said.join(", "),
        published_summary(recorded, machine)
    )
}

/// What became of the published figures on one machine, counted; nothing where it has none.
fn published_summary(recorded: &[Recorded], machine: &Recorded) -> String {
    let mut counts: BTreeMap<Verdict, usize> = BTreeMap::new();
    let mut not_comparable = 0;
    for found in recorded.iter().filter(|r| r.machine == machine.machine).flat_map(|r| &r.reproductions) {
        if found.carries { *counts.entry(found.verdict).or_default() += 1 } else { not_comparable += 1 }
    }
    let total = counts.values().sum::<usize>() + not_comparable;
    let mut said: Vec<String> =
        counts.into_iter().map(|(verdict, n)| format!("{n} {}", prose::word(verdict, prose::Against::Published))).collect();
    if not_comparable > 0 {
        said.push(format!("{not_comparable} not comparable"));
    }
    if total == 0 { String::new() } else { format!("; {}: {}", counted(total, "published figure"), said.join(", ")) }
}

/// Cells that failed, ran out of memory or are not measured in full, counted by machine and experiment.
pub fn troubles(recorded: &[Recorded]) -> Vec<String> {
    let mut lines = Vec::new();
    for run in recorded {
        let mut counts: BTreeMap<Status, usize> = BTreeMap::new();
        for cell in run.all_cells() {
            if let Some(status) = run.trouble(&cell).filter(|status| *status != Status::Skipped) {
                *counts.entry(status).or_default() += 1;
            }
        }
        let mut said: Vec<String> = counts.into_iter().map(|(status, n)| format!("{n} {}", prose::status(status))).collect();
        let awaited = run.awaited().len();
        if awaited > 0 {
            said.push(format!("{awaited} not measured in full yet"));
        }
        if !said.is_empty() {
            lines.push(format!("{} on {}: {}", run.protocol.name, run.machine, said.join(", ")));
        }
    }
    lines
}
