//! What one process did on one card: found in one walk over its events, and asked by whatever follows.

use super::meter::{Meter, meters};
use crate::capture::process::{Frame, Trace};
use sim::trace::{Bound, Category, Event, Kind, MemoryBlock, PassFlags, Phase};
use std::collections::HashSet;
use std::ops::Range;

/// One process on one card; moments are positions among the trace's events.
#[derive(Debug)]
pub struct Facts<'a> {
    pub trace: &'a Trace,
    pub device: u16,
    /// Of all cards, in the order in which they were made.
    pub all_blocks: &'a [MemoryBlock],
    /// Whether autocast makes copies of weights.
    pub casts_weights: bool,
    pub trains: bool,
    pub makes_steps: bool,
    /// Whether it is a server, whose pool is made as large as the card's free memory allows.
    pub serves: bool,
    /// Optimizer steps that ended; and the same where the script made no other and came to its end: what follows is none.
    pub steps: u32,
    pub last_step: Option<u32>,
    /// Forward passes of outermost modules.
    pub passes: Vec<(usize, PassFlags)>,
    /// Modules for which something was allocated in a backward pass.
    pub gone_back: HashSet<u32>,
    /// The allocator's meters after each event, and the most of each, with what it was not told of.
    pub levels: Vec<Meter>,
    pub most: Meter,
    /// When most was allocated, or memory ran out; and when most was reserved, of such moments the one with most allocated. Without what had been given
    /// back.
    pub moment: usize,
    pub fullest: usize,
    pub ran_out: Option<usize>,
    /// Where memory ran out and the script went on, and the events of those tries.
    pub tries: Vec<usize>,
    pub left_out: Vec<Range<usize>>,
    /// When an engine had given back pages without telling the allocator, and which.
    pub given_back: Vec<(Range<usize>, Range<u64>)>,
}

impl<'a> Facts<'a> {
    pub fn of(
        trace: &'a Trace,
        blocks: &'a [MemoryBlock],
        casts_weights: bool,
        device: u16,
        (ends_by_it, command_failed): (bool, bool),
    ) -> Facts<'a> {
        let mut facts = Facts {
            trace,
            device,
            all_blocks: blocks,
            casts_weights,
            trains: trains(&trace.events),
            makes_steps: makes_steps(trace),
            serves: false,
            steps: trace.events.last().map_or(0, |event| event.step),
            last_step: None,
            passes: Vec::new(),
            gone_back: HashSet::new(),
            levels: Vec::with_capacity(trace.events.len()),
            most: Meter::default(),
            moment: 0,
            fullest: 0,
            ran_out: None,
            tries: Vec::new(),
            left_out: Vec::new(),
            given_back: given_back(trace, device),
        };
        let mut goes_back_last = false;
        for ((at, event), meter) in trace.events.iter().enumerate().zip(meters(trace, device)) {
            facts.levels.push(meter);
            match event.kind {
                Kind::Pass => facts.passes.push((at, PassFlags::of(event))),
                _ if reached_script(event, device) => facts.tries.push(at),
                _ => {}
            }
            if event.phase == Phase::Backward {
                facts.gone_back.insert(event.module);
                goes_back_last |= event.step == facts.steps;
            }
        }
        facts.serves = serves(&facts);
        let has_ended = trace.ended && trace.exception.is_none();
        facts.last_step = (facts.steps > 0 && has_ended && !goes_back_last).then_some(facts.steps);
        facts.ran_out = if facts.tries.is_empty() { None } else { ran_out(&facts, ends_by_it, command_failed) };
        facts.tries.retain(|at| Some(*at) != facts.ran_out);
        facts.left_out = failed_tries(&facts);
        let counts = |at: &usize| !facts.left_out.iter().any(|tried| tried.contains(at));
        let mut most: Option<(usize, usize)> = None;
        for (at, meter) in facts.levels.iter().enumerate().filter(|(at, _)| counts(at)) {
            let (allocated, reserved) = most.get_or_insert((at, at));
            let awake = |at: usize| facts.levels[at].allocated - facts.levels[at].asleep;
            if awake(at) > awake(*allocated) {
                *allocated = at;
            }
            let key = |at: usize| (facts.levels[at].reserved - facts.levels[at].given_back, awake(at));
            if key(at) > key(*reserved) {
                *reserved = at;
            }
            facts.most.requested = facts.most.requested.max(meter.requested);
            facts.most.allocated = facts.most.allocated.max(meter.allocated);
            facts.most.reserved = facts.most.reserved.max(meter.reserved);
        }
        let (allocated, reserved) = most.unwrap_or_default();
        (facts.moment, facts.fullest) = (facts.ran_out.unwrap_or(allocated), reserved);
        facts
    }

    pub fn events(&self) -> &'a [Event] {
        &self.trace.events
    }

    /// Blocks of this card.
    pub fn blocks(&self) -> impl Iterator<Item = &'a MemoryBlock> + use<'a> {
        let device = self.device;
        self.all_blocks.iter().filter(move |block| block.device == device)
    }

    /// Those that live at a moment, and are on the card.
    pub fn live(&self, moment: usize) -> impl Iterator<Item = &'a MemoryBlock> + use<'a> {
        let now = self.given_back.iter().filter(|(when, _)| when.contains(&moment));
        let away: Vec<Range<u64>> = now.map(|(_, pages)| pages.clone()).collect();
        self.blocks().filter(move |block| block.is_live_after(moment) && !away.iter().any(|pages| pages.contains(&block.address)))
    }

    /// Bytes of such blocks at the moment of most.
    pub fn bytes_at_peak(&self, is_such: impl Fn(&MemoryBlock) -> bool) -> i64 {
        self.live(self.moment).filter(|block| is_such(block)).map(|block| block.rounded).sum()
    }

    pub fn made(&self, block: &MemoryBlock) -> &'a Event {
        &self.trace.events[block.made()]
    }

    /// The stack of the line that a block belongs to: in a backward pass that of the forward pass.
    pub fn stack_of(&self, block: &MemoryBlock) -> u32 {
        let made = self.made(block);
        if made.origin != 0 { made.origin } else { made.stack }
    }

    /// The script's own line that made a block, as `FILE:LINE`; where it has none, the innermost that is not PyTorch's.
    pub fn own_line(&self, block: &MemoryBlock) -> Option<String> {
        let stack = self.stack_of(block);
        self.trace.own_line(stack).or_else(|| self.trace.line(stack)).map(Frame::place)
    }

    pub fn operator(&self, event: &Event) -> &'a str {
        self.trace.operators.get(&event.operator.into()).map_or("", String::as_str)
    }
}

fn given_back(trace: &Trace, device: u16) -> Vec<(Range<usize>, Range<u64>)> {
    let mut found: Vec<(Range<usize>, Range<u64>)> = Vec::new();
    let is_one = |event: &Event| event.kind == Kind::Outside && event.rounded != 0 && event.device == device;
    for (at, event) in trace.events.iter().enumerate().filter(|(_, event)| is_one(event)) {
        if event.bytes < 0 {
            found.push((at..trace.events.len(), event.address..event.address + event.bytes.unsigned_abs()));
        } else if let Some((when, _)) = found.iter_mut().rfind(|(_, pages)| pages.start == event.address) {
            when.end = when.end.min(at);
        }
    }
    found
}

/// Whether a script trains: then what it does without gradients is evaluation, else inference. One that ended in its first forward pass does
/// where that had gradients and the module's own flag says so.
pub fn trains(events: &[Event]) -> bool {
    let mut passes = events.iter().filter(|event| event.kind == Kind::Pass).map(PassFlags::of);
    let goes_back = || events.iter().any(|event| matches!(event.phase, Phase::Backward | Phase::Optimizer));
    match (passes.next(), passes.next()) {
        (None, _) => true,
        (Some(only), None) if only.with_gradients && only.in_training => true,
        _ => goes_back(),
    }
}

/// Whether steps are made, or would have been: of a script that came to its end without one, as an attack on a model or a map of what it looks at,
/// backward passes are of no training.
pub fn makes_steps(trace: &Trace) -> bool {
    let came_to_its_end = trace.ended && trace.exception.is_none() && trace.stopped.is_none();
    trains(&trace.events) && (!came_to_its_end || trace.events.last().is_some_and(|last| last.step > 0))
}

/// Whether memory ran out and the script received the error. An operator may deal with it by itself, as cuDNN's do that try another algorithm.
fn reached_script(event: &Event, device: u16) -> bool {
    event.kind == Kind::OutOfMemory && event.device == device && event.rounded == 0
}

/// The event at which memory ran out for good: the script's end was that exception, or it did not go on on the GPU with less.
fn ran_out(facts: &Facts, ends_by_it: bool, command_failed: bool) -> Option<usize> {
    let last = *facts.tries.last()?;
    (ends_by_it || !went_on(facts, last, command_failed)).then_some(last)
}

/// Whether a step ended after memory had run out that asked the GPU for something. Of a script that trains nothing: whether it came to its end
/// and allocated again, more than what tells somebody of it.
fn went_on(facts: &Facts, last: usize, command_failed: bool) -> bool {
    let (trace, levels) = (facts.trace, allocated(&facts.levels));
    let (before, after) = trace.events.split_at(last);
    let trains = |events: &[Event]| events.iter().any(|event| event.phase == Phase::Backward || event.step > 0);
    if trains(before) || trains(after) {
        let is_work = |event: &Event| event.kind == Kind::Alloc && event.device == facts.device && event.phase != Phase::Load;
        let work = after.iter().position(is_work);
        return work.is_some_and(|work| after[work..].iter().any(|event| event.step > after[work].step));
    }
    const SHARE: i64 = 64;
    let (mut least, mut rise) = (levels(last), 0);
    for level in (last..trace.events.len()).map(&levels) {
        least = least.min(level);
        rise = rise.max(level - least);
    }
    let tried = levels(last).saturating_add(trace.events[last].bytes);
    !command_failed && trace.exception.is_none() && rise > tried / SHARE
}

/// Bytes that are allocated after each event.
fn allocated(levels: &[Meter]) -> impl Fn(usize) -> i64 {
    |at| levels[at].allocated
}

/// What a try held that ran out of memory and was caught: the events in which more was allocated than when all of it was given back.
fn failed_tries(facts: &Facts) -> Vec<Range<usize>> {
    let (events, tries, levels) = (facts.events(), &facts.tries, allocated(&facts.levels));
    let mut found: Vec<Range<usize>> = Vec::new();
    for (n, at) in tries.iter().copied().enumerate() {
        let end = tries.get(n + 1).copied().unwrap_or(events.len());
        let had = levels(at);
        // It is given back until much is asked for again; a script that does no more frees the rest when it ends.
        let (mut least, mut over) = (at, None);
        for next in at..end {
            if levels(next) > levels(least) + (had - levels(least)) / 8 + (1 << 20) {
                over = Some(least);
                break;
            }
            if levels(next) < levels(least) {
                least = next;
            }
        }
        let is_alloc = |event: &Event| event.kind == Kind::Alloc && event.device == facts.device;
        let over = over.unwrap_or_else(|| match events[at..end].iter().position(is_alloc) {
            Some(next) => at + next - 1,
            None if end == events.len() => at,
            None => end - 1,
        });
        let level = levels(over);
        let begin = (0..at).rfind(|before| levels(*before) <= level).map_or(0, |before| before + 1);
        match found.last_mut() {
            Some(last) if last.end >= begin => *last = last.start.min(begin)..over + 1,
            _ => found.push(begin..over + 1),
        }
    }
    found
}

/// Whether passes over tokens ran while blocks lived that were made as large as the card's free memory allows, and nothing is trained. A pool beside
/// another model is no cache of keys and values.
fn serves(facts: &Facts) -> bool {
    let trace = facts.trace;
    let last = facts.passes.last().map(|(at, _)| *at);
    let is_used = |block: &MemoryBlock| last.is_some_and(|last| block.is_live_after(last));
    let is_of_tokens = || {
        trace.engine.is_some()
            || trace.pass_batches.iter().any(|(_, tokens)| *tokens > 0)
            || facts.blocks().any(|block| block.category == Category::KeyValueCache)
    };
    !facts.trains && facts.blocks().any(|block| block.bound == Bound::SizedByFree && is_used(block)) && is_of_tokens()
}
