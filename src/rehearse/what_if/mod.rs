//! `--what-if`: the script with each technique switched on from outside, and with those together that go together.

mod picture;
mod show;

use super::answer::{Answer, Verdict};
use super::launch::{Rehearsal, Variant, status, write_json};
use super::show::short_failure;
use super::trace::{Told, Trace};
use anyhow::{Context, Result};
use serde::Serialize;
use std::cmp::Reverse;
use std::env;
use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// What `techniques.py` does, and the group of which a script takes one.
const TECHNIQUES: [(&str, &str); 13] = [
    ("autocast-bf16", "precision"),
    ("autocast-fp16", "precision"),
    ("fused", "update"),
    ("foreach", "update"),
    ("for-loop", "update"),
    ("factored", "update"),
    ("optimizer-in-backward", "update"),
    ("zero-grad-to-none", "gradients"),
    ("checkpoint-every", "checkpointing"),
    ("checkpoint-second", "checkpointing"),
    ("checkpoint-sqrt", "checkpointing"),
    ("in-place", "in place"),
    ("channels-last", "layout"),
];

/// Settings of PyTorch's allocator.
const SETTINGS: [(&str, &str); 3] = [
    ("expandable-segments", "expandable_segments:True"),
    ("max-split-size", "max_split_size_mb:128"),
    ("round-up-power-of-2", "roundup_power2_divisions:8"),
];
/// Read by every version of PyTorch; the newer name is preferred where a user has set it.
const ALLOCATOR: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// A technique, or several.
#[derive(Debug, Clone, Default)]
struct Choice {
    names: Vec<String>,
    groups: Vec<&'static str>,
    variant: Variant,
    change: String,
    snippet: String,
}

impl Choice {
    fn and(&self, other: &Choice) -> Choice {
        let both = |a: &str, b: &str, between: &str| [a, b].into_iter().filter(|t| !t.is_empty()).collect::<Vec<_>>().join(between);
        Choice {
            names: [&self.names[..], &other.names].concat(),
            groups: [&self.groups[..], &other.groups].concat(),
            variant: Variant {
                techniques: [&self.variant.techniques[..], &other.variant.techniques].concat(),
                settings: [&self.variant.settings[..], &other.variant.settings].concat(),
                command: other.variant.command.clone().or_else(|| self.variant.command.clone()),
                counts: true,
            },
            change: both(&self.change, &other.change, "; "),
            snippet: both(&self.snippet, &other.snippet, "\n\n"),
        }
    }

    fn goes_with(&self, other: &Choice) -> bool {
        !self.groups.iter().any(|group| other.groups.contains(group))
    }
}

/// What became of a choice.
#[derive(Debug, Clone, Serialize)]
struct Row {
    techniques: Vec<String>,
    /// None where it was not applied. Where it does not fit: as it would be on a card that is large enough.
    peak_reserved: Option<i64>,
    peak_allocated: Option<i64>,
    saved: Option<i64>,
    /// Of one optimizer step; none where they could not be counted.
    extra_flops: Option<i64>,
    fits: bool,
    /// No other needs less memory for as few operations.
    pareto: bool,
    /// What it changes in the result.
    change: String,
    snippet: String,
    /// Why it was not applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip)]
    choice: Choice,
}

impl Row {
    fn name(&self) -> String {
        if self.techniques.is_empty() { "as it is".to_string() } else { self.techniques.join(" + ") }
    }

    /// Cheapest first: few operations, little changed in the result, few lines, few bytes.
    fn cost(&self) -> (i64, bool, usize, i64) {
        (self.extra_flops.unwrap_or(0), !self.change.is_empty(), self.techniques.len(), self.peak_reserved.unwrap_or(i64::MAX))
    }
}

/// A rehearsal that ended well, on the card or where it does not fit on a large one.
struct Measured {
    answer: Answer,
    fits: bool,
    flops: Option<u64>,
    told: Vec<Told>,
}

/// Tries everything, says what came of it, and gives the exit status.
pub(super) fn what_if(rehearsal: &Rehearsal) -> Result<u8> {
    let options = rehearsal.options;
    let counting = Rehearsal { variant: Variant { counts: true, ..Variant::default() }, ..rehearsal.clone() };
    say(options.quiet, "the script as it is");
    let base = match measure(&counting)? {
        Ok(base) => base,
        Err(why) => {
            eprintln!("vramlab: the script fails as it is: {why}; vramlab rehearse without --what-if shows where");
            return Ok(status(Verdict::ScriptFailed));
        }
    };
    let (choices, left_out) = choices(rehearsal)?;
    let mut rows = try_all(rehearsal, &base, choices);
    let together = combinations(&rows);
    rows.extend(try_all(rehearsal, &base, together));
    rows.extend(left_out);
    rows.push(Row {
        techniques: Vec::new(),
        peak_reserved: Some(base.answer.peak_reserved),
        peak_allocated: Some(base.answer.peak_allocated),
        saved: Some(0),
        extra_flops: base.flops.map(|_| 0),
        fits: base.fits,
        pareto: false,
        change: String::new(),
        snippet: String::new(),
        reason: None,
        choice: Choice::default(),
    });
    mark_front(&mut rows);
    rows.sort_by_key(|row| (Reverse(row.saved), row.cost()));
    if let Some(path) = &options.json {
        write_json(path, &rows)?;
    }
    let text = show::answer(rehearsal, &base, &rows);
    if let Some(folder) = &options.out {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        write_json(&folder.join("what-if.json"), &rows)?;
        let path = folder.join("what-if.txt");
        fs::write(&path, &text).with_context(|| format!("writing {}", path.display()))?;
        let card = &rehearsal.card;
        let title = show::recommendation(rehearsal, &rows);
        let picture = picture::draw(&rows, &title, &card.to_string(), card.memory - card.context, base.flops)?;
        let path = folder.join("what-if.svg");
        fs::write(&path, picture).with_context(|| format!("writing {}", path.display()))?;
    }
    if !options.quiet {
        print_answer(options.json.as_deref().is_some_and(|path| path.as_os_str() == "-"), &text);
    }
    Ok(status(if rows.iter().any(|row| row.fits) { Verdict::Fits } else { Verdict::DoesNotFit }))
}

/// The answer is what was asked for: on the standard output, unless JSON is there.
fn print_answer(json_is_there: bool, text: &str) {
    match json_is_there {
        true => eprint!("{text}"),
        false => print!("{text}"),
    }
}

fn say(quiet: bool, what: &str) {
    if !quiet {
        eprintln!("vramlab: rehearsing {what}");
    }
}

/// Every technique, and those that this command cannot be given.
fn choices(rehearsal: &Rehearsal) -> Result<(Vec<Choice>, Vec<Row>)> {
    let mut choices = Vec::new();
    let mut left_out = Vec::new();
    for (name, group) in TECHNIQUES {
        choices.push(Choice {
            names: vec![name.to_string()],
            groups: vec![group],
            variant: Variant { techniques: vec![name], ..Variant::default() },
            ..Choice::default()
        });
    }
    let set = ["PYTORCH_ALLOC_CONF", ALLOCATOR].into_iter().find(|name| env::var_os(name).is_some_and(|value| !value.is_empty()));
    for (name, value) in SETTINGS {
        let choice = Choice {
            names: vec![name.to_string()],
            groups: vec!["allocator"],
            variant: Variant { settings: vec![(ALLOCATOR, value)], ..Variant::default() },
            change: String::new(),
            snippet: format!("PYTORCH_ALLOC_CONF={value}  # in the environment; {ALLOCATOR} before PyTorch 2.9"),
        };
        match set {
            Some(set) => left_out.push(refused(choice, format!("{set} is set already"))),
            None => choices.push(choice),
        }
    }
    if let (Some(batch), Some(accumulation)) = (&rehearsal.options.batch, &rehearsal.options.accumulation) {
        let command = &rehearsal.options.command;
        let now = batch.number(command).with_context(|| {
            format!("--batch: the command has to say its batch, so that it can be divided; write {} into it", batch.text(32))
        })?;
        let steps = accumulation.number(command).unwrap_or(1);
        for factor in [2, 4, 8] {
            if now.is_multiple_of(factor) {
                let with = accumulation.with(&batch.with(command, now / factor), steps * factor);
                choices.push(Choice {
                    names: vec![format!("accumulate-{factor}x")],
                    groups: vec!["accumulation"],
                    variant: Variant { command: Some(with), ..Variant::default() },
                    change: "BatchNorm sees the smaller batch; a mean over unequal numbers of targets weighs them differently"
                        .into(),
                    snippet: format!("{} {}  # on the command line", batch.text(now / factor), accumulation.text(steps * factor)),
                });
            }
        }
    }
    for choice in &mut choices {
        choice.variant.counts = true;
    }
    Ok((choices, left_out))
}

fn refused(choice: Choice, reason: String) -> Row {
    Row {
        techniques: choice.names.clone(),
        peak_reserved: None,
        peak_allocated: None,
        saved: None,
        extra_flops: None,
        fits: false,
        pareto: false,
        change: String::new(),
        snippet: String::new(),
        reason: Some(reason),
        choice,
    }
}

/// A rehearsal each, as many at once as there are cores.
fn try_all(rehearsal: &Rehearsal, base: &Measured, choices: Vec<Choice>) -> Vec<Row> {
    let next = AtomicUsize::new(0);
    let rows: Mutex<Vec<(usize, Row)>> = Mutex::new(Vec::new());
    let cores = thread::available_parallelism().map_or(1, usize::from).min(choices.len());
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(choice) = choices.get(at) else { return };
                    say(rehearsal.options.quiet, &format!("with {} ({} of {})", choice.names.join(" + "), at + 1, choices.len()));
                    let row = try_one(rehearsal, base, choice.clone());
                    rows.lock().unwrap_or_else(PoisonError::into_inner).push((at, row));
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort_by_key(|(at, _)| *at);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn try_one(rehearsal: &Rehearsal, base: &Measured, mut choice: Choice) -> Row {
    let measured = match measure(&Rehearsal { variant: choice.variant.clone(), ..rehearsal.clone() }) {
        Ok(measured) => measured,
        Err(error) => return refused(choice, format!("{error:#}")),
    };
    let told = match &measured {
        Ok(measured) => &measured.told[..],
        Err(failed) => &failed.told[..],
    };
    if let Some(no) = told.iter().find(|told| !told.applied) {
        let name = if choice.names.len() > 1 { format!("{}: ", no.technique) } else { String::new() };
        let reason = format!("{name}{}", no.reason);
        return refused(choice, reason);
    }
    let measured = match measured {
        Ok(measured) => measured,
        Err(failed) => return refused(choice, format!("the script fails with it: {}", failed.why)),
    };
    if let Some(silent) = choice.variant.techniques.iter().find(|name| !measured.told.iter().any(|told| told.technique == **name)) {
        let reason = format!("{silent} found nothing in the script to apply to");
        return refused(choice, reason);
    }
    if choice.names.len() == 1
        && let [told] = &measured.told[..]
    {
        choice.change.clone_from(&told.change);
        choice.snippet.clone_from(&told.snippet);
    }
    let peak = measured.answer.peak_reserved;
    Row {
        techniques: choice.names.clone(),
        peak_reserved: Some(peak),
        peak_allocated: Some(measured.answer.peak_allocated),
        saved: Some(base.answer.peak_reserved - peak),
        extra_flops: measured.flops.zip(base.flops).map(|(now, before)| now.cast_signed() - before.cast_signed()),
        fits: measured.fits,
        pareto: false,
        change: choice.change.clone(),
        snippet: choice.snippet.clone(),
        reason: None,
        choice,
    }
}

/// Why a script with a technique did not end well, and what the technique said.
struct Failed {
    why: String,
    told: Vec<Told>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.why)
    }
}

fn measure(rehearsal: &Rehearsal) -> Result<Result<Measured, Failed>> {
    let (answer, traces) = rehearsal.in_silence()?;
    let told = |traces: &[Trace]| traces.iter().flat_map(|trace| trace.techniques.clone()).collect::<Vec<Told>>();
    let fits = answer.verdict == Verdict::Fits;
    let (answer, traces) = match answer.verdict {
        Verdict::DoesNotFit => rehearsal.on_a_large_card().in_silence()?,
        _ => (answer, traces),
    };
    let told = told(&traces);
    if answer.verdict != Verdict::Fits {
        return Ok(Err(Failed { why: short_failure(&answer), told }));
    }
    Ok(Ok(Measured { fits, flops: traces.iter().filter_map(|trace| trace.flops).max(), told, answer }))
}

/// Those worth trying together, by what each did alone: what is free, with what changes the result, with what costs compute.
fn combinations(rows: &[Row]) -> Vec<Choice> {
    let mut useful: Vec<&Row> = rows.iter().filter(|row| row.saved.is_some_and(|saved| saved > 0)).collect();
    useful.sort_by_key(|row| Reverse(row.saved));
    // The most useful of each group that the set has none of yet.
    let all = |wanted: &dyn Fn(&Row) -> bool, from: Option<Choice>| {
        useful.iter().filter(|row| wanted(row)).fold(from, |set, row| match set {
            None => Some(row.choice.clone()),
            Some(set) if set.goes_with(&row.choice) => Some(set.and(&row.choice)),
            set => set,
        })
    };
    let free = |row: &Row| row.extra_flops.unwrap_or(0) <= 0;
    let harmless = all(&|row| free(row) && row.change.is_empty(), None);
    let at_no_compute = all(&free, harmless.clone());
    let mut sets: Vec<Choice> = Vec::new();
    sets.extend(harmless.clone());
    sets.extend(at_no_compute.clone());
    for costly in useful.iter().filter(|row| !free(row)) {
        for set in [&harmless, &at_no_compute].into_iter().flatten() {
            if set.goes_with(&costly.choice) {
                sets.push(set.and(&costly.choice));
            }
        }
    }
    let mut seen: Vec<Vec<String>> = rows.iter().map(|row| row.techniques.clone()).collect();
    sets.retain(|set| {
        let mut names = set.names.clone();
        names.sort();
        let is_new = !seen.contains(&names);
        seen.push(names);
        is_new && set.names.len() > 1
    });
    sets
}

fn mark_front(rows: &mut [Row]) {
    let points: Vec<(i64, i64, usize)> =
        rows.iter().filter_map(|row| Some((row.peak_reserved?, row.extra_flops.unwrap_or(0), row.techniques.len()))).collect();
    for row in rows {
        let Some(peak) = row.peak_reserved else { continue };
        let (flops, techniques) = (row.extra_flops.unwrap_or(0), row.techniques.len());
        row.pareto = !points.iter().any(|(p, f, t)| *p <= peak && *f <= flops && ((*p, *f) != (peak, flops) || *t < techniques));
    }
}
