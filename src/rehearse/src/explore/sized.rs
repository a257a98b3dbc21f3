//! What a script makes as large as the card's free memory allows, as servers do: a rehearsal on a card of another size tells. What it needs is what
//! is left of it where the card is so small that this goes to nothing.

use super::replay::{self, AllocationTrace};
use crate::answer::{Answer, CardAnswer, OnCard, ProcessAnswer, answers, ended_well, needs_of_engine};
use crate::capture::process::{Engine, Frame, Trace};
use crate::capture::session::{Capture, Needs, SizedByFree};
use crate::run::executor::{LARGE, Rehearsal};
use anyhow::{Result, ensure};
use base::units::Bytes;
use sim::trace::{Category, Kind, blocks};
use std::collections::{BTreeMap, BTreeSet};

/// Of the memory that a card has more, the share that has to be in a line's blocks.
const SHARE: i64 = 50;

/// Per cent of memory that are tried more than what was computed where that does not do, and less where it does; and the part of it by which the least
/// may be too much.
const MORE: [u64; 5] = [0, 2, 10, 30, 100];
const LESS: [u64; 4] = [5, 10, 20, 40];
const NEAR: u64 = 20;

/// Of the allocator's large blocks.
const PAGE: i64 = 2 << 20;

/// Whether its allocations may be others on a card of another size: it limits itself to a share of the card, or asks what is free.
pub fn hangs_on_the_card(traces: &[Trace]) -> bool {
    traces.iter().any(|trace| !trace.limits.is_empty() || asked(trace).is_some())
}

/// Where it first asks what is free, and the event; PyTorch asks too, for a limit that the script sets.
fn asked(trace: &Trace) -> Option<(usize, &Frame)> {
    let is_limit = |stack: u32| trace.stack(stack).any(|frame| frame.function == "set_per_process_memory_fraction");
    let asks = trace.events.iter().enumerate().filter(|(_, event)| event.kind == Kind::Asked && !is_limit(event.stack));
    asks.filter_map(|(at, event)| Some((at, trace.own_line(event.stack).or_else(|| trace.line(event.stack))?))).next()
}

/// By line, what was made after that.
fn made(trace: &Trace, device: u16) -> BTreeMap<&Frame, i64> {
    let mut lines: BTreeMap<&Frame, i64> = BTreeMap::new();
    let Some((since, _)) = asked(trace) else { return lines };
    for block in blocks(&trace.events).iter().filter(|block| block.device == device && block.made() > since) {
        let stack = trace.events[block.made()].stack;
        if let Some(line) = trace.own_line(stack).or_else(|| trace.line(stack)) {
            *lines.entry(line).or_default() += block.bytes;
        }
    }
    lines
}

/// Its fullest process, and what that wrote.
fn fullest<'a>(processes: &'a [ProcessAnswer], traces: &'a [Trace]) -> Option<(&'a ProcessAnswer, &'a Trace)> {
    let process = processes.first()?;
    Some((process, traces.iter().find(|trace| trace.process.id == process.process)?))
}

impl Rehearsal {
    /// The same on a card with another size of memory.
    fn with_memory(&self, memory: u64) -> Rehearsal {
        Rehearsal { card: self.card.with_memory(memory), ..self.clone() }
    }

    /// The same on the largest card below the size from which on an engine has other defaults; none where this one is no larger.
    pub(super) fn with_other_defaults(&self, traces: &[Trace]) -> Option<Rehearsal> {
        let from = traces.iter().find_map(|trace| Some(trace.engine.as_ref()?.others_from))?;
        (0 < from && from <= self.card.memory).then(|| self.with_memory(from - PAGE.unsigned_abs()))
    }

    /// What came of a run on this card is given, which fitted. None where nothing is of another size on another card.
    pub(super) fn sized_by_free(
        &self,
        processes: &[ProcessAnswer],
        traces: &[Trace],
    ) -> Result<Option<(SizedByFree, Option<Needs>)>> {
        let Some((process, trace)) = fullest(processes, traces) else { return Ok(None) };
        let Some((_, asks)) = asked(trace) else { return Ok(None) };
        (self.progress)("once more on a card of another size, because the script asks what is free");
        let memory = self.card.memory;
        let other = if memory >= LARGE { memory / 2 } else { 2 * memory };
        let Ok(run) = self.with_memory(other).ran(None) else { return Ok(None) };
        let again = answers(&run.traces, false);
        let Some((process_again, trace_again)) = fullest(&again, &run.traces) else { return Ok(None) };
        let (here, there) = (made(trace, process.device), made(trace_again, process_again.device));
        let more = other.cast_signed() - memory.cast_signed();
        let grows = |(line, bytes): (&&Frame, &i64)| {
            let change = (there.get(line).copied().unwrap_or(0) - bytes) * more.signum();
            (change * SHARE > more.abs()).then(|| ((*line).clone(), *bytes))
        };
        let sized: Vec<(Frame, i64)> = here.iter().filter_map(grows).collect();
        if sized.is_empty() {
            return Ok(None);
        }
        let bytes: i64 = sized.iter().map(|(_, bytes)| bytes).sum();
        let larger: i64 = sized.iter().filter_map(|(line, _)| there.get(line)).sum();
        let share = Some((larger - bytes) as f64 / more as f64);
        let found = SizedByFree { asked: asks.clone(), lines: sized.into_iter().map(|(line, _)| line).collect(), bytes, share };
        let of = |memory: u64, trace, process| (memory - self.card.context, AllocationTrace::of(trace, process));
        let computed = replay::smallest(self, &of(memory, trace, process), &of(other, trace_again, process_again), 0)?;
        // Whatever else has memory of the card has it there, too.
        let beside: u64 = processes[1..].iter().map(|beside| beside.peak_reserved.unsigned_abs() + self.card.context).sum();
        let Some(computed) = computed else { return Ok(Some((found, None))) };
        let runs_on = |least: u64| self.with_memory(least).ran(Some(&found)).is_ok();
        // A server may leave a part of the card free, and want room for a request: more is tried until it starts, then what lies between.
        let first = computed + self.card.context + beside;
        let more = MORE.map(|share| first + computed / 100 * share);
        let less = LESS.map(|share| first - first / 100 * share);
        let is_enough = runs_on(more[0]);
        let others: &[u64] = if is_enough { &less } else { &more[1..] };
        let (mut least, mut tried) = if is_enough { (Some(first), None) } else { (None, Some(first)) };
        for &memory in others {
            if runs_on(memory) {
                least = Some(memory)
            } else {
                tried = Some(memory)
            }
            // What begins too large goes down until it is too small, and the other way round.
            if least.is_some() && tried.is_some() {
                break;
            }
        }
        let Some(mut least) = least else { return Ok(Some((found, None))) };
        while let Some(too_small) = tried.filter(|too_small| (least - too_small) * NEAR > least) {
            let middle = too_small + (least - too_small) / 2;
            if runs_on(middle) { least = middle } else { tried = Some(middle) }
        }
        let unknown = tried.map_or(0, |too_small| least - too_small).cast_signed();
        let needs = Needs { least: least.cast_signed(), contexts: processes.len() as u64, unknown, ..Needs::default() };
        Ok(Some((found, Some(needs))))
    }

    /// What an engine says that it needs, and what was seen to take memory beyond its share: on a smaller card its pool is smaller by as much as its
    /// share is, and the rest of that card has to do for the rest.
    pub(super) fn needs_of_engine(&self, answer: &Answer, traces: &[Trace]) -> Option<Needs> {
        let needs = needs_of_engine(traces, &self.card)?;
        let seen = || -> Option<(&Trace, &Engine, &ProcessAnswer)> {
            let mut fullest =
                answer.processes.iter().filter_map(|of| Some((of, traces.iter().find(|t| t.process.id == of.process)?)));
            fullest.find_map(|(process, trace)| Some((trace, trace.engine.as_ref()?, process)))
        };
        let Some((trace, engine, process)) = seen().filter(|_| answer.verdict.fits()) else { return Some(needs) };
        let on_card = |card: &&CardAnswer| card.processes.iter().any(|of| of.process == process.process);
        let of_it = |of: &OnCard| if of.process == process.process { of.context + of.outside } else { of.most };
        let beside = answer.cards.iter().find(on_card).map_or(0, |card| card.beside().map(of_it).sum()).unsigned_abs();
        // Of a block of the pool's each layer has a part.
        let parts: BTreeSet<i64> = (blocks(&trace.events).iter())
            .filter(|block| block.category == Category::KeyValueCache && block.bytes % engine.blocks.max(1).cast_signed() == 0)
            .map(|block| block.bytes)
            .collect();
        let course = AllocationTrace::of(trace, process);
        let count = course.sizes().filter(|bytes| parts.contains(bytes)).count();
        let wave = (count as f64 / engine.share).ceil() as u64;
        let least = |rounded: i64| -> Option<i64> {
            let on = |memory: u64| {
                let more = (memory - self.card.memory) as f64 * engine.share / engine.kv_cache as f64;
                let part = |bytes: i64| if parts.contains(&bytes) { bytes + (bytes as f64 * more) as i64 + rounded } else { bytes };
                (memory - beside, course.with_sizes(part))
            };
            let found = replay::smallest(self, &on(self.card.memory), &on(2 * self.card.memory), wave).ok()??;
            Some((found + beside).cast_signed())
        };
        // Each part is rounded up to whole pages, by nothing on one card and by a page on one that is a little larger: of 28 layers that is 56 MiB, and where a
        // tenth of the card has to do for that, 560 MiB of a card.
        let [most, fewest] = [PAGE - 1, 0].map(|rounded| least(rounded).map_or(needs.least, |least| least.max(needs.least)));
        Some(Needs { least: most, unknown: most - fewest, ..needs })
    }

    /// A run in silence that came to its end.
    fn ran(&self, sized: Option<&SizedByFree>) -> Result<Capture> {
        let run = self.run_in_silence()?;
        let ended = !run.timed_out
            && answers(&run.traces, !ended_well(&run)).iter().all(|a| a.out_of_memory.is_none() && a.exception.is_none());
        ensure!(ended && ended_well(&run), "{}", run.end());
        // A pool of nothing is none.
        let has_all = |sized: &SizedByFree| {
            run.traces.iter().any(|trace| made(trace, 0).iter().any(|(line, bytes)| sized.lines.contains(line) && *bytes > 0))
        };
        ensure!(sized.is_none_or(has_all), "nothing was left for what it sizes by free memory");
        Ok(run)
    }
}

/// Why the least memory is not known.
pub fn not_found(sized: &SizedByFree) -> String {
    let lines: Vec<String> = sized.lines.iter().map(|line| format!("{}:{}", line.file, line.line)).collect();
    format!("{} of it are made as large as the card's free memory allows ({})", Bytes(sized.bytes.unsigned_abs()), lines.join(", "))
}

/// Names the lines in each trace, whose blocks then have that bound.
pub fn mark(capture: &mut Capture) {
    let Some(sized) = &capture.found.sized else { return };
    for trace in &mut capture.traces {
        trace.sized_by_free = asked(trace).map(|(since, _)| (since, sized.lines.clone()));
    }
}
