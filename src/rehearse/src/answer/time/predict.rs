//! The predicted time of a step, with what bounds it, and how far such predictions were off on records that were not fitted.

use super::constants::{Grade, launch_seconds};
use super::device::{CardModel, Limit, OperatorTime, class_title};
use super::loading::{Loading, StepSeconds};
use super::power::clock;
use super::prices::{Cost, cost};
use super::timeline::{Lane, Meeting, Timeline, Turn, play, steady};
use super::wire::{Wires, is_near};
use crate::answer::facts::makes_steps;
use crate::answer::place::{MOST_ROWS, alike};
use crate::capture::process::{Frame, Trace};
use crate::capture::work::{Move, Precision, Work, WorkKind};
use base::order::grouped;
use base::stats::median;
use base::units::significant;
use serde::Serialize;
use sim::cards::Card;
use sim::trace::Phase;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Forward passes are alike where what the card works in one is this share of what it works in the other, or more.
const ALIKE: f64 = 0.95;

const FORWARD_PASS: &str = "forward pass";
pub const TOKEN: &str = "token";

/// What the host takes to launch a kernel, beyond what it takes in a rehearsal, where a launch does nothing.
const LAUNCH_SECONDS: f64 = 4e-6;

/// What it takes in all, from one launch to the next, where nobody says: 14 to 38 us in the median of KernelBench's networks on seven machines.
const WHOLE_LAUNCH: f64 = 20e-6;

/// More than so much between two launches is the script's own work, such as loading its data, and twice so much counts as here; what is less
/// is as much this machine's, and says something else each time. Between them it grows, so that a little more is not a whole step's time more.
const OWN_WORK: f64 = 5e-3;

/// What autocast converts for each product of a forward pass: its weight and the weight's gradient; and where norms give fp32 biases, too, and what
/// is multiplied.
const CONVERSIONS: [f64; 2] = [2.0, 6.0];
/// Norms that autocast leaves in fp32.
const IN_FP32: [&str; 3] = ["aten::native_group_norm", "aten::native_layer_norm", "aten::rsqrt"];

/// Share of the predictions whose real value the interval is to hold.
const COVERAGE: f64 = 0.8;

/// A step of which the device works less than this is not bound by it.
const BUSY: f64 = 0.9;

/// What no prediction counts.
const NOT_MODELLED: [&str; 4] =
    ["loading of data", "compiling and kernels of extensions", "heat, and most cards' power limits", "other programs on the GPU"];

/// Nothing of it was measured; times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Prediction {
    pub gpu: String,
    /// Always: for readers of the file.
    pub predicted: bool,
    /// What a step is: `step` of an optimizer, or where the script makes none the longest `forward pass`, or `token` of a generation.
    pub unit: &'static str,
    /// Of it in the steady state.
    pub step_seconds: f64,
    pub low_seconds: f64,
    pub high_seconds: f64,
    /// Of all steps that were seen, at the steady rate; of all forward passes.
    pub total_seconds: f64,
    /// Of the same what the device works and how often it is given something.
    #[serde(skip)]
    pub total_device_seconds: f64,
    #[serde(skip)]
    pub total_launches: u64,
    /// What of the host's time is the script's own work between launches; and steps by how long that is, from none to half as long again.
    #[serde(skip)]
    pub own_seconds: f64,
    #[serde(skip)]
    pub steps_by_own: Vec<(f64, f64)>,
    /// What autocast converts in a forward pass and after it takes of the host: what each product and convolution reads.
    #[serde(skip)]
    pub conversions: f64,
    /// What the card and the host take for the forward pass of repeated blocks, and for what selective checkpoints compute again of it.
    #[serde(skip)]
    pub blocks: [f64; 2],
    #[serde(skip)]
    pub blocks_in_part: [f64; 2],
    /// Of a script that makes no step: how many forward passes there were, and where it generates what comes before the first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_seconds: Option<f64>,
    /// What goes through the model in that step, of this process, where its input shows it; tokens of text alone.
    pub samples: Option<u64>,
    pub tokens: Option<u64>,
    /// Of the job, where it is known how many of its ranks have batches of their own; else of this process.
    pub samples_per_second: Option<f64>,
    pub tokens_per_second: Option<f64>,
    /// Of a rank of a job: how many there are with batches of their own, in DDP and FSDP; 0 where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    pub coverage: f64,
    /// By a file of prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// `compute`, `bandwidth`, `launches` (the host) or `synchronisation`.
    pub bound_by: &'static str,
    /// Of a step that synchronisation bounds: the line at which the host waits for the card longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<HostWait>,
    /// What the device works in a step; what the host takes to launch it.
    pub device_seconds: f64,
    pub host_seconds: f64,
    /// How many times this machine's time it takes; none where each launch counts as long.
    pub host_factor: Option<f64>,
    /// Share of its clock that the card's power leaves it over the step.
    pub clock: f64,
    /// How many processes wanted each core of this machine, where that was more than one and its time is in the prediction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<f64>,
    /// Share of the device's time that is of kernels which were timed on this card.
    pub timed_share: f64,
    /// Whether the constants of most of the device's time are from records of this card or of one with its chip.
    pub anchored: bool,
    /// Whose they are for most of it: `chip`, `architecture` (another card of it), or `specification`.
    pub records: &'static str,
    /// What takes its time: kernels that were `compiled`, or else `convolutions` (15 % of it or more), `products` (half), or else `passes` over memory.
    pub made_of: &'static str,
    /// The cards whose they are, where they are others', the one with most of the time first.
    pub records_of: Vec<String>,
    /// Kernels of which this architecture has no record, that take a tenth of the device's time or more.
    pub unrecorded: Vec<Unrecorded>,
    pub launches: u64,
    pub phases: Vec<PhaseTime>,
    /// Those whose kernels take most, backward passes included; the same place in repeated blocks is one.
    pub modules: Vec<ModuleTime>,
    /// Those that take most.
    pub kernels: Vec<KernelTime>,
    pub misaligned: Vec<Misaligned>,
    /// What the script's DataLoader gives beside it; it is in no other figure here.
    pub loading: Option<Loading>,
    /// As many steps as the DataLoader has batches for.
    pub epoch: Option<Steps>,
    /// What ranks move between each other in a step, the longest first; nothing of a process that is alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub communication: Vec<Communication>,
    /// Of a step what would go if nothing had to be moved.
    pub exposed_seconds: f64,
    /// Ranks that were played against each other, whose step is longer than that of one alone where they wait for each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<RanksTogether>,
    #[serde(skip)]
    pub spans: Vec<Span>,
    pub not_modelled: Vec<&'static str>,
}

/// What one kind of collective moves between the ranks of one group, in a step.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Communication {
    /// As `all_reduce`; `send` and `receive` are the two ends of one.
    pub what: &'static str,
    pub ranks: u32,
    /// Machines that they are on.
    pub nodes: u32,
    /// `NVLink`, `PCIe` or `network`.
    pub over: &'static str,
    pub calls: usize,
    /// Of the whole: the result of a gather, what is given to a scatter.
    pub bytes: f64,
    pub seconds: f64,
    /// While the card computes.
    pub hidden_seconds: f64,
}

/// A line at which the host waits until the card has done what it was given.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct HostWait {
    pub line: Frame,
    /// What a step would take if it did not wait there.
    pub seconds_without: f64,
}

/// Ranks beside each other, each with a step of its own, which begins what it receives when that was sent.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct RanksTogether {
    pub step_seconds: f64,
    /// Whether ranks send to single others, as the stages of a pipeline do.
    pub is_pipeline: bool,
    /// Share of the step that ranks wait for others, in the mean: of a pipeline its bubble.
    pub waiting: f64,
    pub ranks: Vec<RankTime>,
    /// Sends and receives of which the other end was not seen: those waited for nobody.
    pub unmatched: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct RankTime {
    pub rank: u32,
    /// If the others were always there.
    pub alone_seconds: f64,
    /// What its card computes.
    pub device_seconds: f64,
    /// The rank that it waits for longest, and how long.
    pub waits_for: Option<u32>,
    pub waits_seconds: f64,
}

/// A class of kernels without a record, its share of the device's time, and how many times as long it may take as predicted.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Unrecorded {
    pub kernels: &'static str,
    pub share: f64,
    pub low: f64,
    pub high: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct PhaseTime {
    pub phase: &'static str,
    pub device_seconds: f64,
    pub host_seconds: f64,
    pub bound_by: &'static str,
}

/// Kernels of a module at its own work, not that of modules in it; of all that belong to none, one row with an empty name.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct ModuleTime {
    pub module: String,
    pub seconds: f64,
    pub launches: u64,
    pub bound_by: &'static str,
}

/// A kernel on the predicted time line of a step, in seconds since the host began it.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    pub operator: String,
    pub line: Option<Frame>,
    pub module: String,
    pub card: u16,
    pub lane: Lane,
    pub begin: f64,
    pub seconds: f64,
}

/// How much longer a variant of a script takes on the same card, as a share; predicted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, schemars::JsonSchema)]
pub struct TimeChange {
    pub share: f64,
    pub low: f64,
    pub high: f64,
}

/// Steps at the steady rate; data are there when they are asked for.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Steps {
    pub steps: u64,
    pub seconds: f64,
    pub low_seconds: f64,
    pub high_seconds: f64,
    /// With the ends of the time's band, in the currency of `cost`.
    pub cost: Option<[f64; 3]>,
}

impl Prediction {
    pub fn seconds(&self) -> StepSeconds {
        StepSeconds {
            step: self.step_seconds,
            device: self.device_seconds,
            host: self.host_seconds,
            host_factor: self.host_factor.unwrap_or(1.0),
        }
    }

    /// What is in the time of a forward pass, where it is gone back through and no step is made: words to add to it.
    pub fn with_backward(&self) -> &'static str {
        let goes_back = self.unit == FORWARD_PASS && self.phases.iter().any(|phase| phase.phase == Phase::Backward.name());
        if goes_back { " with its backward pass" } else { "" }
    }

    /// `1120 samples/s`, and of text the tokens; empty where they are not known.
    pub fn throughput(&self) -> String {
        let rates = [(self.tokens_per_second, "tokens/s"), (self.samples_per_second, "samples/s")];
        let known = rates.into_iter().filter_map(|(rate, unit)| Some(format!("{} {unit}", significant(rate?))));
        known.collect::<Vec<String>>().join(", ")
    }

    /// As a rank among others: what a step takes is what it takes them together, and what goes through it is what the first of them has.
    pub fn in_job(&mut self, job: &RanksTogether, first: Option<&Prediction>) {
        let (longer, alone) = (job.step_seconds / self.step_seconds, self.step_seconds);
        for seconds in [&mut self.step_seconds, &mut self.low_seconds, &mut self.high_seconds, &mut self.total_seconds] {
            *seconds *= longer;
        }
        if let Some(cost) = &mut self.cost {
            [&mut cost.of_1000_steps, &mut cost.low, &mut cost.high].into_iter().for_each(|cost| *cost *= longer);
        }
        let (rates, was) = first.map_or(([self.samples_per_second, self.tokens_per_second], alone), |first| {
            (self.samples, self.tokens) = (first.samples, first.tokens);
            ([first.samples_per_second, first.tokens_per_second], first.step_seconds)
        });
        [self.samples_per_second, self.tokens_per_second] = rates.map(|rate| rate.map(|rate| rate * was / job.step_seconds));
        if job.is_pipeline && longer > 1.0 / BUSY {
            self.bound_by = "waiting for other ranks";
        }
        self.job = Some(job.clone());
    }

    pub fn of_steps(&self, steps: u64) -> Steps {
        let of = |each: f64| each * steps as f64;
        let cost = self.cost.as_ref().map(|cost| [cost.of_1000_steps, cost.low, cost.high].map(|each| of(each / 1000.0)));
        Steps {
            steps,
            seconds: of(self.step_seconds),
            low_seconds: of(self.low_seconds),
            high_seconds: of(self.high_seconds),
            cost,
        }
    }

    /// Whether all forward passes count together: where several models run, of which a technique may change another one than the longest, and
    /// where what was one pass is several, as a VAE's is by its tiles.
    fn is_of_all(&self, before: &Prediction) -> bool {
        let is_mixed = |of: &Prediction| of.total_seconds < ALIKE * of.step_seconds * of.passes.unwrap_or(0) as f64;
        self.unit == FORWARD_PASS
            && before.unit == FORWARD_PASS
            && (self.passes != before.passes || is_mixed(before) || is_mixed(self))
    }

    /// What it takes for that which the script as it is does in a step, or forward pass.
    pub fn seconds_beside(&self, before: &Prediction) -> f64 {
        let of_all = self.is_of_all(before);
        if of_all { before.step_seconds * self.total_seconds / before.total_seconds } else { self.with_own_work_of(before) }
    }

    /// With the script's own work as long as it was before, where it is about as long: another run of the same work takes this machine another time.
    fn with_own_work_of(&self, before: &Prediction) -> f64 {
        let own = before.own_seconds;
        let segment = self.steps_by_own.windows(2).find(|ends| ends[0].0 < own && own <= ends[1].0);
        match segment {
            Some(&[(less, short), (more, long)]) if own > 0.6 * self.own_seconds => {
                short + (long - short) * (own - less) / (more - less)
            }
            _ => self.step_seconds,
        }
    }

    /// Beside the script as it is; a change of layout has a band of its own.
    pub fn change_from(&self, before: &Prediction, changes_layout: bool) -> TimeChange {
        // Of forward passes for each sample, where both know theirs: their batch may be another one.
        let samples = |of: &Prediction| of.samples.filter(|_| of.passes.is_some()).map(|samples| samples as f64);
        let as_many = self.passes == before.passes;
        let more = samples(before).zip(samples(self)).filter(|_| as_many).map_or(1.0, |(before, own)| before / own);
        let [ratio, device, launches] = match self.is_of_all(before) {
            true => [
                self.total_seconds / before.total_seconds,
                self.total_device_seconds / before.total_device_seconds,
                self.total_launches as f64 / before.total_launches.max(1) as f64,
            ],
            false => [
                self.with_own_work_of(before) / before.step_seconds,
                self.device_seconds / before.device_seconds,
                self.launches as f64 / before.launches.max(1) as f64,
            ],
        }
        .map(|each| more * each);
        // The same kernels take the same time, as with another setting of the allocator; the host's differs from run to run.
        if (device - 1.0).abs() < 1e-3 && ((ratio - 1.0).abs() < 0.02 || (launches - 1.0).abs() < 1e-3) {
            return TimeChange { share: 0.0, low: 0.0, high: 0.0 };
        }
        let (low, high) = band(if changes_layout { "layout" } else { "ratio" });
        TimeChange { share: ratio - 1.0, low: ratio * low - 1.0, high: ratio * high - 1.0 }
    }
}

/// Kernels of one operator at one line, of one step.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct KernelTime {
    pub operator: String,
    /// In a backward pass that of the forward pass.
    pub line: Option<Frame>,
    pub backward: bool,
    pub seconds: f64,
    pub launches: u64,
    pub bound_by: &'static str,
}

/// A size for which a product has no fast kernel.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Misaligned {
    pub size: u32,
    pub padded: u32,
    pub line: Option<Frame>,
    /// What its products take in a step, and what they would take padded.
    pub seconds: f64,
    pub padded_seconds: f64,
}

/// What is timed, with the one before it.
pub(super) struct Stretch<'a> {
    unit: &'static str,
    /// The number of its first record.
    first: usize,
    pub works: Vec<&'a Work>,
    before: Vec<&'a Work>,
    /// Samples and tokens.
    pub batch: (u64, u64),
    /// Forward passes, and what they take one after the other.
    all: Option<(usize, f64)>,
    /// All that was seen.
    seen: &'a [Work],
    prefill: Option<f64>,
}

impl<'a> Stretch<'a> {
    /// A step, or of a script that makes none a pass.
    pub fn of(trace: &'a Trace, card: &Card, device: &CardModel, steps: u32, host: HostModel) -> Result<Stretch<'a>, String> {
        let pass = || if makes_steps(trace) { None } else { Stretch::pass(trace, card, device, host) };
        let found = Stretch::step(trace, device, steps).or_else(pass);
        found.ok_or_else(|| "no optimizer step ended, so there is no step to time".to_string())
    }

    /// Of the optimizer steps that ended, without the first, which warms up, the one whose work for the card is that of most: an evaluation, or
    /// another optimizer, is in some. Of several alike the last.
    fn step(trace: &'a Trace, device: &CardModel, steps: u32) -> Option<Stretch<'a>> {
        let of = |step: u32| trace.work.iter().filter(move |work| work.step == step).collect();
        let mut lengths: BTreeMap<u32, f64> = BTreeMap::new();
        for work in trace.work.iter().filter(|work| work.step < steps) {
            *lengths.entry(work.step).or_default() += device.takes(work).seconds;
        }
        let mut sorted: Vec<f64> = lengths.values().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let middle = *sorted.get(sorted.len().saturating_sub(1) / 2)?;
        if lengths.len() > 1 {
            lengths.pop_first();
        }
        let off_by = |length: &f64| (length - middle).abs();
        let mut steps = lengths.iter().rev();
        let nearest = steps.clone().min_by(|a, b| off_by(a.1).total_cmp(&off_by(b.1)))?;
        let (&step, _) = steps.find(|(_, length)| off_by(length) <= (1.0 - ALIKE) * middle).unwrap_or(nearest);
        Some(Stretch {
            unit: "step",
            first: trace.work.iter().position(|work| work.step == step).unwrap_or(0),
            works: of(step),
            before: step.checked_sub(1).map_or_else(Vec::new, of),
            batch: trace.batches.get(step as usize).copied().unwrap_or_default(),
            all: None,
            seen: &[],
            prefill: None,
        })
    }

    /// Of a script that makes no step the longest forward pass, with what follows it until the next one; of a generation the longest of a token.
    fn pass(trace: &'a Trace, card: &Card, device: &CardModel, host: HostModel) -> Option<Stretch<'a>> {
        let passes: Vec<&[Work]> = trace.work.chunk_by(|_, next| !next.begins_pass).filter(|pass| pass[0].begins_pass).collect();
        let first_of = |works: &[Work]| trace.work.element_offset(&works[0]).unwrap_or(0);
        let seconds = |works: &[Work]| {
            let (mut line, first) = (Timeline::default(), first_of(works));
            let turn_of = |work: &Work| turn(work, first, host.seconds(work, work.host_nanoseconds), device.takes(work).seconds);
            works.iter().for_each(|work| line.take(turn_of(work)));
            line.end()
        };
        let is_token = |pass: &[Work]| pass[0].phase == Phase::Generation && !pass[0].begins_generation;
        let generates = passes.iter().any(|pass| is_token(pass));
        // The first one of a decoder makes keys and values of the whole input, which no other does.
        let follows_one = |at: usize| at > 0 && is_token(passes[at - 1]) && is_token(passes[at]);
        let has_later = (0..passes.len()).any(follows_one);
        // By what the card has to do. Of several alike the one in the middle: it was warm, and compiled nothing.
        let work_of = |pass: &[Work]| pass.iter().map(|work| device.takes(work).seconds).sum::<f64>();
        // At the clock that the card's power leaves it.
        let limited = |pass: &[Work]| {
            let works: Vec<&Work> = pass.iter().collect();
            let taken: Vec<OperatorTime> = pass.iter().map(|work| device.takes(work)).collect();
            let clock = power_limited(card, &works, &taken);
            let seconds = |one: &OperatorTime| if one.limit == Limit::Compute { one.seconds / clock } else { one.seconds };
            taken.iter().map(seconds).sum::<f64>()
        };
        let longest = |wanted: &dyn Fn(usize) -> bool| {
            let lengths: Vec<(usize, f64)> =
                (0..passes.len()).filter(|at| wanted(*at)).map(|at| (at, work_of(passes[at]))).collect();
            let most = lengths.iter().map(|(_, length)| *length).fold(0.0, f64::max);
            let alike: Vec<usize> = lengths.into_iter().filter(|(_, length)| *length >= ALIKE * most).map(|(at, _)| at).collect();
            alike.get(alike.len() / 2).copied()
        };
        // What captures a CUDA graph is longer than those that replay it.
        let kind = |at: usize| if has_later { follows_one(at) } else { is_token(passes[at]) == generates };
        let replays = |at: usize| passes[at].iter().any(|work| work.of_graph);
        let has_graphs = (0..passes.len()).any(|at| kind(at) && replays(at));
        let at = longest(&|at| kind(at) && replays(at) == has_graphs)?;
        // Each with its own work: what the host adds to it is alike in those with as many kernels, of which the first warms up.
        let all_passes = || {
            let mut alike: BTreeMap<usize, Vec<(f64, f64)>> = BTreeMap::new();
            for pass in &passes {
                let work = work_of(pass);
                alike.entry(pass.len()).or_default().push((limited(pass), (seconds(pass) - work).max(0.0)));
            }
            let all = |each: Vec<(f64, f64)>| {
                let (works, added): (Vec<f64>, Vec<f64>) = each.into_iter().unzip();
                works.iter().sum::<f64>() + works.len() as f64 * median(&added)
            };
            alike.into_values().map(all).sum()
        };
        let all = if generates { seconds(&trace.work) } else { all_passes() };
        // One alone may have no name for its size: a pass that launched nothing has a size and no work.
        let batch = if trace.pass_batches.len() == passes.len() { trace.pass_batches[at] } else { Default::default() };
        Some(Stretch {
            unit: if generates { TOKEN } else { FORWARD_PASS },
            first: first_of(passes[at]),
            works: passes[at].iter().collect(),
            before: at.checked_sub(1).map_or_else(Vec::new, |before| passes[before].iter().collect()),
            batch,
            all: Some((passes.len(), all)),
            seen: &trace.work,
            prefill: longest(&|at| passes[at][0].begins_generation).map(|at| seconds(passes[at])).filter(|_| generates),
        })
    }
}

/// What a card's host takes.
#[derive(Debug, Clone, Copy)]
pub struct HostModel {
    factor: Option<f64>,
    /// For each launch, where it was measured where the card is.
    launch: Option<f64>,
}

impl HostModel {
    /// A host that takes `factor` times as long as this one; else the same for each launch, whatever this machine does beside.
    pub fn of(factor: Option<f64>) -> HostModel {
        HostModel { factor, launch: launch_seconds() }
    }

    /// For an operator, after which so much of this host's processor time had passed.
    pub fn seconds(self, work: &Work, nanoseconds: u64) -> f64 {
        let launches = if work.of_graph { 0.0 } else { f64::from(work.launches) };
        let each = if self.factor.is_some() { LAUNCH_SECONDS } else { WHOLE_LAUNCH };
        self.launch.unwrap_or(each) * launches + self.between(nanoseconds)
    }

    /// Without a launch.
    pub fn between(self, nanoseconds: u64) -> f64 {
        let seconds = nanoseconds as f64 * 1e-9;
        match (self.launch, self.factor) {
            (None, Some(factor)) => seconds * factor,
            _ => (2.0 * (seconds - OWN_WORK)).clamp(0.0, seconds),
        }
    }
}

/// An operator on the time line of a stretch that begins with the record of that number.
pub fn turn(work: &Work, first: usize, host: f64, device: f64) -> Turn {
    let (own, other) = (work.alignment, work.groups as u16);
    let pair = match Move::of(work.m.into()) {
        Some(Move::Send) => Some((own, other)),
        Some(Move::Receive) => Some((other, own)),
        _ => None,
    };
    let is_moved = work.kind == WorkKind::Collective;
    Turn {
        host,
        device,
        card: work.device,
        queue: work.queue(),
        lane: match work.kind {
            WorkKind::Collective if is_near(work) => Lane::Wire,
            WorkKind::Collective => Lane::Network,
            WorkKind::Copy if work.n == 0 && work.stream != 0 => Lane::Copies,
            _ => Lane::Kernels,
        },
        to: (work.kind == WorkKind::Copy && work.n > 0).then(|| u64::MAX - u64::from(work.n - 1)),
        order: (work.kind == WorkKind::Order).then(|| (work.waits_for(), (work.k as usize).saturating_sub(first))),
        meets: is_moved.then_some(Meeting { group: work.batch, pair }),
        joins: is_moved && work.taps > 0,
        waited: work.waited,
        waits: work.synchronises,
    }
}

/// A stretch with what its operators take.
struct TimedStep<'a> {
    stretch: Stretch<'a>,
    device: CardModel,
    host: HostModel,
    taken: Vec<OperatorTime>,
    clock: f64,
    turns: Vec<Turn>,
    /// What of the host's time is the script's own work, after each.
    own_work: Vec<f64>,
}

impl<'a> TimedStep<'a> {
    fn of(trace: &'a Trace, card: &Card, steps: u32, host_factor: Option<f64>) -> Result<TimedStep<'a>, String> {
        let device = CardModel::of(card)?;
        let host = HostModel::of(host_factor);
        let stretch = Stretch::of(trace, card, &device, steps, host)?;
        let (works, before) = (&stretch.works, &stretch.before);
        let device = device.over(works.iter().copied());
        // Of two steps alike the host's time is the shorter one: what else ran on this machine made the other longer.
        let alike = works.len() == before.len() && works.iter().zip(before).all(|(a, b)| a.operator == b.operator);
        let mut taken: Vec<OperatorTime> = works.iter().map(|work| device.takes(work)).collect();
        let clock = power_limited(card, works, &taken);
        taken.iter_mut().filter(|one| one.limit == Limit::Compute).for_each(|one| one.seconds /= clock);
        let nanoseconds = |at: usize| works[at].host_nanoseconds.min(if alike { before[at].host_nanoseconds } else { u64::MAX });
        let own_work = (0..works.len()).map(|at| host.between(nanoseconds(at))).collect();
        let turn_of = |at: usize| turn(works[at], stretch.first, host.seconds(works[at], nanoseconds(at)), taken[at].seconds);
        let turns = (0..works.len()).map(turn_of).collect();
        Ok(TimedStep { stretch, device, host, taken, clock, turns, own_work })
    }

    /// What the card's own units do, of these turns.
    fn own(&self) -> impl Iterator<Item = usize> {
        (0..self.turns.len()).filter(|at| self.stretch.works[*at].is_of_card())
    }

    /// The longest first.
    fn communication(&self, card: &Card, spans: &[(f64, f64)]) -> Vec<Communication> {
        let mut computes: Vec<(u16, f64, f64)> =
            self.own().map(|at| (self.turns[at].card, spans[at].0, spans[at].1)).filter(|(_, begin, end)| end > begin).collect();
        computes.sort_by(|a, b| a.1.total_cmp(&b.1));
        let hidden = |at: usize| -> f64 {
            let (begin, end) = spans[at];
            // Kernels of a card follow on each other.
            let before = computes.partition_point(|(_, first, _)| *first < end);
            let beside = computes[..before].iter().rev().take_while(|(_, first, _)| *first > begin - 1.0);
            let of_card = beside.filter(|(card, ..)| *card == self.turns[at].card);
            of_card.map(|(_, first, last)| (last.min(end) - first.max(begin)).max(0.0)).sum::<f64>().min(end - begin)
        };
        let works = &self.stretch.works;
        let moved = (0..works.len()).filter(|at| works[*at].kind == WorkKind::Collective);
        let by_group = grouped(moved.map(|at| ((works[at].m, works[at].batch, works[at].n, works[at].k), at)));
        let row = |((what, _, ranks, nodes), all): ((u32, u32, u32, u32), Vec<usize>)| Communication {
            what: Move::of(what.into()).unwrap_or_default().name(),
            ranks,
            nodes,
            over: if nodes > 1 { "network" } else { Wires::of(card).title },
            calls: all.len(),
            bytes: all.iter().map(|at| works[*at].bytes).sum(),
            seconds: all.iter().map(|at| self.taken[*at].seconds).sum(),
            hidden_seconds: all.iter().map(|at| hidden(*at)).sum(),
        };
        let mut rows: Vec<Communication> = by_group.into_iter().map(row).collect();
        rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        rows
    }
}

/// Plays ranks of a job against each other, each a process of its own; none where they move nothing, or one of them has no step.
pub fn play_ranks(traces: &[&Trace], card: &Card, steps: u32, host_factor: Option<f64>) -> Option<RanksTogether> {
    let mut traces: Vec<&&Trace> = traces.iter().filter(|trace| trace.process.rank.is_some() && !trace.work.is_empty()).collect();
    traces.sort_by_key(|trace| trace.process.rank);
    traces.dedup_by_key(|trace| trace.process.rank);
    let timed: Vec<TimedStep> =
        traces.iter().map(|trace| TimedStep::of(trace, card, steps, host_factor)).collect::<Result<_, _>>().ok()?;
    let moves = |timed: &TimedStep| timed.turns.iter().any(|turn| turn.meets.is_some());
    if timed.len() < 2 || !timed.iter().all(moves) {
        return None;
    }
    let played = play(&timed.iter().map(|timed| timed.turns.as_slice()).collect::<Vec<_>>(), true);
    let step_seconds = played.step_seconds();
    let of = |at: usize| {
        let rank = |at: usize| traces[at].process.rank.unwrap_or(0);
        let longest = played.waited(at).iter().max_by(|a, b| a.1.total_cmp(b.1));
        RankTime {
            rank: rank(at),
            alone_seconds: steady(&timed[at].turns, true),
            device_seconds: timed[at].own().map(|each| timed[at].taken[each].seconds).sum(),
            waits_for: longest.map(|(whom, _)| rank(*whom)),
            waits_seconds: longest.map_or(0.0, |(_, seconds)| *seconds),
        }
    };
    let ranks: Vec<RankTime> = (0..timed.len()).map(of).collect();
    let alone: f64 = ranks.iter().map(|rank| rank.alone_seconds).sum::<f64>() / ranks.len() as f64;
    let is_pair = |turn: &Turn| turn.meets.is_some_and(|meeting| meeting.pair.is_some());
    Some(RanksTogether {
        step_seconds,
        is_pipeline: timed.iter().any(|timed| timed.turns.iter().any(is_pair)),
        waiting: (1.0 - alone / step_seconds).max(0.0),
        ranks,
        unmatched: played.unmatched,
    })
}

/// Predicts a step of a process on a card, where the host takes `host_factor` times as long as here, or each launch as long.
///
/// # Errors
/// Why there is none: the card has no figures of speed, or no step ended.
pub fn predict(trace: &Trace, card: &Card, steps: u32, host_factor: Option<f64>) -> Result<Prediction, String> {
    let timed = TimedStep::of(trace, card, steps, host_factor)?;
    let TimedStep { stretch, device, host, clock, turns, own_work, .. } = &timed;
    let played = play(&[turns], true);
    let step_seconds = played.step_seconds();
    let own_seconds: f64 = own_work.iter().sum();
    let with_own_work = |share: f64| {
        let turns: Vec<Turn> =
            turns.iter().zip(own_work).map(|(turn, own)| Turn { host: turn.host + (share - 1.0) * own, ..*turn }).collect();
        (share * own_seconds, steady(&turns, true))
    };
    let shares: &[f64] = if own_seconds > 0.0 { &[0.5, 0.7, 0.85, 1.0, 1.2, 1.5] } else { &[] };
    let of_step: Vec<(f64, f64)> = played.spans(0).collect();
    let communication = timed.communication(card, &of_step);
    // Of a rehearsal that was kept before what ranks move was seen.
    let unseen = (communication.is_empty() && !trace.communicators.is_empty()).then_some("communication between GPUs");
    // As if nothing had to be moved.
    let still: Vec<Turn> =
        turns.iter().map(|turn| if turn.meets.is_some() { Turn { host: 0.0, device: 0.0, ..*turn } } else { *turn }).collect();
    let exposed_seconds = if communication.is_empty() { 0.0 } else { (step_seconds - steady(&still, true)).max(0.0) };
    let works: Vec<&Work> = timed.own().map(|at| stretch.works[at]).collect();
    let taken: Vec<OperatorTime> = timed.own().map(|at| timed.taken[at]).collect();
    let own_turns: Vec<Turn> = timed.own().map(|at| turns[at]).collect();
    let device_seconds: f64 = taken.iter().map(|taken| taken.seconds).sum();
    let host_seconds: f64 = turns.iter().map(|turn| turn.host).sum();
    // Whether a host that took nothing would leave the step as long: cards may work beside each other, or wait for each other.
    let devices_alone: Vec<Turn> = turns.iter().map(|turn| Turn { host: 0.0, ..*turn }).collect();
    let is_busy = steady(&devices_alone, true) >= BUSY * step_seconds;
    let bound_by = match is_busy {
        _ if exposed_seconds > 0.5 * step_seconds => "communication",
        true => limit_of(&taken),
        false if steady(turns, false) < 0.95 * step_seconds => "synchronisation",
        false => "launches",
    };
    let share_of = |is_such: &dyn Fn(Grade) -> bool| {
        taken.iter().filter(|taken| is_such(taken.grade)).map(|taken| taken.seconds).sum::<f64>()
            / device_seconds.max(f64::MIN_POSITIVE)
    };
    let records = match () {
        () if share_of(&|grade| grade == Grade::Chip) >= 0.5 => "chip",
        () if share_of(&|grade| grade <= Grade::Architecture) >= 0.5 => "architecture",
        () => "specification",
    };
    let unrecorded = unrecorded(&taken, device_seconds);
    let host_band = match (is_busy, host.launch) {
        (true, _) => None,
        (false, Some(_)) => Some("host"),
        (false, None) => Some("other-host"),
    };
    let timed_seconds: f64 = taken.iter().filter(|one| one.is_timed).map(|one| one.seconds).sum();
    let timed_share = timed_seconds / device_seconds.max(f64::MIN_POSITIVE);
    let made_of = made_of(&taken);
    let (low, high) = interval(made_of, records, host_band, &unrecorded, timed_share);
    // Where no module is known, of the whole pass.
    let has_modules = works.iter().any(|work| work.module != 0);
    let is_again = |work: &Work| work.phase == Phase::Forward && (!has_modules || module_of(trace, work).contains(".*"));
    let again = |share: &dyn Fn(WorkKind) -> f64| {
        let all = (0..works.len())
            .filter(|at| is_again(works[*at]))
            .map(|at| (share(works[at].kind), taken[at].seconds, own_turns[at].host));
        all.fold([0.0, 0.0], |[card, host], (share, seconds, of_host)| [card + share * seconds, host + share * of_host])
    };
    let has_fp32 = works.iter().any(|work| IN_FP32.contains(&operator_of(trace, work).split('.').next().unwrap_or_default()));
    let is_product = |work: &&&Work| {
        work.phase == Phase::Forward && matches!(work.kind, WorkKind::Matmul | WorkKind::Convolution) && work.batch <= 1
    };
    let conversions = CONVERSIONS[usize::from(has_fp32)] * WHOLE_LAUNCH * works.iter().filter(is_product).count() as f64;
    let (samples, tokens) = stretch.batch;
    let known = |count: u64| (count > 0).then_some(count);
    let replicas = trace.process.rank.map(|_| trace.replicas);
    let rate = |count: u64| known(count).map(|count| count as f64 * f64::from(trace.replicas.max(1)) / step_seconds);
    Ok(Prediction {
        gpu: card.to_string(),
        predicted: true,
        unit: stretch.unit,
        step_seconds,
        low_seconds: step_seconds * low,
        high_seconds: step_seconds * high,
        total_seconds: match stretch.all {
            // None takes longer than the longest: what the first take to warm up is this machine's, and in no figure.
            Some((passes, seconds)) if stretch.unit == FORWARD_PASS => seconds.min(step_seconds * passes as f64),
            Some((_, seconds)) => seconds,
            None => step_seconds * f64::from(steps),
        },
        total_device_seconds: stretch.seen.iter().map(|work| device.takes(work).seconds).sum(),
        total_launches: stretch.seen.iter().map(|work| u64::from(work.launches)).sum(),
        own_seconds,
        steps_by_own: shares.iter().map(|share| with_own_work(*share)).collect(),
        conversions,
        blocks: again(&|_| 1.0),
        blocks_in_part: again(&|kind| match kind {
            WorkKind::Matmul => 0.5,
            WorkKind::Attention => 0.0,
            _ => 1.0,
        }),
        passes: stretch.all.map(|(passes, _)| passes),
        prefill_seconds: stretch.prefill,
        samples: known(samples),
        tokens: known(tokens),
        // Tokens are made, not samples.
        samples_per_second: rate(samples).filter(|_| stretch.unit != "token"),
        tokens_per_second: rate(tokens),
        replicas,
        coverage: COVERAGE,
        cost: cost(card, [1.0, low, high].map(|of| step_seconds * of)),
        bound_by,
        waits: (bound_by == "synchronisation").then(|| longest_wait(trace, &stretch.works, turns, step_seconds)).flatten(),
        device_seconds,
        host_seconds,
        host_factor,
        clock: *clock,
        busy: None,
        timed_share,
        anchored: records == "chip",
        records,
        made_of,
        records_of: records_of(device, &taken),
        unrecorded,
        launches: works.iter().map(|work| u64::from(work.launches)).sum(),
        modules: modules(trace, &works, &taken),
        spans: spans(trace, &stretch.works, turns, &of_step),
        phases: phases(&works, &taken, &own_turns),
        kernels: kernels(trace, &works, &taken),
        misaligned: misaligned(trace, device, &works, step_seconds),
        communication,
        exposed_seconds,
        job: None,
        loading: None,
        epoch: None,
        not_modelled: NOT_MODELLED.into_iter().chain(unseen).collect(),
    })
}

/// The line without whose waits a step would be shortest, where that is 5 % of it or more; of those at which the host waits most often.
fn longest_wait(trace: &Trace, works: &[&Work], turns: &[Turn], step_seconds: f64) -> Option<HostWait> {
    const MOST_LINES: usize = 8;
    let waiting = (0..turns.len()).filter(|at| turns[*at].waits);
    let mut by_line = grouped(waiting.filter_map(|at| Some((line_of(trace, works[at])?, at))));
    by_line.sort_by_key(|(_, all)| std::cmp::Reverse(all.len()));
    let without = |(line, all): (Frame, Vec<usize>)| {
        let mut turns = turns.to_vec();
        all.iter().for_each(|at| turns[*at].waits = false);
        HostWait { line, seconds_without: steady(&turns, true) }
    };
    let shortest = by_line.into_iter().take(MOST_LINES).map(without).min_by(|a, b| a.seconds_without.total_cmp(&b.seconds_without));
    shortest.filter(|wait| wait.seconds_without < 0.95 * step_seconds)
}

/// Share of its clock that the card's power leaves it.
fn power_limited(card: &Card, works: &[&Work], taken: &[OperatorTime]) -> f64 {
    let of_half = |work: &&&Work| work.precision == Precision::Half;
    let flops = works.iter().filter(of_half).map(|work| work.flops).sum();
    let of_card = |work: &&&Work| work.kind != WorkKind::Copy && work.is_of_card();
    let bytes = works.iter().filter(of_card).map(|work| work.bytes).sum();
    let seconds = works.iter().zip(taken).filter(|(work, _)| work.is_of_card()).map(|(_, one)| one.seconds);
    clock(card, flops, bytes, seconds.sum())
}

/// Seconds by name, the most first.
fn by_name<'a>(seconds: impl Iterator<Item = (&'a str, f64)>) -> Vec<(&'a str, f64)> {
    let mut sums: HashMap<&str, f64> = HashMap::new();
    for (name, seconds) in seconds {
        *sums.entry(name).or_default() += seconds;
    }
    let mut found: Vec<(&str, f64)> = sums.into_iter().collect();
    found.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    found
}

/// What each class of kernels takes of a card, in seconds, the longest first.
pub fn by_class(works: &[Work], card: &Card) -> Result<Vec<(&'static str, f64)>, String> {
    let device = CardModel::of(card)?.over(works);
    Ok(by_name(works.iter().map(|work| device.takes(work)).map(|taken| (taken.class, taken.seconds))))
}

fn made_of(taken: &[OperatorTime]) -> &'static str {
    let whole: f64 = taken.iter().map(|one| one.seconds).sum();
    let share = |starts: &[&str]| {
        let of = |one: &&OperatorTime| starts.iter().any(|start| one.class.starts_with(start));
        taken.iter().filter(of).map(|one| one.seconds).sum::<f64>() / whole.max(f64::MIN_POSITIVE)
    };
    match () {
        () if share(&["compiled"]) >= 0.15 => "compiled",
        () if share(&["convolution", "grouped", "depthwise", "volume"]) >= 0.15 => "convolutions",
        () if share(&["matmul", "attention"]) >= 0.5 => "products",
        () => "passes",
    }
}

/// Of a class whose records are none of this architecture: beyond its share of the time nothing is said of it.
fn unrecorded(taken: &[OperatorTime], device_seconds: f64) -> Vec<Unrecorded> {
    let others = || taken.iter().filter(|one| one.grade >= Grade::Any && one.class != "copy");
    let shares = by_name(others().map(|one| (class_title(one.class), one.seconds / device_seconds.max(f64::MIN_POSITIVE))));
    let row = |(kernels, share): (&'static str, f64)| {
        let (low, high) = others().find(|one| class_title(one.class) == kernels).map(|one| band_of_class(one.class))?;
        Some(Unrecorded { kernels, share, low, high })
    };
    shares.into_iter().filter(|(_, share)| *share >= 0.1).filter_map(row).collect()
}

fn records_of(device: &CardModel, taken: &[OperatorTime]) -> Vec<String> {
    let seconds = by_name(taken.iter().filter_map(|one| Some((device.whose(one.class)?, one.seconds))));
    seconds.into_iter().map(|(whose, _)| whose.to_string()).collect()
}

/// What the real value was, at least and at most, as a part of the predicted one, in 80 of 100 records of `intervals.csv`; wider by what a class
/// without records may be off, by its share.
/// `host` is the row of a step that its host bounds. What was timed on the card is as far off as variants of one script are from each other (`ratio`;
/// assumed), by its share.
fn interval(made_of: &str, records: &str, host: Option<&str>, unrecorded: &[Unrecorded], timed: f64) -> (f64, f64) {
    if let Some(host) = host {
        return band(host);
    }
    let (low, high) = band(&format!("{records} {made_of}"));
    let more = |end: fn(&Unrecorded) -> f64| unrecorded.iter().map(|one| one.share * end(one).ln().abs()).sum::<f64>();
    let (least, most) = band("ratio");
    let end =
        |own: f64, more: f64, of_timed: f64| (1.0 - timed) * (own.ln().powi(2) + more * more).sqrt() + timed * of_timed.ln().abs();
    ((-end(low, more(|one| one.low), least)).exp(), end(high, more(|one| one.high), most).exp())
}

/// Of a class of kernels, by the letters before its first `_`; that of a card without records where it has none of its own.
fn band_of_class(class: &str) -> (f64, f64) {
    let of_class = band(class.split('_').next().unwrap_or_default());
    if of_class.0 > 0.0 { of_class } else { band("specification passes") }
}

/// A row of `intervals.csv`.
fn band(cell: &str) -> (f64, f64) {
    let row = include_str!("intervals.csv").lines().map(|line| line.split(',').collect::<Vec<_>>()).find(|row| row[0] == cell);
    // The tests read the file.
    row.and_then(|row| Some((row.get(1)?.parse().ok()?, row.get(2)?.parse().ok()?))).unwrap_or((0.0, f64::INFINITY))
}

fn limit_of<'a>(taken: impl IntoIterator<Item = &'a OperatorTime>) -> &'static str {
    let mut sums = [0.0; Limit::ALL.len()];
    taken.into_iter().for_each(|one| sums[one.limit as usize] += one.seconds);
    Limit::ALL.iter().zip(sums).max_by(|a, b| a.1.total_cmp(&b.1)).map_or("", |(limit, _)| limit.name())
}

fn phases(works: &[&Work], taken: &[OperatorTime], turns: &[Turn]) -> Vec<PhaseTime> {
    let row = |phase: Phase| {
        let of: Vec<usize> = (0..works.len()).filter(|at| works[*at].phase == phase).collect();
        let device_seconds: f64 = of.iter().map(|at| taken[*at].seconds).sum();
        let host_seconds: f64 = of.iter().map(|at| turns[*at].host).sum();
        let bound_by = if device_seconds >= BUSY * host_seconds { limit_of(of.iter().map(|at| &taken[*at])) } else { "launches" };
        let name = if phase == Phase::Evaluation { "inference" } else { phase.name() };
        (!of.is_empty()).then_some(PhaseTime { phase: name, device_seconds, host_seconds, bound_by })
    };
    let all = [Phase::Forward, Phase::Backward, Phase::Optimizer, Phase::Evaluation, Phase::Generation];
    all.into_iter().filter_map(row).collect()
}

fn operator_of(trace: &Trace, work: &Work) -> String {
    trace.operators.get(&work.operator).cloned().unwrap_or_default()
}

fn module_of(trace: &Trace, work: &Work) -> String {
    trace.modules.get(&work.module).map(|module| alike(module)).unwrap_or_default()
}

/// The kernels of each key: what they take, how many there are, and what bounds them; those that take most first.
fn longest<K: Ord + Hash>(works: &[&Work], taken: &[OperatorTime], key: impl Fn(&Work) -> K) -> Vec<(K, f64, u64, &'static str)> {
    let mut found: HashMap<K, (Vec<OperatorTime>, u64)> = HashMap::new();
    for (work, taken) in works.iter().zip(taken) {
        let (all, launches) = found.entry(key(work)).or_default();
        all.push(*taken);
        *launches += u64::from(work.launches);
    }
    let seconds = |taken: &[OperatorTime]| taken.iter().map(|one| one.seconds).sum::<f64>();
    let mut rows: Vec<(K, f64, u64, &'static str)> =
        found.into_iter().map(|(key, (taken, launches))| (key, seconds(&taken), launches, limit_of(&taken))).collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    rows.truncate(MOST_ROWS);
    rows
}

fn modules(trace: &Trace, works: &[&Work], taken: &[OperatorTime]) -> Vec<ModuleTime> {
    let rows = longest(works, taken, |work| module_of(trace, work)).into_iter();
    rows.map(|(module, seconds, launches, bound_by)| ModuleTime { module, seconds, launches, bound_by }).collect()
}

fn spans(trace: &Trace, works: &[&Work], turns: &[Turn], of_step: &[(f64, f64)]) -> Vec<Span> {
    let span = |((work, turn), (begin, end)): ((&&Work, &Turn), &(f64, f64))| Span {
        operator: operator_of(trace, work),
        line: line_of(trace, work),
        module: module_of(trace, work),
        card: turn.card,
        lane: turn.lane,
        begin: *begin,
        seconds: end - begin,
    };
    works.iter().zip(turns).zip(of_step).filter(|((work, _), _)| work.kind != WorkKind::Order).map(span).collect()
}

/// The line that a work is of: in a backward pass, that of the forward pass.
fn line_of(trace: &Trace, work: &Work) -> Option<Frame> {
    trace.line(if work.origin != 0 { work.origin } else { work.stack }).cloned()
}

fn kernels(trace: &Trace, works: &[&Work], taken: &[OperatorTime]) -> Vec<KernelTime> {
    let key = |work: &Work| (operator_of(trace, work), line_of(trace, work), work.phase == Phase::Backward);
    let rows = longest(works, taken, key).into_iter();
    rows.map(|((operator, line, backward), seconds, launches, bound_by)| KernelTime {
        operator,
        line,
        backward,
        seconds,
        launches,
        bound_by,
    })
    .collect()
}

/// Sizes whose products would take less by 2 % of the step, the worst first.
fn misaligned(trace: &Trace, device: &CardModel, works: &[&Work], step_seconds: f64) -> Vec<Misaligned> {
    let is_slow = |work: &&&Work| {
        work.kind == WorkKind::Matmul
            && matches!(work.alignment, 1..8)
            && matches!(work.precision, Precision::Half | Precision::Tf32)
    };
    let size = |work: &&Work| [work.n, work.k, work.m].into_iter().find(|size| size % 8 != 0);
    let of_size = |(size, works): (u32, Vec<&Work>)| Misaligned {
        size,
        padded: size.next_multiple_of(8),
        line: line_of(trace, works[0]),
        seconds: works.iter().map(|work| device.takes(work).seconds).sum(),
        padded_seconds: works.iter().map(|work| device.takes(&Work { alignment: 8, ..**work }).seconds).sum(),
    };
    let sized = works.iter().filter(is_slow).filter_map(|work| Some((size(work)?, *work)));
    let mut found: Vec<Misaligned> = grouped(sized).into_iter().map(of_size).collect();
    found.retain(|one| one.seconds - one.padded_seconds >= 0.02 * step_seconds);
    found.sort_by(|a, b| (b.seconds - b.padded_seconds).total_cmp(&(a.seconds - a.padded_seconds)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_interval_holds_what_was_predicted_or_says_by_how_much_it_is_off() {
        let wide = [Unrecorded { kernels: "grouped convolutions", share: 0.4, low: 0.4, high: 5.0 }];
        let hosts = [("chip", Some("host")), ("chip", Some("other-host"))];
        for (records, host) in [("chip", None), ("architecture", None), ("specification", None)].into_iter().chain(hosts) {
            let (low, high) = interval("products", records, host, &[], 0.0);
            let (lower, higher) = interval("products", records, host, &wide, 0.0);
            let (nearer, _) = interval("products", records, host, &wide, 0.9);
            assert_eq!(nearer > lower, host.is_none());
            assert_eq!((lower < low, higher > high), (host.is_none(), host.is_none()));
            assert!(0.1 < low && low < high && high < 10.0, "{low} to {high}");
        }
        for cell in ["ratio", "layout"] {
            let (low, high) = band(cell);
            assert!(0.1 < low && low < 1.0 && 1.0 < high && high < 10.0, "{low} to {high}");
        }
    }
}
