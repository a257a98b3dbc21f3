//! What is predicted of a step, and how two predictions compare. Nothing of it was measured; times are in seconds.

use super::bands::{Unrecorded, band};
use super::loading::{Loading, StepSeconds};
use super::prices::Cost;
use super::timeline::{Lane, Turn, steady};
use crate::capture::process::Frame;
use base::units::significant;
use serde::Serialize;
use sim::trace::Phase;

/// Forward passes are alike where what the card works in one is this share of what it works in the other, or more.
pub(super) const ALIKE: f64 = 0.95;

/// A step of which the device works less than this is not bound by it.
pub(super) const BUSY: f64 = 0.9;

pub(super) const FORWARD_PASS: &str = "forward pass";

pub const TOKEN: &str = "token";

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
    #[serde(skip)]
    pub estimates: Estimates,
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

/// By which it is estimated what a change of the script does to its time; of a step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Estimates {
    /// What of the host's time is the script's own work between launches; and where there is any each turn, with what of it is that.
    pub own_seconds: f64,
    pub turns: Vec<(Turn, f64)>,
    /// What the host takes for what autocast converts.
    pub conversions: f64,
    /// What the card and the host take for the forward pass of repeated blocks, and for what selective checkpoints compute again of it.
    pub blocks: [f64; 2],
    pub blocks_in_part: [f64; 2],
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
        let share = before.estimates.own_seconds / self.estimates.own_seconds;
        if !(0.6..1.7).contains(&share) {
            return self.step_seconds;
        }
        let longer = |(turn, own): &(Turn, f64)| Turn { host: turn.host + (share - 1.0) * own, ..*turn };
        steady(&self.estimates.turns.iter().map(longer).collect::<Vec<Turn>>(), true)
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
