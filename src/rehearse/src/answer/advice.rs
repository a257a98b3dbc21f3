//! What to change in this script, in one order by one rule.
//!
//! What a technique frees is a sum over blocks: the script's memory is followed once more without those that the technique does not make, and what the
//! most of it then is says how much is freed. What it does to the time is estimated from the predicted time of a step. `--what-if` tries it.
//!
//! # The order
//! 1. What pins more than half of the host's memory comes last, before it what changes what is trained or in which numbers that is kept, and
//!    before that what needs more cards, a compiler, or flags of the command.
//! 2. For a job that does not fit: what makes it fit comes first, by the time that it costs.
//! 3. Of all others: what costs no time comes first, by what it frees to a tenth, and of as much what takes less time; then by what is freed for each
//!    per cent of a longer step.
//!
//! Of a group of alternatives the first counts; of frozen weights also what leaves much less of them. What frees less than a twentieth of what the job needs is none, nor what the script has.

use super::account::{Part, part_of};
use super::facts::Facts;
use super::loss::Loss;
use super::technique::{Changes, Has, Need, Source, Technique, TimeKind, named, techniques};
use super::time::Prediction;
use crate::capture::work::{Precision, WorkKind};
use serde::{Deserialize, Serialize};
use sim::cards::Speed;
use sim::trace::{Bound, Category, MemoryBlock, Phase};
use std::collections::{HashMap, HashSet};

/// A step that takes less than this much longer is as long.
pub const FREE: f64 = 0.05;
/// What frees a smaller part of what the job needs is not worth a line.
const LEAST_PART: i64 = 20;
/// This part of it is much.
const MUCH_MORE: i64 = 8;

/// A change of the script, or of how it is run.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Advice {
    pub technique: String,
    /// What it does, in a few words.
    pub what: String,
    /// Bytes of what the job needs, estimated.
    pub frees: i64,
    /// How much longer a step takes, as a share of it; estimated. None where that is not known.
    pub longer: Option<f64>,
    pub changes: Changes,
    pub needs: Vec<Need>,
    /// Bytes of the host's memory that it pins.
    pub pins: i64,
    /// Whether the job fits with it alone, where it does not without.
    pub makes_it_fit: bool,
    #[serde(skip)]
    pub group: String,
}

/// What decides about a place in the order: of an estimate as of what was tried.
#[derive(Debug, Clone, Copy, Default)]
pub struct Merit {
    pub frees: i64,
    pub longer: Option<f64>,
    pub changes: Changes,
    pub needs_more: bool,
    pub pins_too_much: bool,
    /// Whether the job fits with it and not without.
    pub makes_it_fit: bool,
}

/// The place in the order; less comes first.
pub type Place = (bool, bool, bool, bool, i64, i64, i64);

impl Merit {
    pub fn place(&self) -> Place {
        let is_free = self.longer.is_some_and(|longer| longer < FREE);
        let percent = self.longer.map_or(1e6, |longer| (longer * 100.0).max(1.0));
        // Steps of a tenth.
        let about = (self.frees.max(1) as f64).log(1.1).round() as i64;
        let thousandth = self.longer.map_or(0, |longer| (longer * 1e3).round() as i64);
        let (first, then) = match (self.makes_it_fit, is_free) {
            (true, true) => (0, -about),
            (true, false) => (percent.round() as i64, -about),
            (false, true) => (i64::MIN, -about),
            (false, false) => ((-(self.frees as f64) / percent) as i64, 0),
        };
        (self.pins_too_much, self.changes >= Changes::Numbers, self.needs_more, !self.makes_it_fit, first, then, thousandth)
    }
}

/// What a technique would free of a process's memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    pub technique: String,
    pub frees: i64,
    /// Bytes that wait on the host, each copied there and back: what it takes off the card, which may be more than the peak falls by, and what the
    /// loss has made in the forward pass, which is wanted back at once.
    #[serde(default)]
    pub moves: i64,
    /// How much longer a step takes, as a share of it; none where that is not known.
    pub longer: Option<f64>,
}

/// What each technique would free that the script has use for.
pub fn cuts(facts: &Facts, loss: &Loss) -> Vec<Cut> {
    let has = has(facts);
    // Before the first step ended more may follow.
    let is_for = |of: &&Technique| {
        let is_needed = !of.frees.is_empty() && !of.unless.iter().any(|one| has.contains(one));
        is_needed && of.is_for(facts.trains, facts.makes_steps) && (!of.steps || facts.makes_steps)
    };
    let is_of_forward = |block: &MemoryBlock| loss.has(facts, block) && facts.made(block).phase == Phase::Forward;
    let shared = Shared::of(facts, loss, has.contains(&Has::HalfPrecision));
    let cut = |of: &Technique| {
        let (frees, gone) = frees(facts, of, &shared);
        let of_loss = if of.is_against(Source::LargeActivations) { facts.bytes_at_peak(is_of_forward) } else { 0 };
        let moves = if of.wants(Need::HostMemory) { gone + of_loss } else { 0 };
        Cut { technique: of.name.clone(), frees, moves, longer: never_longer(of) }
    };
    techniques().iter().filter(is_for).map(cut).filter(|cut| cut.frees > 0).collect()
}

/// Adds what expandable segments would free.
pub fn add_fragmentation(cuts: &mut Vec<Cut>, frees: i64) {
    let of = techniques().iter().filter(|of| of.is_against(Source::Fragmentation));
    cuts.extend(of.map(|of| Cut { technique: of.name.clone(), frees, moves: 0, longer: Some(0.0) }));
}

/// Adds how much longer a step takes, by its predicted time.
pub fn add_times(cuts: &mut [Cut], time: &Prediction, speed: Option<Speed>) {
    for cut in cuts {
        cut.longer = named(&cut.technique).and_then(|technique| longer(technique, cut.moves, time, speed));
    }
}

/// What is asked of blocks for every technique.
struct Shared<'a> {
    /// Those that something may free, each with its part. No technique frees what only a circle of references holds, nor what will be such.
    blocks: Vec<(&'a MemoryBlock, Part)>,
    kept: Kept,
    /// Bytes of what the loss reads, which is kept, and one gradient of it: the logits, or a copy in fp32 where something else than PyTorch's loss
    /// makes one.
    read: i64,
    is_half: bool,
}

impl<'a> Shared<'a> {
    fn of(facts: &Facts<'a>, loss: &Loss, is_half: bool) -> Shared<'a> {
        let of_loss = || facts.blocks().filter(|block| loss.has(facts, block));
        let is_of_others = |block: &&MemoryBlock| {
            let made = facts.made(block);
            let innermost = facts.trace.stack(made.stack).next();
            made.phase == Phase::Forward && innermost.is_some_and(|frame| !frame.file.ends_with("torch/nn/functional.py"))
        };
        let copied = of_loss().filter(is_of_others).map(|block| block.bytes).max().filter(|_| !facts.trace.is_compiled());
        let read = copied.or_else(|| of_loss().map(|block| block.bytes).min()).unwrap_or(0);
        let place = |block: &MemoryBlock| (facts.made(block).stack, block.bytes);
        let garbage: HashSet<(u32, i64)> = facts.blocks().filter(|block| block.bound == Bound::Garbage).map(place).collect();
        let is_freed = |block: &&MemoryBlock| !garbage.contains(&place(block));
        let blocks = facts.blocks().filter(is_freed).map(|block| (block, part_of(facts, loss, block))).collect();
        Shared { blocks, kept: kept_of_blocks(facts), read, is_half }
    }
}

/// By how much less is allocated at most without what a technique frees, and the most that blocks of which it frees anything have at one time.
fn frees(facts: &Facts, technique: &Technique, shared: &Shared) -> (i64, i64) {
    let &Shared { ref blocks, ref kept, read, is_half } = shared;
    let needless =
        if technique.is_against(Source::NeedlessGraphs) { super::passes::of_needless_graphs(facts) } else { HashSet::new() };
    let stays = if technique.is_against(Source::CastActivations) { stays_fp32(facts) } else { HashSet::new() };
    let operator = |made| facts.operator(made).split('.').next().unwrap_or_default();
    let mut whole: HashMap<(bool, u32), usize> = HashMap::new();
    let mut changes: Vec<(usize, i64, i64)> = Vec::new();
    for &(block, part) in blocks {
        let made = facts.made(block);
        // What is made without gradients no graph keeps: it is neither computed again nor copied to the host.
        let is_kept = part == Part::Activations && made.phase == Phase::Forward;
        let is_of = |source: &Source, whole: &mut HashMap<(bool, u32), usize>| match source {
            Source::Loss => part == Part::Loss,
            Source::LossCopies => {
                let is_backward = made.phase == Phase::Backward;
                let before = whole.entry((is_backward, made.step)).or_default();
                let is_first = part == Part::Loss && block.bytes == read && *before == 0;
                *before += usize::from(is_first);
                part == Part::Loss && !is_first
            }
            Source::Activations => part == Part::Activations,
            Source::Fp32Activations => !is_half && part == Part::Activations,
            Source::CastActivations => !is_half && part == Part::Activations && !stays.contains(operator(made)),
            Source::Fp32Loss => !is_half && part == Part::Loss,
            // Those of the loss are wanted back at once.
            Source::LargeActivations => is_kept && block.bytes >= 1 << 20,
            Source::Blocks => is_kept && kept.until.contains_key(&block.made()),
            Source::BlocksInPart => is_kept && kept.until.contains_key(&block.made()) && !kept.products.contains(&block.made()),
            Source::Gradients => part == Part::Gradients,
            Source::OptimizerState => part == Part::OptimizerState,
            Source::Weights => part == Part::Weights,
            Source::FrozenWeights => part == Part::FrozenWeights,
            Source::KvCache => part == Part::KvCache,
            Source::NeedlessGraphs => needless.contains(&block.made()),
            Source::Fragmentation => false,
        };
        let share =
            technique.frees.iter().filter(|(source, _)| is_of(source, &mut whole)).map(|(_, share)| *share).fold(0.0, f64::max);
        if share > 0.0 {
            let bytes = (block.rounded as f64 * share) as i64;
            changes.push((block.made(), bytes, block.rounded));
            // What is computed again is there while its block goes backward.
            let is_of_blocks = technique.is_against(Source::Blocks) || technique.is_against(Source::BlocksInPart);
            let until = kept.until.get(&block.made()).copied().filter(|_| is_of_blocks);
            changes.extend(until.or(block.freed()).map(|freed| (freed, -bytes, -block.rounded)));
        }
    }
    let (most, gone) = most_without(facts, changes);
    // Autocast makes copies of weights.
    let copies = match technique.is_against(Source::CastActivations) {
        true => facts.bytes_at_peak(|block| block.category == Category::Parameters) / 2,
        false => 0,
    };
    ((facts.most.allocated - most - copies).max(0), gone)
}

/// The most that is allocated where so much less is, and the most that whole blocks of which something is freed have; `changes` are events, bytes
/// that are less from there on, and those of whole blocks.
fn most_without(facts: &Facts, mut changes: Vec<(usize, i64, i64)>) -> (i64, i64) {
    changes.sort_unstable();
    let mut changes = changes.into_iter().peekable();
    let (mut freed, mut away, mut gone, mut most) = (0, 0, 0, 0);
    for (at, meter) in facts.levels.iter().enumerate() {
        while let Some((_, bytes, whole)) = changes.next_if(|(when, ..)| *when <= at) {
            freed += bytes;
            away += whole;
            gone = gone.max(away);
        }
        if !facts.left_out.iter().any(|tried| tried.contains(&at)) {
            most = most.max(meter.allocated - freed);
        }
    }
    (most, gone)
}

/// Operators whose results stay fp32 under autocast: those that it runs in fp32 and whose backward reads them; and in a network that is not
/// convolutional sums and a norm of its own, as what an embedding begins is fp32.
fn stays_fp32(facts: &Facts) -> HashSet<&'static str> {
    let flops = |kind: WorkKind| facts.trace.work.iter().filter(|work| work.kind == kind).map(|work| work.flops).sum::<f64>();
    let is_convolutional = flops(WorkKind::Convolution) > flops(WorkKind::Matmul);
    let of_embedded: &[&str] = if is_convolutional { &[] } else { &["aten::add", "aten::add_", "aten::mul"] };
    ["aten::_softmax", "aten::native_group_norm", "aten::pow", "aten::rsqrt"].iter().chain(of_embedded).copied().collect()
}

/// What is not kept of the activations of repeated blocks when they are computed again.
#[derive(Default)]
struct Kept {
    /// When the block that each is of begins its backward pass; not of what the next block reads.
    until: HashMap<usize, usize>,
    /// What selective checkpoints keep: of each block every second product's result, the first one's first, and attention's.
    products: HashSet<usize>,
}

/// The block that a module is in: its path up to the first number.
fn repeated(path: &str) -> Option<&str> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let end = path.split('.').scan(0, |at, part| {
        *at += part.len() + 1;
        Some((*at - 1, part))
    });
    end.into_iter().find(|(_, part)| is_number(part)).map(|(end, _)| &path[..end])
}

fn kept_of_blocks(facts: &Facts) -> Kept {
    let (mut kept, mut counts) = (Kept::default(), HashMap::<(&str, u32), usize>::new());
    let mut activations: HashMap<(&str, u32), Vec<&MemoryBlock>> = HashMap::new();
    let mut of_forward: Vec<&MemoryBlock> = facts.blocks().filter(|block| facts.made(block).phase == Phase::Forward).collect();
    of_forward.sort_by_key(|block| block.made());
    for block in of_forward {
        let made = facts.made(block);
        let Some(of) = facts.trace.modules.get(&made.module).and_then(|path| repeated(path)) else { continue };
        let operator = facts.operator(made).split('.').next().unwrap_or_default();
        let count = counts.entry((of, made.step)).or_default();
        let is_product = ["aten::mm", "aten::addmm", "aten::bmm"].contains(&operator);
        *count += usize::from(is_product);
        if is_product && *count % 2 == 1 || operator.starts_with("aten::_scaled_dot_product") {
            kept.products.insert(block.made());
        }
        if block.category == Category::Activations {
            activations.entry((of, made.step)).or_default().push(block);
        }
    }
    for (_, mut of_block) in activations {
        let is_backward = |at: &usize| facts.trace.events.get(*at).is_some_and(|event| event.phase == Phase::Backward);
        let begins = of_block.iter().filter_map(|block| block.freed()).filter(is_backward).min().unwrap_or(usize::MAX);
        of_block.pop();
        kept.until.extend(of_block.iter().map(|block| (block.made(), begins.min(block.freed().unwrap_or(usize::MAX)))));
    }
    kept
}

/// Of logits for which the product can be put into the loss.
const FEWEST_CLASSES: u32 = 8192;

/// What the capture shows that a script has already, or has nothing for.
fn has(facts: &Facts) -> HashSet<Has> {
    let &Facts { trace, device, casts_weights, .. } = facts;
    let is_seen = |end: &str| trace.frames.values().any(|frame| frame.file.ends_with(end));
    // An evaluation beside a training has precisions of its own.
    let is_of_job = |phase: Phase| !facts.trains || !matches!(phase, Phase::Evaluation | Phase::Generation);
    let work = || trace.work.iter().filter(move |work| work.device == device && is_of_job(work.phase));
    let of_kind = |kind: WorkKind| work().filter(move |work| work.kind == kind);
    let has_ended_a_step = facts.steps > 0;
    let products = || of_kind(WorkKind::Matmul).chain(of_kind(WorkKind::Convolution));
    let (half, all) = products().fold((0.0, 0.0), |(half, all), work| {
        (if work.precision == Precision::Half { half + work.flops } else { half }, all + work.flops)
    });
    let is_half = half > 0.9 * all;
    let steps_by = |frame: &str| frame.contains("torch/optim/") && !frame.ends_with("optimizer.py");
    let is_adam = is_seen("torch/optim/adam.py") || is_seen("torch/optim/adamw.py");
    let is_other = || trace.frames.values().any(|frame| steps_by(&frame.file));
    let has_few = || of_kind(WorkKind::Matmul).all(|work| work.phase == Phase::Backward || work.n < FEWEST_CLASSES);
    let has_cross_entropy =
        || trace.operators.values().any(|name| ["nll_loss", "cross_entropy"].iter().any(|of| name.contains(of)));
    let is_of_transformers = || trace.frames.values().any(|frame| frame.file.contains("/transformers/models/"));
    let all = [
        (Has::TransformersModel, is_of_transformers()),
        (Has::Checkpoints, is_seen("torch/utils/checkpoint.py")),
        (Has::Distributed, !trace.communicators.is_empty()),
        (Has::NoBlocks, has_ended_a_step && !may_have_blocks(facts)),
        (Has::Compiled, trace.is_compiled()),
        (Has::HalfPrecision, is_half),
        (Has::HalfWeights, is_half && !casts_weights),
        (Has::NoProducts, has_ended_a_step && of_kind(WorkKind::Matmul).next().is_none()),
        (Has::FewClasses, (has_ended_a_step || !facts.trains) && has_few()),
        (Has::NoCrossEntropy, has_ended_a_step && !trace.is_compiled() && !has_cross_entropy()),
        (Has::ChannelsLast, of_kind(WorkKind::Convolution).all(|work| work.is_channels_last || work.is_volume)),
        (Has::OtherOptimizer, has_ended_a_step && !is_adam && is_other()),
        (
            Has::CapturedGraphs,
            facts.all_blocks.iter().any(|of| matches!(of.bound, Bound::PrivatePool(_)) && of.category == Category::Activations),
        ),
        (Has::Closure, is_seen("torch/optim/lbfgs.py")),
        (Has::ClipsGradients, is_seen("torch/nn/utils/clip_grad.py")),
        (Has::NoState, has_ended_a_step && !facts.all_blocks.iter().any(|block| block.category == Category::OptimizerState)),
    ];
    all.into_iter().filter(|(_, has)| *has).map(|(one, _)| one).collect()
}

/// Whether some module has two parts that have parts: repeated blocks are such. Where no module is known they may be anything.
fn may_have_blocks(facts: &Facts) -> bool {
    let mut parts: HashMap<&str, HashSet<&str>> = HashMap::new();
    for name in facts.trace.modules.values() {
        for (at, _) in name.match_indices('.') {
            if let Some((part, _)) = name[at + 1..].split_once('.') {
                parts.entry(&name[..at]).or_default().insert(part);
            }
        }
    }
    facts.trace.modules.is_empty() || parts.values().any(|parts| parts.len() > 1)
}

/// What the advice is for.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// What it needs at least, and what the card has.
    pub needs: i64,
    pub memory: i64,
    pub host_memory: u64,
}

/// Where frozen weights fill the card, each way that leaves much less of them there is a choice of its own: it takes longer, or rounds more.
fn is_of_frozen(advice: &Advice) -> bool {
    named(&advice.technique).is_some_and(|technique| technique.is_against(Source::FrozenWeights))
}

/// The advice for a job, the first first.
pub fn advice(cuts: &[Cut], job: Job) -> Vec<Advice> {
    let fits = job.needs <= job.memory;
    let of = |cut: &Cut| {
        let technique = named(&cut.technique)?;
        Some(Advice {
            technique: cut.technique.clone(),
            what: technique.short.clone(),
            frees: cut.frees,
            longer: cut.longer,
            changes: technique.changes,
            needs: technique.needs.clone(),
            pins: cut.moves,
            makes_it_fit: !fits && job.needs - cut.frees <= job.memory,
            group: technique.group.clone(),
        })
    };
    let mut all: Vec<Advice> = cuts.iter().filter_map(of).filter(|advice| advice.frees * LEAST_PART >= job.needs).collect();
    all.sort_by_key(|advice| (advice.merit(job.host_memory).place(), advice.technique.clone()));
    let mut groups: HashMap<String, i64> = HashMap::new();
    all.retain(|advice| match groups.get(&advice.group) {
        Some(before) if !is_of_frozen(advice) || advice.frees - before < job.needs / MUCH_MORE => false,
        _ => {
            groups.insert(advice.group.clone(), advice.frees);
            true
        }
    });
    all
}

impl Advice {
    fn merit(&self, host_memory: u64) -> Merit {
        Merit {
            frees: self.frees,
            longer: self.longer,
            changes: self.changes,
            needs_more: self.needs.iter().any(|need| *need != Need::HostMemory),
            pins_too_much: host_memory > 0 && 2 * self.pins.unsigned_abs() > host_memory,
            makes_it_fit: self.makes_it_fit,
        }
    }
}

/// Where there is no time to compare with.
fn never_longer(technique: &Technique) -> Option<f64> {
    let is_same = technique.time == TimeKind::Same && technique.again.is_none_or(|again| again == 0.0);
    (is_same || technique.time == TimeKind::Half).then_some(0.0)
}

/// How much longer a step takes, roughly.
fn longer(technique: &Technique, moves: i64, time: &Prediction, speed: Option<Speed>) -> Option<f64> {
    let step = time.step_seconds.max(1e-9);
    // What is computed again takes the card and the host longer, of which one waits for the other.
    let again = technique.again.map_or(0.0, |again| {
        let [card, host] =
            if technique.is_against(Source::BlocksInPart) { time.estimates.blocks_in_part } else { time.estimates.blocks };
        let before = time.device_seconds.max(time.host_seconds);
        ((time.device_seconds + again * card).max(time.host_seconds + again * host) - before) / step
    });
    match technique.time {
        TimeKind::Same => Some(again),
        TimeKind::Half => {
            let all: f64 = time.kernels.iter().map(|kernel| kernel.seconds).sum();
            let halved = time.kernels.iter().map(|kernel| kernel.seconds / if kernel.bound_by == "compute" { 2.0 } else { 1.7 });
            let device = time.device_seconds * if all > 0.0 { halved.sum::<f64>() / all } else { 1.0 };
            Some((device.max(time.host_seconds + time.estimates.conversions) - time.device_seconds.max(time.host_seconds)) / step)
        }
        TimeKind::Host => {
            // Where it is tried, kernels hide little of it.
            Some((2.0 * moves as f64 / speed?.host_bandwidth / step).max(if technique.steps { 0.0 } else { FREE }))
        }
        TimeKind::Layout | TimeKind::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each case: what it frees, how much longer a step takes, what it changes, and whether it makes the job fit; in the order that is expected.
    #[test]
    fn the_order_is_that_of_its_rule() {
        let merit = |frees: i64, longer: f64| Merit { frees, longer: Some(longer), ..Merit::default() };
        let fitting = |frees, longer| Merit { makes_it_fit: true, ..merit(frees, longer) };
        let cases: [&[Merit]; 5] = [
            // It fits: free ones by bytes, then bytes for each per cent.
            &[merit(90, -0.6), merit(50, 0.0), merit(80, 0.1), merit(70, 0.33)],
            // It does not: what makes it fit by time, then the others.
            &[fitting(50, 0.0), fitting(90, 0.2), fitting(60, 0.3), merit(40, 0.0), merit(40, 0.5)],
            // What changes the result comes after what does not; rounding does not count.
            &[
                Merit { changes: Changes::Rounding, ..merit(90, 0.0) },
                merit(20, 0.4),
                Merit { changes: Changes::Training, ..merit(99, 0.0) },
            ],
            // What fills the host's memory is last, and what needs more than the script comes after what does not.
            &[merit(20, 0.4), Merit { needs_more: true, ..merit(90, 0.0) }, Merit { pins_too_much: true, ..merit(99, 0.06) }],
            // A time that is not known is a long one.
            &[merit(30, 0.3), Merit { longer: None, ..merit(90, 0.0) }],
        ];
        for (number, case) in cases.iter().enumerate() {
            let places: Vec<Place> = case.iter().map(Merit::place).collect();
            assert!(places.is_sorted(), "case {number}: {places:?}");
        }
    }

    #[test]
    fn a_repeated_block_is_a_path_up_to_its_first_number() {
        assert_eq!(
            ["GPT.h.12.mlp.c_fc", "GPT.head", "Seq.0", "V.a1.b"].map(repeated),
            [Some("GPT.h.12"), None, Some("Seq.0"), None]
        );
    }
}
