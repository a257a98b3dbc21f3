//! The front page: what to do first, every technique in order of what it saves, what the guides' claims come to, and what is not known.

use super::claims::{VerdictRow, claims_of};
use super::effects::Effect;
use super::findings::{Findings, FoundEffect};
use super::ladder::Ladder;
use super::markup::Markdown;
use super::pages::Page;
use super::prose;
use super::recorded::Recorded;
use super::sentences::{GUIDES, guides_of, title};
use base::units::{change, percent};
use minijinja::{Value, context};
use record::judge::Verdict;
use record::protocol::{PEAK, Platform, SubjectKind};
use std::collections::BTreeMap;

/// What the guides are about, by experiments.
const OF_GUIDES: [&str; 7] = ["accumulation", "checkpointing", "amp", "inplace", "empty_cache", "pin_memory", "num_workers"];

/// What the results say of all techniques at once, for the front page, the guides' page and README.
pub fn front(findings: &Findings, pages: &[Page], order: Option<&Ladder>) -> Value {
    let own = findings.own;
    let line = |page: &Page| {
        let experiment = findings.experiments.iter().find(|experiment| experiment.name() == page.name);
        let effects = experiment.map_or(&[][..], |experiment| &experiment.effects);
        let yours = own.map(|own| {
            let said = effects.iter().filter_map(|effect| {
                let of_one = own_effects(own, effect)?;
                Some(if effects.len() > 1 { format!("{}: {of_one}", effect.shown.label) } else { of_one })
            });
            said.collect::<Vec<_>>().join("; ")
        });
        let standing = &*page.words.standing;
        let (saves, costs) = saves_and_costs(page, effects, order);
        context! {
            saves,
            costs,
            title => &page.title,
            file => &page.file,
            standing => if standing.is_empty() { "no editor has written it up yet" } else { standing },
            yours => yours.filter(|yours| !yours.is_empty()).unwrap_or_else(|| "not measured".to_string()),
            is_of_guides => OF_GUIDES.contains(&&*page.name),
        }
    };
    let techniques = || pages.iter().filter(|page| page.kind == SubjectKind::Technique);
    let unknown = techniques().filter(|page| !page.undecided.is_empty());
    let unknown = unknown.map(|page| context! { link => Markdown::link(&page.title, &page.file), claims => &page.undecided });
    context! {
        lead => lead(&findings.machines),
        // The head of the column of the user's own results.
        yours => own.map(|own| format!("yours: {}", own.whose())),
        techniques => techniques().map(line).collect::<Vec<_>>(),
        guides => guides(findings),
        unknown => unknown.collect::<Vec<_>>(),
        trust => trust(findings, pages),
    }
}

/// What a technique saves of memory and costs in time: of models of full size where it was rehearsed on them, else of the lab's own cells.
fn saves_and_costs(page: &Page, effects: &[FoundEffect], order: Option<&Ladder>) -> (String, String) {
    let rehearsed =
        page.words.blocks.iter().flat_map(|block| &block.head).find_map(|head| head.strip_prefix('`')?.strip_suffix('`'));
    if let Some((order, technique)) = order.zip(rehearsed) {
        let range = |is_time: bool| {
            let all = order.ratios(technique, is_time, "");
            let (low, high) = (all.iter().copied().reduce(f64::min)?, all.iter().copied().reduce(f64::max)?);
            Some(format!("{}, predicted", change(low, high)))
        };
        let dash = || "–".to_string();
        return (range(false).unwrap_or_else(dash), range(true).unwrap_or_else(dash));
    }
    let said = |is_time: bool| {
        let of = |found: &'_ FoundEffect<'_>| if is_time { found.time.clone() } else { found.memory.clone() };
        let all = effects.iter().flat_map(of).filter(|effect| !effect.is_own);
        // One of several devices. Predictions are of models of full size; times are of a GPU where one was timed.
        let ranks = ["simulated GPU", "GPU", "CPU", "PyTorch in Python"];
        let best = all.min_by_key(|effect| ranks.iter().position(|device| *device == effect.device));
        best.map_or("–".to_string(), |effect| format!("{}, {}", effect.change(), effect.device))
    };
    (said(false), said(true))
}

/// Which figures come from where.
fn lead(machines: &[&Recorded]) -> String {
    let named = |wanted: &dyn Fn(&Recorded) -> bool| -> Vec<String> {
        let own = machines.iter().filter(|machine| wanted(machine));
        own.map(|machine| machine.whose()).collect()
    };
    let predicted = named(&|machine| machine.is_prediction() && !machine.is_own);
    let (measured, own) = (named(&|machine| !machine.is_prediction() && !machine.is_own), named(&|machine| machine.is_own));
    let mut said = Vec::new();
    if !predicted.is_empty() {
        said.push(format!(
            "Memory and times of full-size models are predictions, made by PyTorch's own allocator on a {}.",
            predicted.join(", ")
        ));
    }
    if !measured.is_empty() {
        said.push(format!("Small models are measured, and their gradients compared, on: {}.", measured.join(", ")));
    }
    if machines.iter().all(|machine| machine.platform() != Platform::Gpu) {
        said.push("No GPU time has been measured yet.".to_string());
    }
    if !own.is_empty() {
        said.push(format!("Your own measurements are shown beside them, on: {}.", own.join(", ")));
    }
    said.join(" ")
}

/// What the user's own machine gives of a technique; none where it has measured nothing of it.
fn own_effects(own: &Recorded, found: &FoundEffect) -> Option<String> {
    let said = |effects: &[Effect], what: &str| {
        let effect = effects.iter().find(|effect| effect.machine == own.machine)?;
        Some(format!("{what} {}{}", percent(effect.middle), effect.progress()))
    };
    let memory = said(&found.memory, if found.shown.memory.as_deref() == Some(PEAK.name) { "peak" } else { "reserved peak" });
    let all: Vec<String> = memory.into_iter().chain(said(&found.time, "time")).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// How many claims each guide makes, by what became of them.
fn guides(findings: &Findings) -> Vec<Value> {
    let counted = |number: usize, is_own: bool| {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for runs in findings.experiments.iter().map(|experiment| experiment.runs) {
            for (id, _) in claims_of(runs) {
                let is_from =
                    |run: &Recorded| run.protocol.claims.iter().any(|c| c.id == id && guides_of(&c.from).any(|n| n == number));
                let runs = || runs.iter().filter(move |run| run.is_own == is_own);
                if runs().any(is_from) {
                    let judged = runs().flat_map(|run| &run.judgements).filter(|judged| judged.of.id == id);
                    *counts.entry(prose::together(judged).map_or("not judged:", prose::symbol)).or_default() += 1;
                }
            }
        }
        let said =
            ["✔", "✘", "◐", "△", "◔", "?", "◌", "not judged:"].iter().filter_map(|s| Some(format!("{s} {}", counts.get(s)?)));
        said.collect::<Vec<_>>().join(", ")
    };
    let mut lines = Vec::new();
    for (guide, number) in GUIDES.iter().zip(1..) {
        let (counts, yours) = (counted(number, false), counted(number, true));
        if counts.is_empty() && yours.is_empty() {
            continue;
        }
        lines.push(context! { title => title(guide), counts, yours });
    }
    lines
}

/// What shows how far the lab can be trusted, counted.
fn trust(findings: &Findings, pages: &[Page]) -> Vec<Markdown> {
    let mut lines = Vec::new();
    let (mut hold, mut all) = (0, 0);
    for runs in findings.experiments.iter().map(|experiment| experiment.runs) {
        for (id, _) in claims_of(runs).into_iter().filter(|(id, _)| runs[0].is_self_check(id)) {
            let judged = runs.iter().filter(|run| !run.is_own).flat_map(|run| &run.judgements);
            let verdict = prose::together(judged.filter(|judged| judged.of.id == id));
            all += usize::from(verdict.is_some());
            hold += usize::from(verdict == Some(Verdict::Confirmed));
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
    let of_reference = findings.recorded.iter().filter(|run| !run.is_own);
    let found: Vec<_> = of_reference
        .flat_map(|run| &run.reproductions)
        .filter(|r| r.carries && !matches!(r.verdict, Verdict::NotMeasured | Verdict::Incomplete))
        .collect();
    if !found.is_empty() {
        let reproduced = found.iter().filter(|r| r.verdict == Verdict::Confirmed).count();
        lines.push(line("Published figures", "published.md", format!("{reproduced} of {} comparisons reproduced", found.len())));
    }
    let of_real = || pages.iter().filter(|page| page.kind == SubjectKind::RealGpus);
    if of_real().next().is_some() {
        let rows: Vec<&VerdictRow> = of_real().flat_map(|page| &page.verdicts).filter(|row| !row.is_own).collect();
        let confirmed = rows.iter().filter(|row| row.kind == "confirmed").count();
        lines.push(line(
            "Real GPUs",
            "real-gpus.md",
            format!("predictions beside what real GPUs allocated; {confirmed} of {} verdicts confirmed", rows.len()),
        ));
    }
    lines.push(line("Machines", "machines.md", "hardware, versions, settings and commands".to_string()));
    lines
}
