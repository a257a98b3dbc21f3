//! What of a trace is timed: a step, or a forward pass, as turns of the host and the card.

use super::constants::launch_seconds;
use super::device::{CardModel, Limit, OperatorTime};
use super::power::clock;
use super::prediction::{ALIKE, Communication, FORWARD_PASS, TOKEN};
use super::timeline::{Lane, Meeting, Timeline, Turn};
use super::wire::{Wires, is_near};
use crate::answer::facts::makes_steps;
use crate::capture::process::Trace;
use crate::capture::work::{Move, Precision, Work, WorkKind};
use base::order::grouped;
use base::stats::median;
use sim::cards::Card;
use sim::trace::Phase;
use std::collections::BTreeMap;

/// What the host takes to launch a kernel, beyond what it takes in a rehearsal, where a launch does nothing.
const LAUNCH_SECONDS: f64 = 4e-6;

/// What it takes in all, from one launch to the next, where nobody says: 14 to 38 us in the median of KernelBench's networks on seven machines.
pub(super) const WHOLE_LAUNCH: f64 = 20e-6;

/// More than so much between two launches is the script's own work, such as loading its data, and twice so much counts as here; what is less
/// is as much this machine's, and says something else each time. Between them it grows, so that a little more is not a whole step's time more.
const OWN_WORK: f64 = 5e-3;

/// What is timed, with the one before it.
pub(super) struct Stretch<'a> {
    pub unit: &'static str,
    /// The number of its first record.
    pub first: usize,
    pub works: Vec<&'a Work>,
    pub before: Vec<&'a Work>,
    /// Samples and tokens.
    pub batch: (u64, u64),
    /// Forward passes, and what they take one after the other.
    pub all: Option<(usize, f64)>,
    /// All that was seen.
    pub seen: &'a [Work],
    pub prefill: Option<f64>,
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
    pub(super) factor: Option<f64>,
    /// For each launch, where it was measured where the card is.
    pub(super) launch: Option<f64>,
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
pub(super) struct TimedStep<'a> {
    pub stretch: Stretch<'a>,
    pub device: CardModel,
    pub host: HostModel,
    pub taken: Vec<OperatorTime>,
    pub clock: f64,
    pub turns: Vec<Turn>,
    /// What of the host's time is the script's own work, after each.
    pub own_work: Vec<f64>,
}

impl<'a> TimedStep<'a> {
    pub fn of(trace: &'a Trace, card: &Card, steps: u32, host_factor: Option<f64>) -> Result<TimedStep<'a>, String> {
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
    pub fn own(&self) -> impl Iterator<Item = usize> {
        (0..self.turns.len()).filter(|at| self.stretch.works[*at].is_of_card())
    }

    /// The longest first.
    pub fn communication(&self, card: &Card, spans: &[(f64, f64)]) -> Vec<Communication> {
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

/// Share of its clock that the card's power leaves it.
pub(super) fn power_limited(card: &Card, works: &[&Work], taken: &[OperatorTime]) -> f64 {
    let of_half = |work: &&&Work| work.precision == Precision::Half;
    let flops = works.iter().filter(of_half).map(|work| work.flops).sum();
    let of_card = |work: &&&Work| work.kind != WorkKind::Copy && work.is_of_card();
    let bytes = works.iter().filter(of_card).map(|work| work.bytes).sum();
    let seconds = works.iter().zip(taken).filter(|(work, _)| work.is_of_card()).map(|(_, one)| one.seconds);
    clock(card, flops, bytes, seconds.sum())
}
