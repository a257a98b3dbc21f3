//! `vramlab plan`: how so many cards are best shared out among a job's tensor, pipeline and data parallel groups, and its micro-batch.
//!
//! The first rank of each layout is rehearsed, those that split a model most first: where one does not fit, a layout that splits it less with as large a
//! micro-batch does not either, and is left out. Of a pipeline the last stage and then those between are rehearsed while the slowest so far, with half of the
//! bubble of equal stages, would be fast enough for a place among the best; they are played against each other.

use super::of_each;
use super::template::FlagTemplate;
use crate::answer::reply::short_failure;
use crate::answer::time::{Prediction, RanksTogether, an_hour};
use crate::answer::{Answer, RehearsalVerdict, answer, play_ranks};
use crate::capture::session::Capture;
use crate::run::executor::{Output, Rehearsal, Variant, was_interrupted};
use crate::run::session::Session;
use anyhow::{Context, Result, bail, ensure};
use base::units::{Bytes, Seconds, significant};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::{self, Write};
use std::path::Path;
use std::slice;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// What a layout can say, as `{tp}` in its template.
const NAMES: [&str; 9] = ["tp", "pp", "cp", "ep", "dp", "mb", "gpus", "nodes", "local"];

/// How frameworks are told a layout, by their documentation.
pub const PRESETS: [(&str, &str); 5] = [
    (
        "torchtitan",
        "--parallelism.tensor_parallel_degree {tp} --parallelism.pipeline_parallel_degree {pp} --training.local_batch_size {mb}",
    ),
    ("megatron", "--tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} --micro-batch-size {mb}"),
    // What `accelerate launch` makes of its flags.
    (
        "accelerate",
        "ACCELERATE_USE_PARALLELISM_CONFIG=true PARALLELISM_CONFIG_TP_SIZE={tp} PARALLELISM_CONFIG_DP_SHARD_SIZE={dp} \
         ACCELERATE_USE_FSDP=true FSDP_VERSION=2 --per_device_train_batch_size {mb}",
    ),
    // Megatron-DeepSpeed's.
    ("deepspeed", "--tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} --micro-batch-size {mb}"),
    (
        "lightning",
        "--trainer.strategy ModelParallelStrategy --trainer.strategy.tensor_parallel_size {tp} --trainer.strategy.data_parallel_size {dp} \
         --trainer.num_nodes {nodes} --trainer.devices {local} --data.batch_size {mb}",
    ),
];

/// How a command is told its layout: words with names in braces, `--tp {tp}`, or variables of its environment, `TP={tp}`.
#[derive(Debug, Clone)]
pub struct LayoutTemplate(Vec<String>);

impl FromStr for LayoutTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<LayoutTemplate, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_string).collect();
        let template = LayoutTemplate(words);
        let names = template.names()?;
        match names.is_empty() {
            true => Err(format!("'{text}' has no name in braces, as in '--tp {{tp}} --pp {{pp}} --micro-batch {{mb}}'")),
            false => Ok(template),
        }
    }
}

impl LayoutTemplate {
    fn names(&self) -> Result<BTreeSet<&'static str>, String> {
        let mut names = BTreeSet::new();
        for word in &self.0 {
            for part in word.split('{').skip(1) {
                let name = part.split('}').next().unwrap_or_default();
                let known = NAMES.iter().find(|known| **known == name);
                names.insert(*known.ok_or_else(|| format!("there is no {{{name}}}: a layout has {{{}}}", NAMES.join("}, {")))?);
            }
        }
        Ok(names)
    }

    /// The command and its environment with a layout: in the place of flags that it has, or at its end.
    fn with(&self, command: &[OsString], layout: &Layout) -> (Vec<OsString>, Vec<(&'static str, String)>) {
        let filled = |word: &str| {
            NAMES.iter().fold(word.to_string(), |word, name| word.replace(&format!("{{{name}}}"), &layout.of(name).to_string()))
        };
        let (mut command, mut variables, mut before) = (command.to_vec(), Vec::new(), Vec::new());
        for word in &self.0 {
            let variable = word
                .split_once('=')
                .filter(|(name, _)| name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_' || byte.is_ascii_digit()));
            if let Some((name, value)) = variable.filter(|_| before.is_empty()) {
                // As long as the program: there are a few.
                variables.push((&*name.to_string().leak(), filled(value)));
                continue;
            }
            before.push(word.clone());
            let holes: Vec<&str> = NAMES.iter().filter(|name| word.contains(&format!("{{{name}}}"))).copied().collect();
            match holes.as_slice() {
                [] => {}
                [one] => {
                    let text = std::mem::take(&mut before).join(" ").replace(&format!("{{{one}}}"), "{}");
                    match text.parse::<FlagTemplate>() {
                        Ok(flag) => command = flag.with(&command, layout.of(one).into()),
                        Err(_) => command.extend(text.split(' ').map(|word| OsString::from(filled(word)))),
                    }
                }
                _ => command.extend(std::mem::take(&mut before).iter().map(|word| OsString::from(filled(word)))),
            }
        }
        command.extend(before.into_iter().map(OsString::from));
        (command, variables)
    }
}

/// How cards are shared out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Layout {
    pub gpus: u32,
    /// Ranks that share each product, stages of a pipeline, ranks that share a sequence, those that share experts, and those with batches of their own.
    pub tp: u32,
    pub pp: u32,
    pub cp: u32,
    pub ep: u32,
    pub dp: u32,
    /// Samples of a micro-batch.
    pub mb: u32,
    /// Machines.
    pub nodes: u32,
}

impl Layout {
    fn of(&self, name: &str) -> u32 {
        match name {
            "tp" => self.tp,
            "pp" => self.pp,
            "cp" => self.cp,
            "ep" => self.ep,
            "dp" => self.dp,
            "mb" => self.mb,
            "nodes" => self.nodes,
            "local" => self.gpus.div_ceil(self.nodes),
            _ => self.gpus,
        }
    }

    /// Whether it splits a model no more than another, with as large a micro-batch.
    fn needs_as_much(&self, other: &Layout) -> bool {
        self.tp <= other.tp && self.pp <= other.pp && self.cp <= other.cp && self.ep <= other.ep && self.mb >= other.mb
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let parts = [
            ("tp", self.tp, 0),
            ("pp", self.pp, 0),
            ("cp", self.cp, 1),
            ("ep", self.ep, 1),
            ("dp", self.dp, 0),
            ("mb", self.mb, 0),
        ];
        let said: Vec<String> =
            parts.iter().filter(|(_, of, usual)| of > usual).map(|(name, of, _)| format!("{name} {of}")).collect();
        f.pad(&said.join(" "))
    }
}

/// Values that are tried of one name, `mb=1,2,4`.
#[derive(Debug, Clone)]
pub struct Values {
    name: String,
    values: Vec<u32>,
}

impl FromStr for Values {
    type Err = String;

    fn from_str(text: &str) -> Result<Values, String> {
        let wrong = || format!("'{text}' is not written like mb=1,2,4, with one of {}", NAMES[..6].join(", "));
        let (name, values) = text.split_once('=').ok_or_else(wrong)?;
        let values: Result<Vec<u32>, _> = values.split(',').map(str::parse).collect();
        let values = values.ok().filter(|values| values.iter().all(|value| *value > 0)).ok_or_else(wrong)?;
        if NAMES[..6].contains(&name) { Ok(Values { name: name.to_string(), values }) } else { Err(wrong()) }
    }
}

/// What is tried.
#[derive(Debug, Clone)]
pub struct Search {
    /// The command as it was given, with its launcher.
    pub command: Vec<OsString>,
    pub template: LayoutTemplate,
    pub values: Vec<Values>,
    /// Cards of a machine.
    pub per_node: u32,
}

/// Micro-batches that are tried where nobody says which.
const MICRO_BATCHES: [u32; 4] = [1, 2, 4, 8];
/// Stages of a pipeline at most.
const STAGES: u32 = 16;
/// How many layouts are said.
const BEST: usize = 5;

impl Search {
    fn started(&self, layout: &Layout) -> String {
        let (command, variables) = self.template.with(&self.command, layout);
        let variables = variables.into_iter().map(|(name, value)| format!("{name}={value}"));
        let words = command.iter().map(|word| word.to_string_lossy().into_owned());
        let quoted = words.map(|word| {
            if word.is_empty() || word.contains([' ', '\'', '"', '$', '*', ';', '|', '&', '(']) {
                format!("'{}'", word.replace('\'', "'\\''"))
            } else {
                word
            }
        });
        variables.chain(quoted).collect::<Vec<_>>().join(" ")
    }

    /// All layouts of so many cards: tensor and context parallel groups within a machine where nobody says otherwise. Those that split a model most are
    /// the first, each with its smallest micro-batch.
    fn layouts(&self, gpus: u32) -> Result<Vec<Layout>> {
        let names = self.template.names().map_err(anyhow::Error::msg)?;
        let of = |name: &str, most: u32| -> Vec<u32> {
            if let Some(given) = self.values.iter().find(|values| values.name == name) {
                return given.values.clone();
            }
            match name {
                _ if !names.contains(name) => vec![1],
                "mb" => MICRO_BATCHES.to_vec(),
                _ => (0..=most.ilog2()).map(|power| 1 << power).collect(),
            }
        };
        let near = self.per_node.min(gpus).max(1);
        let nodes = gpus.div_ceil(near);
        let mut layouts = Vec::new();
        for tp in of("tp", near) {
            for cp in of("cp", (near / tp).max(1)) {
                for pp in of("pp", STAGES.min(gpus)) {
                    let split = tp * pp * cp;
                    if !gpus.is_multiple_of(split) {
                        continue;
                    }
                    let dp = gpus / split;
                    for ep in of("ep", dp) {
                        let is_wanted =
                            |dp: u32| self.values.iter().all(|values| values.name != "dp" || values.values.contains(&dp));
                        let fits = is_wanted(dp) && dp.is_multiple_of(ep);
                        layouts.extend(of("mb", 1).into_iter().filter(|_| fits).map(|mb| Layout {
                            gpus,
                            tp,
                            pp,
                            cp,
                            ep,
                            dp,
                            mb,
                            nodes,
                        }));
                    }
                }
            }
        }
        layouts.sort_by_key(|of| (std::cmp::Reverse(of.tp * of.pp * of.cp * of.ep), of.mb));
        ensure!(!layouts.is_empty(), "--gpus {gpus}: no layout has so many cards with what --values allows");
        Ok(layouts)
    }
}

/// What came of a layout.
#[derive(Debug, Clone, Default, Serialize, schemars::JsonSchema)]
pub struct TriedLayout {
    pub layout: Layout,
    /// How it is started: variables of the environment, and the command as it was given with the layout's flags.
    pub command: String,
    /// `fits`, `does_not_fit`, `failed`, `left_out`, or `slower`: by its first stage and its bubble it is none of the best.
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
}

impl Planner<'_> {
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

/// The best layouts of so many cards.
///
/// # Errors
/// No layout has so many cards; not one ran.
pub fn plan(rehearsal: &Rehearsal, search: &Search, gpus: u32) -> Result<Plan> {
    let began = std::time::Instant::now();
    let layouts = search.layouts(gpus)?;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let planner = Planner { rehearsal, search, rehearsals: AtomicUsize::new(0) };
    let (too_large, done): (Mutex<Vec<Layout>>, AtomicUsize) = (Mutex::default(), AtomicUsize::new(0));
    let first_of = |_: usize, layout: &Layout| -> Result<(TriedLayout, Option<Rank>, tempfile::TempDir)> {
        let sent = tempfile::tempdir().context("making a folder for what ranks send each other")?;
        let larger =
            || too_large.lock().unwrap_or_else(PoisonError::into_inner).iter().find(|other| layout.needs_as_much(other)).copied();
        let (tried, rank) = match larger() {
            Some(other) => (TriedLayout::not_run(*layout, "left_out", format!("{other} does not fit, which needs less")), None),
            None if was_interrupted() => (TriedLayout::not_run(*layout, "left_out", "interrupted".to_string()), None),
            None => match planner.run(layout, 0, sent.path()) {
                Ok(rank) => (planner.found(*layout, slice::from_ref(&rank)), Some(rank)),
                Err(why) => (TriedLayout::not_run(*layout, "failed", format!("{why:#}")), None),
            },
        };
        if tried.outcome == "does_not_fit" {
            too_large.lock().unwrap_or_else(PoisonError::into_inner).push(*layout);
        }
        planner.say(done.fetch_add(1, Ordering::Relaxed) + 1, layouts.len(), &tried);
        Ok((tried, rank, sent))
    };
    let firsts: Vec<_> = of_each(&layouts, cores, first_of).into_iter().collect::<Result<_>>()?;
    let (mut whole, mut stages, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for (tried, rank, sent) in firsts {
        match rank.filter(|_| tried.fits()) {
            Some(rank) if tried.layout.pp > 1 => stages.push((tried, rank, sent)),
            Some(_) => whole.push(tried),
            None => others.push(tried),
        }
    }
    // What a pipeline does at most: the slowest of the stages that were rehearsed is never idle but while the pipeline is filled and emptied, once a step,
    // and the others take half as long as it, or more.
    let at_most = |tried: &TriedLayout, ranks: &[Rank]| {
        let times = || ranks.iter().filter_map(|rank| rank.answer.time.as_ref());
        let moved = times().take(1).flat_map(|time| &time.communication);
        let batches = moved.filter(|row| row.what == "send").map(|row| row.calls).sum::<usize>().max(1) as f64;
        let (first, slowest) =
            (times().next().map_or(0.0, |time| time.step_seconds), times().map(|time| time.step_seconds).fold(0.0, f64::max));
        tried.rate() * first / slowest * batches / (batches + f64::from(tried.layout.pp - 1) / 2.0)
    };
    stages.sort_by(|(a, of_a, _), (b, of_b, _)| at_most(b, slice::from_ref(of_b)).total_cmp(&at_most(a, slice::from_ref(of_a))));
    let count = stages.len();
    let mut waiting = stages.into_iter().enumerate();
    loop {
        let batch: Vec<_> = waiting.by_ref().take(cores).collect();
        if batch.is_empty() {
            break;
        }
        let mut rates: Vec<f64> = whole.iter().map(TriedLayout::rate).collect();
        rates.sort_by(f64::total_cmp);
        let least = rates.iter().rev().nth(BEST - 1).copied().unwrap_or(0.0);
        let batch: Vec<_> = batch.into_iter().map(|(at, (tried, rank, sent))| (at, tried, Mutex::new(Some(rank)), sent)).collect();
        let played = of_each(&batch, cores, |_, (at, tried, rank, sent)| -> Result<TriedLayout> {
            let Some(rank) = rank.lock().unwrap_or_else(PoisonError::into_inner).take() else { bail!("a stage is played once") };
            let is_slower = |ranks: &[Rank]| at_most(tried, ranks) <= least || was_interrupted();
            let slower = |ranks: &[Rank]| {
                let why = "by the stages that were rehearsed and its micro-batches it is slower than the fifth of those that fit"
                    .to_string();
                let ranks = ranks.iter().map(|rank| rank.rank).collect();
                TriedLayout { outcome: "slower", why: Some(why), ranks, ..tried.clone() }
            };
            if is_slower(slice::from_ref(&rank)) {
                return Ok(slower(&[rank]));
            }
            let members: BTreeSet<u32> = rank
                .capture
                .traces
                .iter()
                .flat_map(|trace| trace.communicators.values())
                .flat_map(|of| of.members.clone())
                .collect();
            let mut ranks = vec![rank];
            // The last stage has the loss, and often takes longest of all.
            let others =
                members.last().copied().into_iter().chain(members.iter().copied().filter(|rank| Some(rank) != members.last()));
            for other in others.filter(|other| *other > 0) {
                match planner.run(&tried.layout, other, sent.path()) {
                    Ok(one) => ranks.push(one),
                    Err(why) => return Ok(TriedLayout::not_run(tried.layout, "failed", format!("rank {other}: {why:#}"))),
                }
                if !ranks.last().is_some_and(|last| last.answer.verdict.fits()) {
                    break;
                }
                if ranks.len() == 2 && members.len() > 2 && is_slower(&ranks) {
                    return Ok(slower(&ranks));
                }
            }
            ranks.sort_by_key(|rank| rank.rank);
            let found = planner.found(tried.layout, &ranks);
            planner.say(at + 1, count, &found);
            Ok(found)
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

/// The answers as text.
pub fn table(plans: &[Plan]) -> String {
    let mut text = String::new();
    for plan in plans {
        // Writing to a string does not fail.
        let _ = one(&mut text, plan);
    }
    if plans.len() > 1 {
        let _ = by_cards(&mut text, plans);
    }
    text
}

fn rate_of(tried: &TriedLayout) -> String {
    match (tried.tokens_per_second, tried.samples_per_second) {
        (Some(rate), _) => format!("{} tokens/s", significant(rate)),
        (None, Some(rate)) => format!("{} samples/s", significant(rate)),
        (None, None) => "-".to_string(),
    }
}

fn price_of(tried: &TriedLayout, plan: &Plan) -> String {
    let currency = plan.currency.as_deref().unwrap_or_default();
    tried.price.map_or(String::new(), |price| format!("  {} {currency}", significant(price)))
}

fn one(text: &mut String, plan: &Plan) -> fmt::Result {
    let all = plan.fastest.len() + plan.others.len();
    let machines = if plan.machines > 1 { format!(" on {} machines", plan.machines) } else { String::new() };
    let count = |outcome: &str| plan.others.iter().filter(|tried| tried.outcome == outcome).count();
    let slower = count("slower");
    writeln!(
        text,
        "\n{} x {}{machines}: {all} layouts, of which {} fit{} ({} rehearsals, {})",
        plan.gpus,
        plan.gpu,
        plan.fastest.len(),
        if slower > 0 { format!(" and {slower} are slower than five of them") } else { String::new() },
        plan.rehearsals,
        Seconds(plan.seconds)
    )?;
    if !plan.fastest.is_empty() {
        let is_priced = plan.fastest.iter().any(|tried| tried.price.is_some());
        let of = if plan.fastest[0].tokens_per_second.is_some() { "1e9 tokens" } else { "1e6 samples" };
        let price = if is_priced { format!("  {of}") } else { String::new() };
        writeln!(
            text,
            "  {:<26} {:>18} {:>9} {:>8} {:>7}  {:<22}{price}",
            "the fastest (predicted)", "the job", "a step", "exposed", "bubble", "fullest rank"
        )?;
        for tried in plan.fastest.iter().take(BEST) {
            let percent = |share: Option<f64>| share.map_or("-".to_string(), |share| format!("{:.0} %", 100.0 * share));
            let step = Seconds(tried.step_seconds.unwrap_or_default()).to_string();
            let full = format!("{}: {}", tried.fullest_rank.unwrap_or(0), Bytes(tried.peak_on_device.unwrap_or(0).unsigned_abs()));
            let (exposed, bubble) = (percent(tried.exposed), percent(tried.bubble));
            let (layout, rate, price) = (tried.layout.to_string(), rate_of(tried), price_of(tried, plan));
            writeln!(text, "  {layout:<26} {rate:>18} {step:>9} {exposed:>8} {bubble:>7}  {full:<22}{price}")?;
        }
        if let Some(nccl) = plan.fastest.iter().take(BEST).map(|tried| tried.nccl).max().filter(|nccl| *nccl > 0) {
            writeln!(text, "  NCCL takes up to {} more of a card.", Bytes(nccl.unsigned_abs()))?;
        }
    }
    if let Some(first) = plan.fastest.first() {
        writeln!(text, "  The first one is: {}", first.command)?;
        let rank = first.fullest_rank.unwrap_or(0);
        writeln!(
            text,
            "  What fills its fullest rank: vramlab rehearse --gpu {} --world-size {} --rank {rank} -- (that command)",
            plan.gpu, plan.gpus
        )?;
    }
    let more = plan.fastest.len().saturating_sub(BEST);
    if more > 0 {
        writeln!(text, "  Not listed: {more} more that fit (--json FILE has all).")?;
    }
    if slower > 0 {
        writeln!(
            text,
            "  Of the {slower} slower ones the first stage of the pipeline, or that and the last, was rehearsed: whether the others fit is not known."
        )?;
    }
    let named = |outcome: &str| {
        plan.others.iter().filter(|tried| tried.outcome == outcome).map(|tried| tried.layout.to_string()).collect::<Vec<_>>()
    };
    let too_large = named("does_not_fit");
    if !too_large.is_empty() {
        writeln!(text, "  Do not fit: {}; left out for it, as they need more: {}.", too_large.join(", "), count("left_out"))?;
    }
    let mut failures: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for tried in plan.others.iter().filter(|tried| tried.outcome == "failed") {
        failures.entry(tried.why.as_deref().unwrap_or_default()).or_default().push(tried.layout.to_string());
    }
    for (why, layouts) in failures {
        writeln!(text, "  Failed: {}: {why}", layouts.join(", "))?;
    }
    Ok(())
}

/// Where more cards stop paying.
fn by_cards(text: &mut String, plans: &[Plan]) -> fmt::Result {
    writeln!(
        text,
        "\n  {:>6}  {:<26} {:>18} {:>12} {:>14}",
        "cards", "its fastest (predicted)", "the job", "of a card", "beside fewest"
    )?;
    let base = plans.iter().find_map(|plan| Some(plan.fastest.first()?.rate() / f64::from(plan.gpus)));
    for plan in plans {
        let Some(best) = plan.fastest.first() else {
            writeln!(text, "  {:>6}  none fits", plan.gpus)?;
            continue;
        };
        let each = best.rate() / f64::from(plan.gpus);
        let share = base.map_or(String::new(), |base| format!("{:.0} %", 100.0 * each / base));
        let (layout, rate, price) = (best.layout.to_string(), rate_of(best), price_of(best, plan));
        writeln!(text, "  {:>6}  {layout:<26} {rate:>18} {:>12} {share:>14}{price}", plan.gpus, significant(each))?;
    }
    let pairs = plans.windows(2).filter_map(|two| {
        let gain = two[1].fastest.first()?.rate() / two[0].fastest.first()?.rate();
        let (before, gpus) = (two[0].gpus, two[1].gpus);
        Some((before, gpus, gain / (f64::from(gpus) / f64::from(before))))
    });
    match pairs.clone().find(|(_, _, gain)| *gain < PAYS) {
        Some((before, gpus, gain)) => {
            writeln!(
                text,
                "  {gpus} cards do not pay as {before} do: each does {:.0} % of what it did with {before}.",
                100.0 * gain
            )
        }
        None => writeln!(text, "  More cards pay: at each step each keeps {:.0} % of its speed, or more.", 100.0 * PAYS),
    }
}

/// With less of its speed a card pays no more.
const PAYS: f64 = 0.9;

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    fn search(template: &str, values: &[&str]) -> Search {
        let values = values.iter().map(|text| text.parse().unwrap()).collect();
        Search { command: Vec::new(), template: template.parse().unwrap(), values, per_node: 8 }
    }

    #[test]
    fn layouts_share_out_all_cards_and_what_splits_most_is_the_first() {
        let layouts = search("--tp {tp} --pp {pp} --mb {mb}", &["mb=1,2"]).layouts(64).unwrap();
        assert!(layouts.iter().all(|of| of.tp * of.pp * of.dp == 64 && of.tp <= 8 && of.pp <= 16));
        assert_eq!(layouts.len(), 2 * (5 + 5 + 5 + 4));
        assert_eq!((layouts[0].tp * layouts[0].pp, layouts[0].mb), (64, 1));
        assert_eq!(layouts[0].to_string(), "tp 4 pp 16 dp 1 mb 1");
        // Of what the command is not told there is one.
        assert!(search("--mb {mb}", &[]).layouts(4).unwrap().iter().all(|of| of.dp == 4));
        assert!(search("--tp {tp}", &["tp=3"]).layouts(64).is_err());
        assert_eq!(search("--pp {pp}", &["pp=3"]).layouts(12).unwrap()[0].dp, 4);
        for text in ["--tp 2", "--tp {xp}"] {
            assert!(text.parse::<LayoutTemplate>().unwrap_err().contains("{tp}"), "{text}");
        }
        assert!("mb=0".parse::<Values>().is_err() && "xx=1".parse::<Values>().is_err());
    }

    #[test]
    fn what_needs_more_than_what_does_not_fit_is_known() {
        let of = |tp, pp, mb| Layout { gpus: 64, tp, pp, cp: 1, ep: 1, dp: 64 / tp / pp, mb, nodes: 8 };
        assert!(of(2, 2, 4).needs_as_much(&of(4, 2, 4)) && of(4, 2, 8).needs_as_much(&of(4, 2, 4)));
        assert!(!of(8, 1, 1).needs_as_much(&of(4, 2, 4)) && !of(4, 2, 2).needs_as_much(&of(4, 2, 4)));
    }

    #[test]
    fn a_command_is_told_its_layout_in_its_own_words() {
        let layout = Layout { gpus: 16, tp: 2, pp: 4, cp: 1, ep: 1, dp: 2, mb: 8, nodes: 2 };
        let told = |template: &str, command: &str| template.parse::<LayoutTemplate>().unwrap().with(&words(command), &layout);
        let (command, variables) = told("--tp {tp} --mesh={pp}x{dp} --mb={mb}", "python t.py --tp 1 --lr 3");
        assert_eq!(command, words("python t.py --tp 2 --lr 3 --mesh=4x2 --mb=8"));
        assert!(variables.is_empty());
        let (command, variables) = told("TP={tp} ON=true --mb {mb}", "python t.py");
        assert_eq!((command, variables), (words("python t.py --mb 8"), vec![("TP", "2".to_string()), ("ON", "true".to_string())]));
        for (name, template) in PRESETS {
            assert!(template.parse::<LayoutTemplate>().is_ok(), "{name}");
        }
    }
}
