//! The front page: what to do first, every technique in order of what it saves, what the guides' claims come to, and what is not known.

use super::claims::claims_of;
use super::effects::{self, Effect, percent};
use super::markup::Markdown;
use super::order::Order;
use super::pages::{Page, VerdictRow};
use super::plots::PictureLink;
use super::prose;
use super::recorded::Recorded;
use super::techniques::{GUIDES, Kind, SUBJECTS, Shown, Subject, guides_of, is_self_check};
use record::judge::Verdict;
use record::protocol::{PEAK, Platform};
use serde::Serialize;
use std::collections::BTreeMap;

/// Experiments whose technique `--what-if` tries, too.
const IN_ORDER: [&str; 4] = ["combined", "accumulation", "amp", "checkpointing"];

#[derive(Debug, Serialize)]
pub struct FrontLine {
    pub label: String,
    pub link: Markdown,
    /// For each machine.
    pub memory: Vec<String>,
    pub time: Vec<String>,
    /// What the user's own machine gives; empty where there is none.
    pub yours: String,
    pub advice: String,
    /// Whether what is tried in order has it, too.
    pub is_in_order: bool,
}

#[derive(Debug, Serialize)]
pub struct GuideLine {
    pub title: Markdown,
    pub counts: String,
    pub yours: String,
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
    pub order: Option<Order>,
    /// The head of the column of the user's own results; none where there are none.
    pub yours: Option<String>,
    pub techniques: Vec<FrontLine>,
    pub not_worth: Vec<String>,
    pub others: Vec<Markdown>,
    pub guides: Vec<GuideLine>,
    pub unknown: Vec<Unknown>,
    pub trust: Vec<Markdown>,
}

/// What a technique saves, for the order of all of them: the middle of its effects on memory; what has none comes last.
pub fn saving(recorded: &[Recorded], experiment: &str) -> f64 {
    let runs: Vec<&Recorded> = recorded.iter().filter(|run| run.protocol.name == experiment && !run.is_own).collect();
    let shown = SUBJECTS.iter().filter(|subject| subject.experiment == experiment).flat_map(|subject| subject.shown);
    let middles = shown.flat_map(|shown| effects::effects(&runs, shown, shown.memory)).map(|effect| effect.middle);
    middles.fold(f64::INFINITY, f64::min)
}

/// Everything that is shown of techniques, with its effects, what saves most first.
pub fn shown(recorded: &[Recorded]) -> Vec<(&'static Subject, &'static Shown, Vec<Effect>, Vec<Effect>)> {
    let mut all = Vec::new();
    for subject in SUBJECTS {
        let is_reference = |run: &&Recorded| run.protocol.name == subject.experiment && !run.is_own;
        let runs: Vec<&Recorded> = recorded.iter().filter(is_reference).collect();
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
    order: Option<Order>,
    pictures: Vec<PictureLink>,
    command: &Markdown,
) -> Front {
    let shown = shown(recorded);
    let own = own_machine(machines);
    let costs = |memory: &[Effect]| memory.iter().all(|effect| effect.middle > 1.02) && !memory.is_empty();
    let link = |subject: &Subject, label: &str| Markdown::link(label, &format!("{}.md", subject.experiment));
    let line = |(subject, shown, memory, time): &(&Subject, &Shown, Vec<Effect>, Vec<Effect>)| FrontLine {
        label: shown.label.to_string(),
        link: link(subject, shown.label),
        memory: match shown.memory {
            "" | "requested_peak" => said(memory, machines),
            other => said(memory, machines).into_iter().map(|text| format!("{}: {text}", other.replace('_', " "))).collect(),
        },
        time: said(time, machines),
        yours: own.map_or(String::new(), |own| own_effects(recorded, own, subject, shown)),
        advice: shown.advice.to_string(),
        is_in_order: IN_ORDER.contains(&subject.experiment),
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
        order,
        yours: own.map(|own| format!("yours: {}", prose::whose(own.platform(), &own.machine))),
        techniques: shown.iter().filter(|(_, _, memory, _)| !costs(memory)).map(line).collect(),
        not_worth: not_worth
            .map(|(_, shown, memory, _)| format!("{}: peak memory {}", shown.label, said(memory, machines).join("; ")))
            .collect(),
        others: others.map(|page| Markdown::link(&page.title, &page.file)).collect(),
        guides: guides(recorded),
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
    let predicted = named(&|machine| machine.is_prediction() && !machine.is_own);
    let (measured, own) = (named(&|machine| !machine.is_prediction() && !machine.is_own), named(&|machine| machine.is_own));
    let mut said = Vec::new();
    if !predicted.is_empty() {
        said.push(format!("Full-size memory is predicted by PyTorch's own allocator on a {}.", predicted.join(", ")));
    }
    if !measured.is_empty() {
        said.push(format!("Time, and memory of small models, is measured on: {}.", measured.join(", ")));
    }
    if machines.iter().all(|machine| machine.platform() != Platform::Gpu) {
        said.push("No GPU time has been measured yet.".to_string());
    }
    if !own.is_empty() {
        said.push(format!("Beside that stands what you measured, on: {}.", own.join(", ")));
    }
    said.join(" ")
}

/// The machine whose results are the column 'yours': what measures before what predicts, a GPU before a CPU, and the last of several.
fn own_machine<'a>(machines: &[&'a Recorded]) -> Option<&'a Recorded> {
    let own = machines.iter().filter(|machine| machine.is_own);
    own.max_by_key(|machine| (!machine.is_prediction(), machine.platform() == Platform::Gpu)).copied()
}

/// What the user's own machine gives of a technique.
fn own_effects(recorded: &[Recorded], own: &Recorded, subject: &Subject, shown: &Shown) -> String {
    let is_own = |run: &&Recorded| run.machine == own.machine && run.protocol.name == subject.experiment;
    let runs: Vec<&Recorded> = recorded.iter().filter(is_own).collect();
    let said = |metric: &str, what: &str| {
        let effect = effects::effects(&runs, shown, metric).pop()?;
        Some(format!("{what} {}{}", percent(effect.middle), effect.progress()))
    };
    let memory = said(shown.memory, if shown.memory == PEAK.name { "peak" } else { "reserved peak" });
    let all: Vec<String> = memory.into_iter().chain(said(shown.time, "time")).collect();
    if all.is_empty() { "not measured".to_string() } else { all.join("; ") }
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

/// How many claims each guide makes, by what became of them.
fn guides(recorded: &[Recorded]) -> Vec<GuideLine> {
    let counted = |number: usize, is_own: bool| {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for runs in recorded.chunk_by(|a, b| a.protocol.name == b.protocol.name) {
            for (id, _) in claims_of(runs) {
                let is_from =
                    |run: &Recorded| run.protocol.claims.iter().any(|c| c.id == id && guides_of(&c.from).any(|n| n == number));
                if runs.iter().any(|run| run.is_own == is_own && is_from(run)) {
                    *counts.entry(standing(runs.iter().filter(|run| run.is_own == is_own), id)).or_default() += 1;
                }
            }
        }
        let said = ["✔", "✘", "◐", "?", "◌", "not judged:"].iter().filter_map(|s| Some(format!("{s} {}", counts.get(s)?)));
        said.collect::<Vec<_>>().join(", ")
    };
    let mut lines = Vec::new();
    for (guide, number) in GUIDES.iter().zip(1..) {
        let (counts, yours) = (counted(number, false), counted(number, true));
        if counts.is_empty() && yours.is_empty() {
            continue;
        }
        let title = if guide.address.is_empty() { Markdown::text(guide.title) } else { Markdown::link(guide.title, guide.address) };
        lines.push(GuideLine { title, counts, yours });
    }
    lines
}

/// The symbol of a claim over all machines whose figures carry it: where they differ, it depends.
fn standing<'a>(runs: impl Iterator<Item = &'a Recorded>, id: &str) -> &'static str {
    let judged = runs.flat_map(|run| &run.judgements).filter(|judged| judged.claim.id == id && judged.carries);
    let mut verdicts: Vec<Verdict> = judged.map(|judged| judged.verdict).filter(|v| *v != Verdict::NotMeasured).collect();
    verdicts.sort_unstable();
    verdicts.dedup();
    match verdicts[..] {
        [] => "not judged:",
        [one] => prose::symbol(one),
        _ if verdicts.contains(&Verdict::Incomplete) => prose::symbol(Verdict::Incomplete),
        _ => prose::symbol(Verdict::Depends),
    }
}

/// What shows how far the lab can be trusted, counted.
fn trust(recorded: &[Recorded], pages: &[Page]) -> Vec<Markdown> {
    let mut lines = Vec::new();
    let (mut hold, mut all) = (0, 0);
    for runs in recorded.chunk_by(|a, b| a.protocol.name == b.protocol.name) {
        for (id, _) in claims_of(runs).into_iter().filter(|(id, _)| is_self_check(&runs[0], id)) {
            let judged = runs.iter().filter(|run| !run.is_own).flat_map(|run| &run.judgements);
            let judged = judged.filter(|j| j.claim.id == id && j.carries);
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
    let of_reference = recorded.iter().filter(|run| !run.is_own);
    let found: Vec<_> = of_reference
        .flat_map(|run| &run.reproductions)
        .filter(|r| r.comparable && !matches!(r.verdict, Verdict::NotMeasured | Verdict::Incomplete))
        .collect();
    if !found.is_empty() {
        let reproduced = found.iter().filter(|r| r.verdict == Verdict::Confirmed).count();
        lines.push(line(
            "Published figures",
            "published.md",
            format!("{reproduced} of {} comparable ones reproduced within a tenth", found.len()),
        ));
    }
    let of_real = || pages.iter().filter(|page| page.kind == Kind::RealGpus);
    if of_real().next().is_some() {
        let rows: Vec<&VerdictRow> = of_real().flat_map(|page| &page.verdicts).filter(|row| !row.is_own).collect();
        let confirmed = rows.iter().filter(|row| row.kind == "confirmed").count();
        lines.push(line(
            "Real GPUs",
            "real-gpus.md",
            format!(
                "predictions beside what real GPUs allocated and how long they took; {confirmed} of {} verdicts confirmed",
                rows.len()
            ),
        ));
    }
    lines.push(line("Machines", "machines.md", "hardware, versions, settings and commands".to_string()));
    lines
}
