//! `vramlab plan`: how so many cards are best shared out among a job's tensor, pipeline and data parallel groups, and its micro-batch.
//!
//! The first rank of each layout is rehearsed, those that split a model most first: where one does not fit, a layout that splits it less with as large a
//! micro-batch does not either, and is left out. Of a pipeline the last stage and then those between are rehearsed while the slowest so far, with half of the
//! bubble of equal stages, would be fast enough for a place among the best; they are played against each other.

mod layouts;
mod table;

pub use layouts::{Layout, LayoutTemplate, PRESETS, Search, Values};
pub use table::table;

use super::of_each;
use crate::answer::reply::short_failure;
use crate::answer::time::{Prediction, RanksTogether, an_hour};
use crate::answer::{Answer, RehearsalVerdict, answer, play_ranks};
use crate::capture::session::Capture;
use crate::run::executor::{Output, Rehearsal, Variant, WAS_INTERRUPTED, was_interrupted};
use crate::run::session::Session;
use anyhow::{Context, Result, ensure};
use base::units::{Bytes, Seconds};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// How many layouts are said.
const BEST: usize = 5;

/// What came of a layout.
#[derive(Debug, Clone, Default, Serialize, schemars::JsonSchema)]
pub struct TriedLayout {
    pub layout: Layout,
    /// How it is started: variables of the environment, and the command as it was given with the layout's flags.
    pub command: String,
    /// `fits`, `does_not_fit`, `failed`, `interrupted`, `left_out`, or `slower`: by its first stage and its bubble it is none of the best.
    pub outcome: &'static str,
    /// Why, where it is not among those that fit.
    pub why: Option<String>,
    /// Of the job; predicted.
    pub step_seconds: Option<f64>,
    pub tokens_per_second: Option<f64>,
    pub samples_per_second: Option<f64>,
    /// Share of the step that is communication which nothing hides, and that ranks wait for each other.
    pub exposed: Option<f64>,
    pub bubble: Option<f64>,
    /// The rank that needs most of its card, and how many bytes.
    pub fullest_rank: Option<u32>,
    pub peak_on_device: Option<i64>,
    /// NCCL's buffers beside it, at most.
    pub nccl: i64,
    /// Of 1e9 tokens, or 1e6 samples, in the currency of the file of prices.
    pub price: Option<f64>,
    /// Ranks that were rehearsed.
    pub ranks: Vec<u32>,
}

impl TriedLayout {
    fn not_run(layout: Layout, outcome: &'static str, why: String) -> TriedLayout {
        TriedLayout { layout, outcome, why: Some(why), ..TriedLayout::default() }
    }

    /// What fails as the plan is interrupted says nothing of the layout.
    fn failed(layout: Layout, why: String) -> TriedLayout {
        match was_interrupted() {
            true => TriedLayout { layout, outcome: WAS_INTERRUPTED, ..TriedLayout::default() },
            false => TriedLayout::not_run(layout, "failed", why),
        }
    }

    fn fits(&self) -> bool {
        self.outcome == "fits"
    }

    /// What layouts are compared by.
    fn rate(&self) -> f64 {
        let steps = self.step_seconds.map(|seconds| 1.0 / seconds);
        self.tokens_per_second.or(self.samples_per_second).or(steps).unwrap_or(0.0)
    }
}

/// The layouts of one number of cards.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Plan {
    pub gpu: String,
    pub gpus: u32,
    pub machines: u32,
    /// Those that fit, the fastest first.
    pub fastest: Vec<TriedLayout>,
    /// All others, in the order in which they were tried.
    pub others: Vec<TriedLayout>,
    pub currency: Option<String>,
    pub rehearsals: usize,
    pub seconds: f64,
}

/// One rank's rehearsal.
struct Rank {
    rank: u32,
    capture: Capture,
    answer: Answer,
    _session: Session,
}

struct Planner<'a> {
    rehearsal: &'a Rehearsal,
    search: &'a Search,
    rehearsals: AtomicUsize,
    /// Layouts that do not fit.
    too_large: Mutex<Vec<Layout>>,
}

/// What the first rank of a layout says, and the folder of what its ranks send each other.
struct First {
    tried: TriedLayout,
    rank: Option<Rank>,
    sent: tempfile::TempDir,
}

impl Planner<'_> {
    fn first(&self, layout: &Layout) -> Result<First> {
        let sent = tempfile::tempdir().context("making a folder for what ranks send each other")?;
        let too_large = || self.too_large.lock().unwrap_or_else(PoisonError::into_inner);
        let larger = too_large().iter().find(|other| layout.needs_as_much(other)).copied();
        let (tried, rank) = match larger {
            Some(other) => (TriedLayout::not_run(*layout, "left_out", format!("{other} does not fit, which needs less")), None),
            None if was_interrupted() => (TriedLayout::failed(*layout, String::new()), None),
            None => match self.run(layout, 0, sent.path()) {
                Ok(rank) => (self.found(*layout, slice::from_ref(&rank)), Some(rank)),
                Err(why) => (TriedLayout::failed(*layout, format!("{why:#}")), None),
            },
        };
        if tried.outcome == "does_not_fit" {
            too_large().push(*layout);
        }
        Ok(First { tried, rank, sent })
    }

    /// Rehearses the other stages of a pipeline while it can be faster than `least`, and plays them against each other.
    fn pipeline(&self, first: First, least: f64) -> Result<TriedLayout> {
        let First { tried, rank, sent } = first;
        let mut ranks = vec![rank.context("its first rank has an answer")?];
        if was_interrupted() {
            return Ok(TriedLayout::failed(tried.layout, String::new()));
        }
        let is_slower = |ranks: &[Rank]| at_most(&tried, ranks) <= least;
        let slower = |ranks: &[Rank]| {
            let why =
                "by the stages that were rehearsed and its micro-batches it is slower than the fifth of those that fit".to_string();
            TriedLayout { outcome: "slower", why: Some(why), ranks: ranks.iter().map(|rank| rank.rank).collect(), ..tried.clone() }
        };
        if is_slower(&ranks) {
            return Ok(slower(&ranks));
        }
        let groups = ranks[0].capture.traces.iter().flat_map(|trace| trace.communicators.values());
        let members: BTreeSet<u32> = groups.flat_map(|of| of.members.clone()).collect();
        // The last stage has the loss, and often takes longest of all.
        let others = members.last().copied().into_iter().chain(members.iter().copied().filter(|rank| Some(rank) != members.last()));
        for other in others.filter(|other| *other > 0) {
            match self.run(&tried.layout, other, sent.path()) {
                Ok(one) => ranks.push(one),
                Err(why) => return Ok(TriedLayout::failed(tried.layout, format!("rank {other}: {why:#}"))),
            }
            if !ranks.last().is_some_and(|last| last.answer.verdict.fits()) {
                break;
            }
            if ranks.len() == 2 && members.len() > 2 && is_slower(&ranks) {
                return Ok(slower(&ranks));
            }
        }
        ranks.sort_by_key(|rank| rank.rank);
        Ok(self.found(tried.layout, &ranks))
    }

    fn run(&self, layout: &Layout, rank: u32, sent: &Path) -> Result<Rank> {
        self.rehearsals.fetch_add(1, Ordering::Relaxed);
        let (command, settings) = self.search.template.with(&self.rehearsal.command, layout);
        let variant = Variant { command: Some(command), settings, ..Variant::default() };
        let one = Rehearsal {
            rank: Some((rank, layout.gpus)),
            gpus: Some(self.search.per_node.min(layout.gpus)),
            sent: Some(sent.to_owned()),
            variant,
            ..self.rehearsal.clone()
        };
        let (capture, session) = one.run(Output::Silent)?;
        ensure!(!was_interrupted(), WAS_INTERRUPTED);
        let answer = answer(&capture)?;
        Ok(Rank { rank, capture, answer, _session: session })
    }

    /// What the ranks that ran say of a layout.
    fn found(&self, layout: Layout, ranks: &[Rank]) -> TriedLayout {
        let mut found = TriedLayout::not_run(layout, "fits", String::new());
        found.command = self.search.started(&layout);
        found.ranks = ranks.iter().map(|rank| rank.rank).collect();
        let fullest = ranks.iter().max_by_key(|rank| (!rank.answer.verdict.fits(), rank.answer.peak_on_device));
        if let Some(fullest) = fullest {
            (found.fullest_rank, found.peak_on_device) = (Some(fullest.rank), Some(fullest.answer.peak_on_device));
            found.nccl = fullest.answer.nccl.as_ref().map_or(0, |nccl| nccl.most);
            if !fullest.answer.verdict.fits() {
                let is_memory = fullest.answer.verdict == RehearsalVerdict::DoesNotFit;
                found.outcome = if is_memory { "does_not_fit" } else { "failed" };
                found.why = Some(match is_memory {
                    true => format!("rank {} runs out of memory", fullest.rank),
                    false => format!("rank {}: {}", fullest.rank, short_failure(&fullest.answer, &fullest.capture)),
                });
                return found;
            }
        }
        found.why = None;
        let joined = ranks.iter().flat_map(|rank| &rank.capture.traces).map(|trace| trace.ranks).max().unwrap_or(0);
        if joined != layout.gpus && layout.gpus > 1 {
            found.outcome = "failed";
            found.why = Some(match joined {
                0 => "the command joins no job: it does not call init_process_group".to_string(),
                _ => format!(
                    "the command makes a job of {joined} ranks of {}: tell it by {{gpus}}, or {{nodes}} and {{local}}, in --layout",
                    layout.gpus
                ),
            });
            return found;
        }
        let Some(first) = ranks.first().and_then(|rank| rank.answer.time.clone()) else {
            found.outcome = "failed";
            let missing = ranks.first().and_then(|rank| rank.answer.time_missing.clone());
            found.why = Some(format!("no time: {}", missing.unwrap_or_default()));
            return found;
        };
        let together = if ranks.len() > 1 { play_ranks(ranks.iter().map(|rank| (&rank.capture, &rank.answer))) } else { None };
        self.timed(&mut found, &first, together.as_ref());
        found
    }

    fn timed(&self, found: &mut TriedLayout, first: &Prediction, together: Option<&RanksTogether>) {
        let step = together.map_or(first.step_seconds, |together| together.step_seconds);
        // Ranks with batches of their own, and those that have a part of each sequence.
        let replicas = f64::from(found.layout.dp * found.layout.cp);
        let rate = |each: Option<u64>| each.map(|each| each as f64 * replicas / step);
        (found.step_seconds, found.tokens_per_second, found.samples_per_second) =
            (Some(step), rate(first.tokens), rate(first.samples));
        found.exposed = Some(first.exposed_seconds / step);
        found.bubble = together.filter(|together| together.is_pipeline).map(|together| together.waiting);
        let an_hour = first.cost.as_ref().map(|cost| cost.per_hour * f64::from(found.layout.gpus));
        let unit = if found.tokens_per_second.is_some() { 1e9 } else { 1e6 };
        let rate = found.tokens_per_second.or(found.samples_per_second);
        found.price = an_hour.zip(rate).map(|(an_hour, rate)| an_hour * unit / rate / 3600.0);
    }

    fn say(&self, done: usize, of: usize, tried: &TriedLayout) {
        let bytes = tried.peak_on_device.map_or(String::new(), |peak| format!(", {}", Bytes(peak.unsigned_abs())));
        let step = tried.step_seconds.map_or(String::new(), |step| format!(", {} a step", Seconds(step)));
        let why = tried.why.as_ref().map_or(String::new(), |why| format!(" ({why})"));
        (self.rehearsal.progress)(&format!(
            "{done} of {of}: {}: {}{why}{bytes}{step}",
            tried.layout,
            tried.outcome.replace('_', " ")
        ));
    }
}

/// What a pipeline does at most: the slowest of the stages that were rehearsed is never idle but while the pipeline is filled and emptied, once a step,
/// and the others take half as long as it, or more.
fn at_most(tried: &TriedLayout, ranks: &[Rank]) -> f64 {
    let times = || ranks.iter().filter_map(|rank| rank.answer.time.as_ref());
    let moved = times().take(1).flat_map(|time| &time.communication);
    let batches = moved.filter(|row| row.what == "send").map(|row| row.calls).sum::<usize>().max(1) as f64;
    let first = times().next().map_or(0.0, |time| time.step_seconds);
    let slowest = times().map(|time| time.step_seconds).fold(0.0, f64::max);
    tried.rate() * first / slowest * batches / (batches + f64::from(tried.layout.pp - 1) / 2.0)
}

/// The best layouts of so many cards.
///
/// # Errors
/// No layout has so many cards; not one ran.
pub fn plan(rehearsal: &Rehearsal, search: &Search, gpus: u32) -> Result<Plan> {
    let began = std::time::Instant::now();
    let layouts = search.layouts(gpus)?;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let planner = Planner { rehearsal, search, rehearsals: AtomicUsize::new(0), too_large: Mutex::default() };
    let done = AtomicUsize::new(0);
    let firsts = of_each(&layouts, cores, |_, layout| {
        let first = planner.first(layout);
        first.iter().for_each(|first| planner.say(done.fetch_add(1, Ordering::Relaxed) + 1, layouts.len(), &first.tried));
        first
    });
    let (mut whole, mut stages, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for first in firsts.into_iter().collect::<Result<Vec<First>>>()? {
        match &first.rank {
            Some(_) if first.tried.fits() && first.tried.layout.pp > 1 => stages.push(first),
            Some(_) if first.tried.fits() => whole.push(first.tried),
            _ => others.push(first.tried),
        }
    }
    let promise = |first: &First| at_most(&first.tried, first.rank.as_slice());
    stages.sort_by(|a, b| promise(b).total_cmp(&promise(a)));
    let count = stages.len();
    let mut waiting = stages.into_iter().map(|first| Mutex::new(Some(first))).enumerate();
    loop {
        let batch: Vec<_> = waiting.by_ref().take(cores).collect();
        if batch.is_empty() {
            break;
        }
        let mut rates: Vec<f64> = whole.iter().map(TriedLayout::rate).collect();
        rates.sort_by(f64::total_cmp);
        let least = rates.iter().rev().nth(BEST - 1).copied().unwrap_or(0.0);
        let played = of_each(&batch, cores, |_, (at, first)| -> Result<TriedLayout> {
            let first = first.lock().unwrap_or_else(PoisonError::into_inner).take();
            let tried = planner.pipeline(first.context("a stage is played once")?, least)?;
            if tried.outcome != "slower" {
                planner.say(at + 1, count, &tried);
            }
            Ok(tried)
        });
        for tried in played {
            let tried = tried?;
            if tried.fits() { whole.push(tried) } else { others.push(tried) }
        }
    }
    whole.sort_by(|a, b| b.rate().total_cmp(&a.rate()));
    let currency = an_hour(&rehearsal.card).map(|(_, currency)| currency.to_string());
    Ok(Plan {
        gpu: rehearsal.card.to_string(),
        gpus,
        machines: gpus.div_ceil(search.per_node),
        fastest: whole,
        others,
        currency,
        rehearsals: planner.rehearsals.into_inner(),
        seconds: began.elapsed().as_secs_f64(),
    })
}
