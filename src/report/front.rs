//! The front page: what to do first, every technique in order of what it saves, what the guides' claims come to, and what is not known.

use super::claims::claims_of;
use super::effects::{self, Effect, percent};
use super::markup::Markdown;
use super::pages::{Page, VerdictRow};
use super::plots::PictureLink;
use super::prose;
use super::recorded::Recorded;
use super::techniques::{GUIDES, Kind, SUBJECTS, Shown, Subject, guides_of, is_self_check};
use crate::judge::Verdict;
use crate::protocol::{Cell, PEAK, TIME};
use crate::units::quantity;
use serde::Serialize;
use std::collections::BTreeMap;

/// The experiment that combines techniques, and what to try in which order; see its factor `with`.
const COMBINED: &str = "combined";
const STEPS: [(&str, &str, &str); 4] = [
    ("amp", "bf16 autocast", "a GPU with bf16"),
    ("accumulate", "accumulate 4x, same effective batch", "weight losses by target count; BatchNorm changes"),
    ("amp+accumulate", "1 + 2", ""),
    ("amp+checkpoint+accumulate", "1 + 2 + checkpointing", "transformers: every block, not sqrt(n)"),
];
/// Experiments about what those steps do one by one.
const STEPS_OF: [&str; 3] = [COMBINED, "accumulation", "amp"];

#[derive(Debug, Serialize)]
pub struct Steps {
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
    pub note: String,
}

#[derive(Debug, Serialize)]
pub struct Line {
    pub label: String,
    pub link: Markdown,
    /// For each machine.
    pub memory: Vec<String>,
    pub time: Vec<String>,
    pub advice: String,
    /// Whether the steps to try in order are made of it.
    pub is_a_step: bool,
}

#[derive(Debug, Serialize)]
pub struct GuideLine {
    pub title: Markdown,
    pub counts: String,
}

#[derive(Debug, Serialize)]
pub struct Unknown {
    pub link: Markdown,
    pub claims: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Front {
    pub command: Markdown,
    pub lead: String,
    pub pictures: Vec<PictureLink>,
    pub steps: Option<Steps>,
    pub techniques: Vec<Line>,
    pub not_worth: Vec<String>,
    pub others: Vec<Markdown>,
    pub guides: Vec<GuideLine>,
    pub unknown: Vec<Unknown>,
    pub trust: Vec<Markdown>,
}

/// What a technique saves, for the order of all of them: the middle of its effects on memory; what has none comes last.
pub fn saving(recorded: &[Recorded], experiment: &str) -> f64 {
    let runs: Vec<&Recorded> = recorded.iter().filter(|run| run.protocol.name == experiment).collect();
    let shown = SUBJECTS.iter().filter(|subject| subject.experiment == experiment).flat_map(|subject| subject.shown);
    let middles = shown.flat_map(|shown| effects::effects(&runs, shown, shown.memory)).map(|effect| effect.middle);
    middles.fold(f64::INFINITY, f64::min)
}

/// Everything that is shown of techniques, with its effects, what saves most first.
pub fn shown(recorded: &[Recorded]) -> Vec<(&'static Subject, &'static Shown, Vec<Effect>, Vec<Effect>)> {
    let mut all = Vec::new();
    for subject in SUBJECTS {
        let runs: Vec<&Recorded> = recorded.iter().filter(|run| run.protocol.name == subject.experiment).collect();
        for shown in subject.shown {
            let (memory, time) = (effects::effects(&runs, shown, shown.memory), effects::effects(&runs, shown, shown.time));
            if !memory.is_empty() || !time.is_empty() {
                all.push((subject, shown, memory, time));
            }
        }
    }
    let middle = |effects: &[Effect]| effects.iter().map(|effect| effect.middle).fold(f64::INFINITY, f64::min);
    all.sort_by(|a, b| middle(&a.2).total_cmp(&middle(&b.2)));
    all
}

pub fn front(
    recorded: &[Recorded],
    machines: &[&Recorded],
    pages: &[Page],
    pictures: Vec<PictureLink>,
    command: &Markdown,
) -> Front {
    let shown = shown(recorded);
    let costs = |memory: &[Effect]| memory.iter().all(|effect| effect.middle > 1.02) && !memory.is_empty();
    let link = |subject: &Subject, label: &str| Markdown::link(label, &format!("{}.md", subject.experiment));
    let line = |(subject, shown, memory, time): &(&Subject, &Shown, Vec<Effect>, Vec<Effect>)| Line {
        label: shown.label.to_string(),
        link: link(subject, shown.label),
        memory: match shown.memory {
            "" | "requested_peak" => said(memory, machines),
            other => said(memory, machines).into_iter().map(|text| format!("{}: {text}", other.replace('_', " "))).collect(),
        },
        time: said(time, machines),
        advice: shown.advice.to_string(),
        is_a_step: STEPS_OF.contains(&subject.experiment),
    };
    let not_worth = shown.iter().filter(|(_, _, memory, _)| costs(memory));
    let others = pages
        .iter()
        .filter(|page| page.kind == Kind::Technique && !shown.iter().any(|(subject, ..)| subject.experiment == page.name));
    let unknown = pages.iter().filter(|page| !page.undecided.is_empty() && page.kind == Kind::Technique);
    Front {
        command: command.clone(),
        lead: lead(machines),
        pictures,
        steps: steps(recorded),
        techniques: shown.iter().filter(|(_, _, memory, _)| !costs(memory)).map(line).collect(),
        not_worth: not_worth
            .map(|(_, shown, memory, _)| format!("{}: peak memory {}", shown.label, said(memory, machines).join("; ")))
            .collect(),
        others: others.map(|page| Markdown::link(&page.title, &page.file)).collect(),
        guides: guides(recorded, pages),
        unknown: unknown
            .map(|page| Unknown { link: Markdown::link(&page.title, &page.file), claims: page.undecided.clone() })
            .collect(),
        trust: trust(recorded, pages),
    }
}

/// Which figures come from where.
fn lead(machines: &[&Recorded]) -> String {
    let named = |wanted: &dyn Fn(&Recorded) -> bool| -> Vec<String> {
        let own = machines.iter().filter(|machine| wanted(machine));
        own.map(|machine| prose::whose(machine.platform(), &machine.machine)).collect()
    };
    let (predicted, measured) = (named(&|machine| machine.is_prediction()), named(&|machine| !machine.is_prediction()));
    let mut said = Vec::new();
    if !predicted.is_empty() {
        said.push(format!("Full-size memory is predicted by PyTorch's own allocator on a {}.", predicted.join(", ")));
    }
    if !measured.is_empty() {
        said.push(format!("Time, and memory of small models, is measured on: {}.", measured.join(", ")));
    }
    if machines.iter().all(|machine| machine.platform() != crate::protocol::Platform::Gpu) {
        said.push("No GPU time has been measured yet.".to_string());
    }
    said.join(" ")
}

/// Effects of each machine: the machine is named where there are several.
fn said(effects: &[Effect], machines: &[&Recorded]) -> Vec<String> {
    let device = |effect: &Effect| {
        let machine = machines.iter().find(|machine| machine.machine == effect.machine);
        machine.map_or("", |machine| prose::platform(machine.platform()))
    };
    let one = |effect: &Effect| {
        let range = if effect.low == effect.high { String::new() } else { format!(", {}", effect.change()) };
        format!("{}{range} ({})", percent(effect.middle), device(effect))
    };
    let all: Vec<String> = effects.iter().map(one).collect();
    if all.is_empty() { vec!["not measured".to_string()] } else { all }
}

/// What to try in which order, from the largest model that combines techniques, with AdamW.
fn steps(recorded: &[Recorded]) -> Option<Steps> {
    let runs: Vec<&Recorded> = recorded.iter().filter(|run| run.protocol.name == COMBINED).collect();
    let plain = |run: &Recorded| -> Option<(Cell, f64)> {
        let cells = run.all_cells().into_iter().filter(|cell| {
            cell.get("with") == Some("none")
                && cell.get("optimizer") == Some("adamw")
                && cell.get("model").is_some_and(|m| m.starts_with("gpt"))
        });
        cells.filter_map(|cell| Some((run.samples.value(&cell, PEAK.name)?, cell))).map(|(peak, cell)| (cell, peak)).next()
    };
    let (run, (cell, peak)) = runs.iter().filter_map(|run| Some((*run, plain(run)?))).max_by(|a, b| a.1.1.total_cmp(&b.1.1))?;
    let timed = runs.iter().filter_map(|run| Some((*run, plain(run)?.0))).find(|(run, cell)| {
        run.protocol.metric(TIME.name).is_some_and(|time| run.ratio(&cell.with("with", STEPS[0].0), time).is_some())
    });
    let name = |cell: &Cell| format!("{}, batch {}", cell.get("model").unwrap_or("?"), cell.get("batch").unwrap_or("?"));
    let mut rows = Vec::new();
    for (n, (with, what, mind)) in STEPS.iter().enumerate() {
        let left = run.samples.value(&cell.with("with", with), PEAK.name)?;
        let time = timed.as_ref().and_then(|(run, cell)| run.ratio(&cell.with("with", with), run.protocol.metric(TIME.name)?));
        rows.push(vec![
            (n + 1).to_string(),
            (*what).to_string(),
            format!("{} to {}, {}", quantity(peak, "B"), quantity(left, "B"), percent(left / peak)),
            time.map_or(String::new(), |time| {
                format!("{}, 95 % CI {}", percent(time.estimate), effects::change(time.low, time.high))
            }),
            (*mind).to_string(),
        ]);
    }
    let device = prose::whose(run.platform(), &run.machine);
    let head = ["", "technique", "peak memory", "time per sample", "watch out for"].map(str::to_string).to_vec();
    let times = timed.map_or(String::new(), |(run, cell)| {
        format!(" Time: {} on {}, against the plain step.", name(&cell), prose::whose(run.platform(), &run.machine))
    });
    Some(Steps { head, rows, note: format!("Peak memory: {} with AdamW, {device}.{times}", name(&cell)) })
}

/// How many claims each guide makes, by what became of them.
fn guides(recorded: &[Recorded], pages: &[Page]) -> Vec<GuideLine> {
    let rows: Vec<&VerdictRow> = pages.iter().flat_map(|page| &page.verdicts).collect();
    let mut lines = Vec::new();
    for (guide, number) in GUIDES.iter().zip(1..) {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for runs in recorded.chunk_by(|a, b| a.protocol.name == b.protocol.name) {
            for (id, _) in claims_of(runs) {
                let is_from =
                    |run: &Recorded| run.protocol.claims.iter().any(|c| c.id == id && guides_of(&c.from).any(|n| n == number));
                if runs.iter().any(is_from) {
                    *counts.entry(standing(&rows, id)).or_default() += 1;
                }
            }
        }
        if counts.is_empty() {
            continue;
        }
        let said: Vec<String> =
            ["✔", "✘", "◐", "?", "not judged:"].iter().filter_map(|s| Some(format!("{s} {}", counts.get(s)?))).collect();
        let title = if guide.address.is_empty() { Markdown::text(guide.title) } else { Markdown::link(guide.title, guide.address) };
        lines.push(GuideLine { title, counts: said.join(", ") });
    }
    lines
}

/// The symbol of a claim over all machines whose figures carry it: where they differ, it depends.
fn standing(rows: &[&VerdictRow], id: &str) -> &'static str {
    let mut kinds: Vec<&str> =
        rows.iter().filter(|row| row.id == id && row.kind != "informational").map(|row| row.kind.as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    match kinds[..] {
        [] => "not judged:",
        ["confirmed"] => "✔",
        ["refuted"] => "✘",
        ["inconclusive"] => "?",
        _ => "◐",
    }
}

/// What shows how far the lab can be trusted, counted.
fn trust(recorded: &[Recorded], pages: &[Page]) -> Vec<Markdown> {
    let mut lines = Vec::new();
    let (mut hold, mut all) = (0, 0);
    for runs in recorded.chunk_by(|a, b| a.protocol.name == b.protocol.name) {
        for (id, _) in claims_of(runs).into_iter().filter(|(id, _)| is_self_check(&runs[0], id)) {
            let judged = runs.iter().flat_map(|run| &run.judgements).filter(|j| j.claim.id == id && j.carries);
            let verdicts: Vec<Verdict> = judged.map(|j| j.verdict).filter(|verdict| *verdict != Verdict::NotMeasured).collect();
            all += usize::from(!verdicts.is_empty());
            hold += usize::from(!verdicts.is_empty() && verdicts.iter().all(|verdict| *verdict == Verdict::Confirmed));
        }
    }
    let line =
        |label: &str, file: &str, text: String| Markdown::trusted(format!("{}: {text}", Markdown::link(label, file).as_str()));
    if all > 0 {
        lines.push(line(
            "Self-checks",
            "self-checks.md",
            format!("{hold} of {all} hold, among them that values and bytes are PyTorch's"),
        ));
    }
    let found: Vec<_> = recorded.iter().flat_map(|run| &run.reproductions).filter(|r| r.comparable).collect();
    if !found.is_empty() {
        let reproduced = found.iter().filter(|r| r.verdict == Verdict::Confirmed).count();
        lines.push(line(
            "Published figures",
            "published.md",
            format!("{reproduced} of {} comparable ones reproduced within a tenth", found.len()),
        ));
    }
    if let Some(page) = pages.iter().find(|page| page.kind == Kind::RealGpus) {
        let confirmed = page.verdicts.iter().filter(|row| row.kind == "confirmed").count();
        lines.push(line(
            "Real GPUs",
            "real-gpus.md",
            format!("predictions beside what real GPUs allocated; {confirmed} of {} verdicts confirmed", page.verdicts.len()),
        ));
    }
    lines.push(line("Machines", "machines.md", "hardware, versions, settings and commands".to_string()));
    lines
}
