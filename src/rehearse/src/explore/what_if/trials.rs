//! `--what-if`: the script with each technique switched on from outside, and with those together that go together. On the simulated GPU, or
//! with `--device cuda` really measured on one.

use super::row::{Burdens, Combination, MeasuredStep, VariantRow};
use super::show;
use crate::answer::FindingKind;
use crate::answer::advice::Merit;
use crate::answer::reply::short_failure;
use crate::answer::technique::{Need, Technique, techniques};
use crate::answer::{Answer, HostMemory, RehearsalVerdict, SimulatedGpu, answer, makes_steps, trains};
use crate::capture::host::memory_of_this_machine;
use crate::capture::plain::{first_line, on_one_line};
use crate::capture::process::{BACKWARD_PASS, Meters, TechniqueOutcome, Trace};
use crate::capture::session::{Capture, ScriptFailed};
use crate::explore::of_each;
use crate::explore::template::FlagTemplate;
use crate::run::executor::{Rehearsal, Variant, WAS_INTERRUPTED, was_interrupted};
use crate::words::{place_or_not, short};
use anyhow::{Context, Result, bail, ensure};
use base::order::distinct;
use base::units::Bytes;
use serde::Serialize;
use sim::trace::Kind;
use std::collections::{BTreeSet, HashSet};
use std::env;
use std::thread;
use std::time::Instant;

/// What is tried.
#[derive(Debug, Clone, Default)]
pub struct Trials {
    /// What smaller batches need.
    pub batch: Option<BatchFlags>,
    /// These techniques and no others, each alone; with + between their names together. Empty for all.
    pub only: Vec<String>,
}

/// How a command is given its batch, and how many batches it accumulates before a step.
#[derive(Debug, Clone)]
pub struct BatchFlags {
    pub batch: FlagTemplate,
    pub accumulation: Option<FlagTemplate>,
}

/// What each technique saves and costs.
pub struct WhatIf {
    pub(super) base: MeasuredStep,
    pub(super) rows: Vec<VariantRow>,
}

impl WhatIf {
    pub fn fits(&self) -> bool {
        self.rows.iter().any(|row| row.fits)
    }

    /// The rows, for `--json`.
    pub fn rows(&self) -> &impl Serialize {
        &self.rows
    }

    /// The table, the recommendation and its lines.
    pub fn text(&self) -> String {
        show::answer(&self.base, &self.rows)
    }
}

/// Read by every version of PyTorch, 2.15 included; PYTORCH_ALLOC_CONF, the newer name, by newer ones alone.
const ALLOCATOR: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// What `--only` takes.
pub fn only_help() -> String {
    let names: Vec<&str> = techniques().iter().filter(|of| !of.wants(Need::Flags)).map(|of| of.name.as_str()).collect();
    format!(
        "With --what-if: try only these techniques, each alone, separated by commas; with + between their names together. There are {}, and with \
        --accumulation accumulate-2x, accumulate-4x, accumulate-8x",
        names.join(", ")
    )
}

/// Tries techniques on a script, one by one and together.
///
/// # Errors
/// The script fails as it is, as a [`ScriptFailed`]; there is no technique of a name; nothing to rehearse.
pub fn what_if(rehearsal: &Rehearsal, trials: &Trials) -> Result<WhatIf> {
    let (choices, mut left_out) = choices(rehearsal, trials)?;
    let asked = !trials.only.is_empty();
    let rehearsal = &rehearsal.in_copies(choices.len())?;
    let counting = Rehearsal { variant: Variant { counts: true, ..Variant::default() }, ..rehearsal.clone() };
    (rehearsal.progress)("rehearsing the script as it is");
    let began = Instant::now();
    let base = measure(&counting, false)?;
    let each = began.elapsed();
    let base = base.map_err(|Failed { why, .. }| {
        ScriptFailed(format!("the script fails as it is: {why}; vramlab rehearse without --what-if shows where"))
    })?;
    ensure!(
        !base.makes_steps || trials.batch.as_ref().is_none_or(|batch| batch.accumulation.is_some()),
        "the script trains: --batch needs --accumulation, as in '--grad-accum {{}}'"
    );
    let is_for = |choice: &Combination| asked || choice.of.iter().all(|technique| technique.is_for(base.trains, base.makes_steps));
    // On a real GPU nothing but meters was looked at.
    let nothing = |choice: &Combination| if rehearsal.measures { None } else { has_nothing_for(&base, choice) };
    let mut tried = Vec::new();
    for choice in choices.into_iter().filter(is_for) {
        match nothing(&choice) {
            Some(reason) => left_out.push(VariantRow::refused(choice, reason)),
            None => tried.push(choice),
        }
    }
    // What compiles takes minutes, and has no predicted time: all else is known before.
    tried.sort_by_key(|choice| choice.wants(Need::Compiler));
    let choices = tried;
    let minutes = each.as_secs_f64() * choices.len() as f64 / at_once(rehearsal, &base, choices.len()) as f64 / 60.0;
    if minutes > 1.0 {
        (rehearsal.progress)(&format!(
            "{} techniques to try, and the best of them together: about {:.0} minutes; --only NAMES tries fewer",
            choices.len(),
            minutes.ceil()
        ));
    }
    let mut rows = try_all(rehearsal, &base, choices);
    if trials.only.is_empty() {
        let together = combinations(&rows);
        rows.extend(try_all(rehearsal, &base, together));
    }
    rows.append(&mut left_out);
    rows.push(VariantRow::of(Combination::default(), &base, &base));
    mark_front(&mut rows);
    sort(&mut rows, &base.host);
    Ok(WhatIf { base, rows })
}

/// Why the script as it is has nothing for one of a choice's techniques.
fn has_nothing_for(base: &MeasuredStep, choice: &Combination) -> Option<String> {
    let mut named = choice.names.iter().zip(&choice.of);
    let (name, reason) = named.find_map(|(name, technique)| Some((name, base.has_nothing_for(technique)?)))?;
    Some(if choice.names.len() > 1 { format!("{name}: {reason}") } else { reason })
}

/// Every technique, and those that this command cannot be given.
fn choices(rehearsal: &Rehearsal, trials: &Trials) -> Result<(Vec<Combination>, Vec<VariantRow>)> {
    let switched_on = |of: &'static Technique| {
        let variant = match &of.setting {
            Some(value) => Variant { settings: vec![(ALLOCATOR, value.clone())], ..Variant::default() },
            None => Variant { techniques: vec![&of.name], ..Variant::default() },
        };
        let words = of.setting.as_ref().map_or(String::new(), |value| format!("{ALLOCATOR}={value}  # in the environment"));
        Combination { words, ..Combination::of(&of.name, of, variant) }
    };
    let (of_flags, others): (Vec<&Technique>, Vec<&Technique>) = techniques().iter().partition(|of| of.wants(Need::Flags));
    let (settings, mut choices): (Vec<Combination>, Vec<Combination>) =
        others.into_iter().map(switched_on).partition(|choice| !choice.variant.settings.is_empty());
    let mut left_out = Vec::new();
    let set = ["PYTORCH_ALLOC_CONF", ALLOCATOR].into_iter().find(|name| env::var_os(name).is_some_and(|value| !value.is_empty()));
    match set {
        Some(set) => {
            left_out.extend(settings.into_iter().map(|choice| VariantRow::refused(choice, format!("{set} is set already"))));
        }
        None => choices.extend(settings),
    }
    if let Some(BatchFlags { batch, accumulation }) = &trials.batch {
        let command = &rehearsal.command;
        let now = batch.number(command).with_context(|| {
            format!("--batch: the command has to say its batch, so that it can be divided; write {} into it", batch.text(32))
        })?;
        for factor in [2, 4, 8].into_iter().filter(|factor| now.is_multiple_of(*factor)) {
            let (smaller, text) = (batch.with(command, now / factor), batch.text(now / factor));
            let of = of_flags.iter().find(|of| of.steps == accumulation.is_some()).context("a technique's head is missing")?;
            choices.push(match accumulation {
                None => {
                    let variant = Variant { command: Some(smaller), ..Variant::default() };
                    let words = format!("{text}  # on the command line");
                    Combination { words, ..Combination::of(&format!("batch-{}", now / factor), of, variant) }
                }
                Some(accumulation) => {
                    let steps = accumulation.number(command).unwrap_or(1) * factor;
                    let command = Some(accumulation.with(&smaller, steps));
                    let variant = Variant { command, techniques: vec![&of.name], ..Variant::default() };
                    let words = format!("{text} {}  # on the command line", accumulation.text(steps));
                    let choice = Combination::of(&format!("{}-{factor}x", of.name), of, variant);
                    Combination { words, micro_batches: factor, ..choice }
                }
            });
        }
    }
    if trials.only.is_empty() { Ok((choices, left_out)) } else { only(&trials.only, &choices, &left_out) }
}

/// Those of `--only`: names, and names joined by + for what is tried together.
fn only(wanted: &[String], choices: &[Combination], left_out: &[VariantRow]) -> Result<(Vec<Combination>, Vec<VariantRow>)> {
    let (mut sets, mut refused) = (Vec::new(), Vec::new());
    for wanted in wanted {
        if let Some(row) = left_out.iter().find(|row| wanted.split('+').any(|name| row.techniques[0] == name)) {
            refused.push(row.clone());
            continue;
        }
        let mut set: Option<Combination> = None;
        for name in wanted.split('+') {
            let Some(choice) = choices.iter().find(|choice| choice.names[0] == name) else {
                let names = choices.iter().flat_map(|choice| &choice.names).chain(left_out.iter().flat_map(|row| &row.techniques));
                let known: Vec<&str> = names.map(String::as_str).collect();
                bail!("--only: there is no technique '{name}'; there are {}", known.join(", "));
            };
            set = Some(match set {
                None => choice.clone(),
                Some(set) if set.goes_with(choice) => set.and(choice),
                Some(set) => bail!("--only: {} and {name} are alternatives; a script takes one of them", set.names.join("+")),
            });
        }
        sets.extend(set);
    }
    Ok((sets, refused))
}

/// How many processes this machine has memory for, each of so many bytes, beside what runs on it; at least one.
fn room_for(bytes: u64) -> usize {
    let available = memory_of_this_machine("MemAvailable:").unwrap_or(u64::MAX);
    usize::try_from(available / bytes.max(1)).unwrap_or(usize::MAX).max(1)
}

/// How many of so many rehearsals run at once: as there are cores, and memory for a script that takes what it takes as it is.
fn at_once(rehearsal: &Rehearsal, base: &MeasuredStep, count: usize) -> usize {
    cores(rehearsal, count).min(room_for(base.host_memory)).max(1)
}

/// On a real GPU they would take memory and time of one another.
fn cores(rehearsal: &Rehearsal, count: usize) -> usize {
    if rehearsal.measures { 1 } else { thread::available_parallelism().map_or(1, usize::from).min(count) }
}

fn try_all(rehearsal: &Rehearsal, base: &MeasuredStep, choices: Vec<Combination>) -> Vec<VariantRow> {
    let at_once = at_once(rehearsal, base, choices.len());
    if at_once < cores(rehearsal, choices.len()) {
        (rehearsal.progress)(&format!(
            "the script takes {} of this machine's memory, which has room for {at_once} at once: this takes longer",
            Bytes(base.host_memory)
        ));
    }
    of_each(&choices, at_once, |at, choice| {
        let (names, count) = (choice.names.join(" + "), choices.len());
        if was_interrupted() {
            return VariantRow::refused(choice.clone(), WAS_INTERRUPTED.to_string());
        }
        (rehearsal.progress)(&format!("rehearsing with {names} ({} of {count})", at + 1));
        match step_with(rehearsal, base, choice) {
            Ok(measured) => VariantRow::of(choice.clone(), &measured, base),
            Err(_) if was_interrupted() => VariantRow::refused(choice.clone(), WAS_INTERRUPTED.to_string()),
            Err(reason) => VariantRow::refused(choice.clone(), reason),
        }
    })
}

/// What a run with a combination showed; else why it was not applied.
fn step_with(rehearsal: &Rehearsal, base: &MeasuredStep, choice: &Combination) -> Result<MeasuredStep, String> {
    let variant = Rehearsal { variant: choice.variant.clone(), ..rehearsal.clone() };
    let measured = measure(&variant, !base.fits).map_err(|error| format!("{error:#}"))?;
    let outcomes = measured.as_ref().map_or_else(|failed| &failed.outcomes, |measured| &measured.outcomes);
    if let Some(no) = outcomes.iter().find(|outcome| !outcome.applied) {
        let name = if choice.names.len() > 1 { format!("{}: ", no.technique) } else { String::new() };
        return Err(format!("{name}{}", no.reason));
    }
    let measured = measured.map_err(|failed| format!("the script fails with it: {}", failed.why))?;
    let is_silent = |name: &&&str| !measured.outcomes.iter().any(|outcome| outcome.technique == **name);
    match choice.variant.techniques.iter().find(is_silent).filter(|_| measured.peaks.is_some()) {
        Some(silent) => Err(format!("{silent} found nothing in the script to apply to")),
        None => Ok(measured),
    }
}

/// Why a script with a technique did not end well, or what the technique had nothing to do for.
struct Failed {
    why: String,
    outcomes: Vec<TechniqueOutcome>,
}

/// What became of each technique, in the process that has most to say of it: a launcher's runs no module, and uses no GPU.
fn outcomes(run: &Capture) -> Vec<TechniqueOutcome> {
    let all = || run.traces.iter().flat_map(|trace| trace.techniques.iter().map(move |outcome| (trace, outcome)));
    let weight = |(trace, outcome): &(&Trace, &TechniqueOutcome)| {
        let uses_gpu = trace.events.iter().any(|event| event.kind == Kind::Alloc);
        let is_parent = run.traces.iter().any(|other| other.process.parent == trace.process.id);
        (outcome.applied, uses_gpu, !is_parent, trace.exception.is_none())
    };
    let names = distinct(all().map(|(_, outcome)| &outcome.technique));
    let of_name = |name: &String| all().filter(|(_, outcome)| outcome.technique == *name).max_by_key(weight);
    names.into_iter().filter_map(of_name).map(|(_, outcome)| outcome.clone()).collect()
}

fn ran_out(run: &Capture) -> bool {
    run.traces.iter().any(|trace| trace.exception.as_ref().is_some_and(|exception| exception.out_of_memory))
}

/// What ranks and launchers raise when another process has left.
const OF_ANOTHER_PROCESS: [&str; 5] =
    ["ConnectionResetError", "BrokenPipeError", "DistNetworkError", "ProcessExitedException", "ChildFailedError"];

/// A technique that has nothing to do ends the script, often before it used the GPU.
fn nothing_to_do(run: &Capture) -> Option<Failed> {
    let outcomes = outcomes(run);
    // As it is, the script ends well: an exception is the technique's, whatever it said before.
    let is_own = |kind: &String| !OF_ANOTHER_PROCESS.iter().any(|other| kind.ends_with(other));
    let fails = run.traces.iter().filter_map(|trace| trace.exception.as_ref()).any(|exception| is_own(&exception.kind));
    (!fails && outcomes.iter().any(|outcome| !outcome.applied)).then(|| Failed { why: String::new(), outcomes })
}

/// On the card, or first on a large one, where it is known that the script as it is does not fit: what is never short of memory asks for the
/// same on both, so that the card itself decides only where its memory could do with what is allocated and not with what is reserved.
fn measure(rehearsal: &Rehearsal, is_large_first: bool) -> Result<Result<MeasuredStep, Failed>> {
    if rehearsal.measures {
        let run = rehearsal.run_in_silence()?;
        return Ok(nothing_to_do(&run).map_or_else(|| on_a_real_gpu(&run), Err));
    }
    let large = rehearsal.on_a_large_card();
    let first = simulated(if is_large_first { &large } else { rehearsal })?;
    let Ok(mut measured) = first else { return Ok(first) };
    let room = (rehearsal.card.memory - rehearsal.card.context).cast_signed();
    if is_large_first {
        measured.fits = measured.peaks.is_some_and(|(reserved, _)| reserved <= room);
        if !measured.fits && measured.peaks.is_some_and(|(_, allocated)| allocated <= room) {
            let on_card = simulated(rehearsal)?;
            if on_card.as_ref().is_ok_and(|measured| measured.peaks.is_some()) {
                return Ok(on_card);
            }
        }
    } else if measured.peaks.is_none() {
        match simulated(&large)? {
            Ok(needs) => measured = MeasuredStep { fits: false, ..needs },
            failed => return Ok(failed),
        }
    }
    Ok(Ok(MeasuredStep { gpu: SimulatedGpu::of(&rehearsal.card, rehearsal.gpus.unwrap_or(1)), ..measured }))
}

/// One rehearsal. Where memory runs out there are no peaks.
fn simulated(rehearsal: &Rehearsal) -> Result<Result<MeasuredStep, Failed>> {
    let run = rehearsal.run_in_silence()?;
    if let Some(failed) = nothing_to_do(&run) {
        return Ok(Err(failed));
    }
    let answer = answer(&run)?;
    Ok(match answer.verdict {
        RehearsalVerdict::ScriptFailed | RehearsalVerdict::TimedOut | RehearsalVerdict::Interrupted => {
            Err(Failed { why: short_failure(&answer, &run), outcomes: Vec::new() })
        }
        verdict => {
            let is_base = rehearsal.variant.techniques.is_empty();
            let limits = if is_base { limits(rehearsal, &run, &answer) } else { Vec::new() };
            let unreached_backward = unreached_backward(&answer);
            let imported: Option<Vec<Vec<String>>> = run.traces.iter().map(|trace| trace.imported.clone()).collect();
            Ok(MeasuredStep {
                peaks: verdict.fits().then_some((answer.peak_reserved, answer.peak_allocated)),
                needs: rehearsal.needed(&answer, &run.traces),
                fits: verdict.fits(),
                seconds: None,
                time: answer.time.ok_or(answer.time_missing.unwrap_or_default()),
                flops: run.traces.iter().filter_map(|trace| trace.flops).max(),
                host_memory: run.traces.iter().map(|trace| trace.host.resident).sum(),
                host: answer.host.unwrap_or_default(),
                outcomes: outcomes(&run),
                trains: run.traces.iter().any(|trace| trains(&trace.events)),
                makes_steps: run.traces.iter().any(makes_steps),
                unreached_backward,
                needless: answer.processes.iter().find_map(|process| process.needless_graphs.clone()),
                imported: imported.map(|of_processes| of_processes.concat()),
                gpu: answer.gpu,
                limits,
            })
        }
    })
}

fn unreached_backward(answer: &Answer) -> Option<String> {
    let rows = answer.processes.iter().flat_map(|process| &process.unreached);
    let mut of_backward = rows.filter(|row| row.phase == BACKWARD_PASS);
    of_backward.next().map(|row| format!("{}:{}", short(&row.file), row.line))
}

/// Of the script as it is.
fn limits(rehearsal: &Rehearsal, run: &Capture, answer: &Answer) -> Vec<String> {
    // No technique rewrites it but `sdpa`, of transformers' models.
    let worst = answer.processes.first();
    let found = |kind| worst.and_then(|worst| worst.findings.iter().find(|finding| finding.kind == kind));
    let attention = found(FindingKind::ExplicitAttention).map(|of| format!("{} {}.", of.title, of.rows.join(", ")));
    let is_much = |bytes: i64| worst.is_some_and(|worst| worst.steps > 0 && bytes * 20 >= worst.peak.bytes);
    let needless = found(FindingKind::NeedlessGraphs).filter(|of| is_much(of.bytes)).map(|of| {
        let place = place_or_not(of.place.as_ref());
        format!("{} torch.no_grad() or torch.inference_mode() around them, at {place}, frees that.", of.title)
    });
    rehearsal.limits(run, answer).into_iter().chain(attention).chain(needless).collect()
}

/// What PyTorch's own meters and a clock said.
fn on_a_real_gpu(run: &Capture) -> Result<MeasuredStep, Failed> {
    let outcomes = outcomes(run);
    // What was seen until memory ran out says nothing of what is needed, and without a step neither what was until an exception.
    let ended = run.traces.iter().filter(|_| !ran_out(run));
    let counts = |trace: &Trace, meters: &Meters| meters.trains || trace.exception.is_none();
    let meters = ended.filter_map(|trace| trace.meters.as_ref().filter(|meters| counts(trace, meters)));
    let meters = meters.max_by_key(|meters| meters.peak_reserved);
    let gpu = run.traces.iter().find_map(|trace| trace.gpu.clone());
    if let Some(gpu) = gpu.filter(|_| meters.is_some() || ran_out(run)) {
        return Ok(MeasuredStep {
            peaks: meters.map(|meters| (meters.peak_reserved, meters.peak_allocated)),
            needs: None,
            fits: meters.is_some(),
            seconds: meters.and_then(|meters| meters.seconds),
            time: Err(String::new()),
            flops: run.traces.iter().filter_map(|trace| trace.flops).max(),
            host_memory: 0,
            host: HostMemory::default(),
            outcomes,
            trains: meters.is_none_or(|meters| meters.trains),
            makes_steps: meters.is_none_or(|meters| meters.trains),
            unreached_backward: None,
            needless: None,
            imported: None,
            gpu: SimulatedGpu { name: gpu.name, memory: gpu.memory, context: gpu.taken, count: 1 },
            limits: Vec::new(),
        });
    }
    let exception = run.traces.iter().find_map(|trace| trace.exception.as_ref());
    let why = exception.map(|e| format!("{}: {}", on_one_line(&e.kind), first_line(&e.message)));
    Err(Failed {
        why: why.unwrap_or_else(|| "it ended without an optimizer step or a forward pass on the GPU".to_string()),
        outcomes: Vec::new(),
    })
}

/// Those worth trying together, by what each did alone: what is free, with what changes the result, with what costs compute.
fn combinations(rows: &[VariantRow]) -> Vec<Combination> {
    // Where the script's own peak is not known, whatever ran.
    let saves = |row: &&VariantRow| row.saved.map_or(row.peak_reserved.is_some(), |saved| saved > 0);
    let mut useful: Vec<&VariantRow> = rows.iter().filter(saves).collect();
    useful.sort_by_key(|row| row.bytes());
    // The most useful of each group that the set has none of yet.
    let all = |wanted: &dyn Fn(&VariantRow) -> bool, from: Option<Combination>| {
        useful.iter().filter(|row| wanted(row)).fold(from, |set, row| match set {
            None => Some(row.choice.clone()),
            Some(set) if set.goes_with(&row.choice) => Some(set.and(&row.choice)),
            set => set,
        })
    };
    let harmless = all(&|row| row.is_free() && row.change.is_empty(), None);
    // Another result is for what saves much.
    let is_much = |row: &VariantRow| row.saved.zip(row.bytes()).is_none_or(|(saved, left)| saved * 20 >= saved + left);
    let at_no_compute = all(&|row| row.is_free() && is_much(row), harmless.clone());
    let mut sets: Vec<Combination> = Vec::new();
    sets.extend(harmless.clone());
    sets.extend(at_no_compute.clone());
    for costly in useful.iter().filter(|row| !row.is_free()) {
        for set in [&harmless, &at_no_compute].into_iter().flatten() {
            if set.goes_with(&costly.choice) {
                sets.push(set.and(&costly.choice));
            }
        }
    }
    let names = |names: &[String]| names.iter().cloned().collect::<BTreeSet<String>>();
    let mut seen: HashSet<BTreeSet<String>> = rows.iter().map(|row| names(&row.techniques)).collect();
    sets.retain(|set| set.names.len() > 1 && seen.insert(names(&set.names)));
    sets
}

/// In the order of all advice, the script as it is first. What was not applied comes last.
fn sort(rows: &mut [VariantRow], host: &HostMemory) {
    let as_it_is = rows.iter().find(|row| row.techniques.is_empty());
    let (fits, seconds) = (as_it_is.is_some_and(|row| row.fits), as_it_is.and_then(|row| row.seconds));
    let place = |row: &VariantRow| {
        let measured = row.seconds.zip(seconds).map(|(own, before)| own / before - 1.0);
        let counted = row.extra_flops.filter(|_| !row.is_without_time && !row.is_offloading()).map(|_| row.extra_share);
        let merit = Merit {
            frees: row.saved.unwrap_or(0),
            longer: row.predicted_change.map(|change| change.share).or(measured).or(counted),
            changes: row.choice.of.iter().map(|technique| technique.changes).max().unwrap_or_default(),
            needs_more: [Need::Cards, Need::Compiler, Need::Flags].into_iter().any(|need| row.choice.wants(need)),
            pins_too_much: host.pins_too_much(row.pinned),
            makes_it_fit: row.fits && !fits,
        };
        (row.peak_reserved.is_none(), !row.techniques.is_empty(), merit.place(), row.techniques.len())
    };
    rows.sort_by_cached_key(place);
}

fn mark_front(rows: &mut [VariantRow]) {
    let points: Vec<(i64, i64, usize, Burdens)> =
        rows.iter().filter_map(|row| Some((row.bytes()?, row.price(), row.techniques.len(), row.burdens()))).collect();
    for row in rows {
        let Some(peak) = row.bytes() else { continue };
        let (price, techniques, burdens) = (row.price(), row.techniques.len(), row.burdens());
        row.pareto = !row.is_without_time
            && !points.iter().any(|(p, f, t, b)| {
                *p <= peak
                    && *f <= price
                    && b.are_within(burdens)
                    && ((*p, *f) != (peak, price) || *b != burdens || *t < techniques)
            });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::technique::named;
    use crate::answer::time::TimeChange;

    /// Of the group of a technique, or of one of its own.
    fn tried(name: &str, like: &str, peak: i64, extra_share: f64, change: &str) -> VariantRow {
        let own = || Box::leak(Box::new(Technique { group: name.to_string(), ..Technique::default() })) as &Technique;
        let of = vec![named(like).unwrap_or_else(own)];
        let choice = Combination { names: vec![name.to_string()], of, ..Combination::default() };
        VariantRow {
            techniques: choice.names.clone(),
            peak_reserved: Some(peak),
            saved: Some(100 - peak),
            extra_share,
            change: change.to_string(),
            choice,
            ..VariantRow::default()
        }
    }

    #[test]
    fn what_would_fill_the_host_runs_alone() {
        assert_eq!([1, u64::MAX].map(|bytes| room_for(bytes) > 1), [true, false]);
    }

    #[test]
    fn together_goes_the_best_of_each_group_and_nothing_that_saves_nothing() {
        let rows = [
            tried("bf16", "autocast-bf16", 60, 0.0, "bf16"),
            tried("fp16", "autocast-fp16", 61, 0.0, "fp16"),
            tried("fused", "fused", 98, 0.0, ""),
            tried("loop", "for-loop", 99, 0.0, ""),
            tried("in place", "in-place", 95, 0.0, ""),
            tried("every", "checkpoint-every", 40, 0.33, ""),
            tried("second", "checkpoint-second", 70, 0.16, ""),
            tried("channels last", "channels-last", 104, 0.0, ""),
            tried("fsdp2", "fsdp2", 97, 0.0, "2 cards"),
            tried("offload", "offload-activations", 98, 0.0, ""),
            // Another result for less than a twentieth.
            tried("muon", "", 96, 0.0, "another optimizer"),
            VariantRow::refused(
                Combination { names: vec!["8-bit".to_string()], ..Combination::default() },
                "not installed".to_string(),
            ),
        ];
        let names: Vec<String> = combinations(&rows).iter().map(|set| set.names.join("+")).collect();
        let costly =
            ["every", "second", "fsdp2", "offload"].map(|name| format!("in place+fused+{name} in place+fused+bf16+{name}"));
        assert_eq!(names.join(" "), format!("in place+fused in place+fused+bf16 {}", costly.join(" ")));
        // What trains another thing comes after all that does not, however little it costs.
        assert!(tried("lora", "lora", 10, -0.3, "another thing").cost() > rows[8].cost());
        // A count of operations does not show traffic: what avoids it stays on the front.
        let mut front =
            [tried("offload", "offload-activations", 30, 0.0, ""), tried("fused", "fused", 60, 0.0, ""), rows[8].clone()];
        mark_front(&mut front);
        assert_eq!(front.map(|row| row.pareto), [true, true, false]);
        // What was tried together already is not tried again.
        let both = rows[2].choice.and(&rows[4].choice);
        let again = [&rows[..], &[VariantRow { techniques: both.names.clone(), peak_reserved: Some(93), ..VariantRow::default() }]]
            .concat();
        assert_eq!(combinations(&again).len(), names.len() - 1);
        assert!(combinations(&rows[2..4]).is_empty(), "alternatives alone");
    }

    #[test]
    fn the_fastest_that_fits_is_first() {
        let timed = |name, like, peak, share: f64| VariantRow {
            predicted_change: Some(TimeChange { share, low: share - 0.1, high: share + 0.1 }),
            predicted_seconds: Some(1.0 + share),
            extra_flops: Some(0),
            fits: peak <= 60,
            ..tried(name, like, peak, 0.0, "")
        };
        let mut rows = [
            timed("as it is", "", 100, 0.0),
            // Micro-batches compute no more, and take much longer.
            timed("accumulate", "accumulate", 20, 0.8),
            VariantRow { extra_flops: Some(1 << 40), extra_share: 0.3, ..timed("checkpoint", "checkpoint-every", 50, 0.2) },
            timed("offload", "offload-activations", 40, 0.3),
            timed("slower", "fused", 55, 0.25),
            VariantRow { is_without_time: true, fits: true, ..tried("fsdp2", "fsdp2", 10, 0.0, "2 cards") },
            VariantRow { extra_flops: Some(1 << 20), extra_share: 0.01, ..timed("fast", "autocast-bf16", 90, -0.4) },
        ];
        mark_front(&mut rows);
        sort(&mut rows, &HostMemory::default());
        let marked = |row: &VariantRow| format!("{}{}", row.name(), if row.pareto { "*" } else { "" });
        let names: Vec<String> = rows.iter().map(marked).collect();
        assert_eq!(names.join(", "), "checkpoint*, slower, offload*, fast*, as it is, accumulate*, fsdp2");
        let cheapest = rows.iter().filter(|row| row.fits).min_by_key(|row| row.cost());
        assert_eq!(cheapest.map(VariantRow::name).as_deref(), Some("checkpoint"));
        assert!(rows.iter().filter(|row| row.is_free()).all(|row| ["fast", "as it is"].contains(&row.techniques[0].as_str())));
    }
}
