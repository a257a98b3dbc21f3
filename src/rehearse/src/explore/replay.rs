//! A script's allocations asked for again of PyTorch's own allocator, without the script: in the sizes that another number would give them,
//! where `fit` looks for the border before it rehearses there; and as they were on smaller cards, for the least memory that would do.

use crate::answer::{CardAnswer, OnCard, ProcessAnswer};
use crate::capture::process::Trace;
use crate::capture::session::{Needs, OnePool};
use crate::run::executor::{LARGE, Rehearsal, Variant};
use anyhow::{Context, Result};
use base::order::{grouped, place_of};
use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use sim::trace::Kind;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;

/// What `replaying.py` does, by number.
const ALLOCATE: u8 = 0;
const FREE: u8 = 1;
const EMPTY_CACHE: u8 = 2;
const GO_TO_POOL: u8 = 3;
const GIVE_UP_POOL: u8 = 4;

type Request = (u8, u32);

/// What a process asked of one card's allocator, in order; as `replaying.py` reads it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AllocationTrace {
    #[serde(skip)]
    python: String,
    /// How the allocator was set.
    #[serde(skip)]
    settings: Option<String>,
    streams: usize,
    /// With the stream that a block is for, or the number of the block that is freed, or of a memory pool.
    #[serde(serialize_with = "by_turns")]
    requests: Vec<Request>,
    /// Bytes of each block, as asked for.
    sizes: Vec<i64>,
}

impl AllocationTrace {
    /// Without what a try of too much made, whose end was caught, and gave back.
    pub fn of(trace: &Trace, process: &ProcessAnswer) -> AllocationTrace {
        let is_replayed = |kind| {
            !matches!(kind, Kind::Mark | Kind::Label | Kind::Placeholder | Kind::Outside | Kind::FreeRequested | Kind::Asked)
        };
        let events = trace.events.iter().enumerate();
        let events: Vec<_> = events.filter(|(_, event)| event.device == process.device && is_replayed(event.kind)).collect();
        let (mut made, mut made_in_vain) = (HashMap::new(), HashSet::new());
        for (moment, event) in &events {
            match event.kind {
                _ if !process.is_left_out(*moment) => made.clear(),
                Kind::Alloc => {
                    made.insert(event.address, *moment);
                }
                Kind::FreeCompleted => made_in_vain.extend(made.remove(&event.address)),
                _ => {}
            }
        }
        let mut streams: Vec<Option<u16>> = vec![(0..).zip(&trace.streams).find(|(_, stream)| **stream == 0).map(|(at, _)| at)];
        let mut live = HashMap::new();
        let (mut requests, mut sizes) = (Vec::new(), Vec::new());
        for (at, (moment, event)) in events.iter().enumerate() {
            match event.kind {
                Kind::Pool => requests.push((if event.rounded == 0 { GO_TO_POOL } else { GIVE_UP_POOL }, event.bytes as u32)),
                Kind::Alloc if made_in_vain.contains(moment) => {
                    live.remove(&event.address);
                }
                Kind::Alloc => {
                    let stream = place_of(&mut streams, Some(event.stream));
                    live.insert(event.address, sizes.len() as u32);
                    sizes.push(event.bytes);
                    requests.push((ALLOCATE, stream as u32));
                }
                Kind::FreeCompleted => requests.extend(live.remove(&event.address).map(|block| (FREE, block))),
                // The cache goes piece by piece. Where new memory follows, the allocator made room for it by itself, and will again.
                Kind::SegmentFree | Kind::SegmentUnmap => {
                    match events[at + 1..].iter().map(|(_, e)| e.kind).find(|kind| *kind != Kind::Pool) {
                        Some(
                            Kind::SegmentFree | Kind::SegmentUnmap | Kind::SegmentAlloc | Kind::SegmentMap | Kind::OutOfMemory,
                        ) => {}
                        _ => requests.push((EMPTY_CACHE, 0)),
                    }
                }
                _ => {}
            }
        }
        // A graph is taken down in the order of addresses, which are others each time.
        for freed in requests.chunk_by_mut(|(one, _), (other, _)| (*one, *other) == (FREE, FREE)) {
            freed.sort_unstable();
        }
        AllocationTrace {
            python: trace.process.executable.clone(),
            settings: trace.process.alloc_conf.clone(),
            streams: streams.len(),
            requests,
            sizes,
        }
    }

    pub fn sizes(&self) -> impl Iterator<Item = &i64> {
        self.sizes.iter()
    }

    /// The same with blocks of other sizes, each by its own; of none is nothing left.
    pub fn with_sizes(&self, size: impl Fn(i64) -> i64) -> AllocationTrace {
        AllocationTrace { sizes: self.sizes.iter().map(|bytes| size(*bytes)).collect(), ..self.clone() }
    }

    /// The same with one memory pool for all that have one of their own, and how many those are.
    fn with_one_pool(&self) -> (AllocationTrace, usize) {
        let mut pools: Vec<u32> =
            self.requests.iter().filter(|(kind, pool)| *kind == GO_TO_POOL && *pool > 0).map(|(_, pool)| *pool).collect();
        pools.sort_unstable();
        pools.dedup();
        let mut one = self.clone();
        one.requests.retain(|(kind, _)| *kind != GIVE_UP_POOL);
        one.requests.iter_mut().filter(|(kind, _)| *kind == GO_TO_POOL).for_each(|(_, pool)| *pool = (*pool).min(1));
        (one, pools.len())
    }

    /// Has `replaying.py` do something in the Python of the script, and gives what it answers.
    fn asked<Asked: Serialize, Answer: DeserializeOwned>(
        &self,
        rehearsal: &Rehearsal,
        function: &'static str,
        asked: &Asked,
    ) -> Result<Answer> {
        // Every version reads the older name.
        let settings =
            self.settings.iter().flat_map(|set| [("PYTORCH_ALLOC_CONF", set.clone()), ("PYTORCH_CUDA_ALLOC_CONF", set.clone())]);
        let program = "from vramlab_rehearsal import replaying; replaying.begin()";
        let words = [self.python.as_str(), "-c", program].map(OsString::from);
        let variant = Variant {
            command: Some(words.into()),
            settings: settings.collect(),
            replay: Some((function, serde_json::to_vec(asked)?)),
            ..Variant::default()
        };
        // What writes is our own.
        let run = Rehearsal { variant, writes: true, ..rehearsal.clone() }.run_in_silence()?;
        let answer = run.replayed.as_deref().with_context(|| run.end())?;
        serde_json::from_slice(answer).context("reading the answer of PyTorch's allocator")
    }
}

/// The least that would do for the fullest of the cards. The processes are in order of what they reserved; none of them may have run out of memory.
///
/// # Errors
/// PyTorch's allocator could not be asked.
pub fn needed(rehearsal: &Rehearsal, processes: &[ProcessAnswer], traces: &[Trace], cards: &[CardAnswer]) -> Result<Needs> {
    let trace_of = |process: &ProcessAnswer| traces.iter().find(|trace| trace.process.id == process.process);
    let course = |process| Some((AllocationTrace::of(trace_of(process)?, process), process));
    // Ranks do the same.
    let courses = grouped(processes.iter().filter_map(course).filter(|(course, _)| !course.sizes.is_empty()));
    let Some((first, worst)) = courses.first() else { return Ok(Needs { contexts: 1, ..Needs::default() }) };
    fn request<'a>((course, alike): &'a (AllocationTrace, Vec<&ProcessAnswer>)) -> ReplayRequest<'a> {
        // What comes after a try that was too much finds its memory cached.
        let reserved = if alike[0].caught.is_empty() { alike[0].peak_reserved } else { i64::try_from(LARGE).unwrap_or(i64::MAX) };
        ReplayRequest { course, allocated: alike[0].peak_allocated, reserved }
    }
    let is_expandable = trace_of(worst[0]).is_some_and(|trace| trace.events.iter().any(|event| event.kind == Kind::SegmentMap));
    // A block that may not be split is not used again, and expandable segments grow by each.
    let has_limit = first.settings.as_deref().is_some_and(|set| set.contains("max_split_size_mb"));
    // Where each has a card of its own, the one that needs most decides.
    let each = cards.iter().any(|card| card.beside().count() > 1);
    let (one_pool, pools) = first.with_one_pool();
    let asked = NeedsRequest {
        courses: courses.iter().map(request).collect(),
        each,
        expandable: has_limit || !is_expandable,
        one_pool: (pools > 1).then_some(&one_pool),
    };
    let (needs, expandable, saved_if_expandable, in_one_pool): (Vec<Option<i64>>, Option<i64>, Option<i64>, Option<i64>) =
        first.asked(rehearsal, "needed", &asked)?;
    let most = needs.iter().flatten().max().copied().unwrap_or(0);
    let least_of = |of: &OnCard| {
        let is_it = |process: &&ProcessAnswer| process.process == of.process && Some(process.device) == of.device;
        let asked = courses.iter().zip(&needs).find(|((_, alike), _)| alike.iter().any(&is_it));
        asked.and_then(|(_, needs)| *needs).unwrap_or(of.reserved)
    };
    let of_card = |card: &CardAnswer| {
        // Of a card of which the script takes a share at most.
        let whole = |of: &OnCard, least: i64| {
            let limits = traces.iter().find(|trace| trace.process.id == of.process).map(|trace| &trace.limits);
            limits.zip(of.device).and_then(|(limits, device)| limits.get(&device)).map_or(0, |share| (least as f64 / share) as i64)
        };
        let bytes = |of: &OnCard| {
            let least = least_of(of);
            if of.device.is_none() { of.most } else { (least + of.context + of.outside).max(whole(of, least)) }
        };
        (card.beside().map(bytes).sum::<i64>(), card.beside().count() as u64)
    };
    let (least, contexts) = cards.iter().map(of_card).max().unwrap_or((most + rehearsal.card.context.cast_signed(), 1));
    let pools = in_one_pool.map(|reserved| OnePool { pools, reserved });
    Ok(Needs { least, contexts, expandable, saved_if_expandable, pools, unknown: 0 })
}

/// The least memory with which a course comes to its end whose sizes are linear in the memory that the allocator has, by those on two cards; of none
/// is nothing left, but for blocks that are rounded up at one time within `wave` pages. None where the courses are not the same but for sizes.
///
/// # Errors
/// PyTorch's allocator could not be asked.
pub fn smallest(
    rehearsal: &Rehearsal,
    one: &(u64, AllocationTrace),
    other: &(u64, AllocationTrace),
    wave: u64,
) -> Result<Option<u64>> {
    if one.1.requests != other.1.requests {
        return Ok(None);
    }
    let sizes = one.1.sizes.iter().copied().zip(other.1.sizes.iter().copied()).collect();
    let asked = LargestRequest { course: &one.1, numbers: (one.0, other.0), sizes, low: 0, high: one.0, wave };
    one.1.asked(rehearsal, "smallest", &asked).map(Some)
}

#[derive(Serialize)]
struct ReplayRequest<'a> {
    #[serde(flatten)]
    course: &'a AllocationTrace,
    /// Most bytes at once.
    allocated: i64,
    reserved: i64,
}

/// Kind and number by turns.
fn by_turns<S: Serializer>(requests: &[Request], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(requests.iter().flat_map(|(kind, which)| [u32::from(*kind), *which]))
}

#[derive(Serialize)]
struct NeedsRequest<'a> {
    courses: Vec<ReplayRequest<'a>>,
    /// Whether each is asked for, and not the one that needs most.
    each: bool,
    /// Whether expandable segments are to be tried.
    expandable: bool,
    /// The fullest with one memory pool, where it has several.
    one_pool: Option<&'a AllocationTrace>,
}

#[derive(Serialize)]
struct LargestRequest<'a> {
    course: &'a AllocationTrace,
    numbers: (u64, u64),
    /// With the one number, and with the other.
    sizes: Vec<(i64, i64)>,
    low: u64,
    high: u64,
    /// Pages after which blocks are rounded up by as much again.
    wave: u64,
}

/// Of each block of the larger number its bytes with both, in order. Where the courses are not the same but for sizes, because of an algorithm
/// that takes a workspace from some batch on, for instance, blocks are those of one another whose bytes stayed, or grew as the number did, as
/// the next ones do; what is left over grows as the number does. None where too much is.
fn sizes((less, one): &(u64, AllocationTrace), (more, other): &(u64, AllocationTrace)) -> Option<Vec<(i64, i64)>> {
    let (before, after) = (&one.sizes, &other.sizes);
    if one.requests == other.requests {
        return Some(before.iter().copied().zip(after.iter().copied()).collect());
    }
    let is_one = |(a, b): (&i64, &i64)| a == b || i128::from(*b) * i128::from(*less) == i128::from(*a) * i128::from(*more);
    let proportional = |with_more: i64| (with_more as f64 / *more as f64 * *less as f64) as i64;
    let go_on = |a: usize, b: usize| {
        let next = before[a..].iter().zip(&after[b..]).take(IN_STEP);
        next.clone().all(is_one) && (next.len() == IN_STEP || before.len() - a == after.len() - b)
    };
    let (mut a, mut sizes) = (0, Vec::with_capacity(after.len()));
    while sizes.len() < after.len() || a < before.len() {
        let b = sizes.len();
        if before.get(a).zip(after.get(b)).is_some_and(is_one) {
            sizes.push((before[a], after[b]));
            a += 1;
            continue;
        }
        let step = (1..=2 * APART).flat_map(|apart| (0..=apart).map(move |dropped| (dropped, apart - dropped)));
        let mut there = step.filter(|(dropped, added)| a + dropped <= before.len() && b + added <= after.len());
        let (dropped, added) = there.find(|(dropped, added)| go_on(a + dropped, b + added))?;
        for at in 0..added {
            let with_less = if dropped == added { before[a + at] } else { proportional(after[b + at]) };
            sizes.push((with_less, after[b + at]));
        }
        a += dropped;
    }
    Some(sizes)
}

/// So many blocks after one another show that two courses are in step again, of which at most so many in each were not.
const IN_STEP: usize = 3;
const APART: usize = 16;

/// The largest number below `high` whose allocations fit the card, by the line through the largest two of the courses, which are in order,
/// that can be distinguished; `low` is known to fit. None where there are no such two, and where nothing can be asked.
pub fn largest(rehearsal: &Rehearsal, courses: &[(u64, AllocationTrace)], low: u64, high: u64) -> Option<u64> {
    let pairs = (1..courses.len()).rev().flat_map(|more| (0..more).rev().map(move |less| (&courses[less], &courses[more])));
    let (numbers, one, sizes) = pairs.into_iter().find_map(|(less, more)| Some(((less.0, more.0), &more.1, sizes(less, more)?)))?;
    if sizes.iter().all(|(with_less, with_more)| with_less == with_more) {
        return None;
    }
    let asked = one.asked(rehearsal, "largest", &LargestRequest { course: one, numbers, sizes, low, high, wave: 0 });
    let says = |why: &anyhow::Error| {
        (rehearsal.progress)(&format!("PyTorch's allocator could not be asked, so it takes more rehearsals: {why:#}"))
    };
    asked.inspect_err(says).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(sizes: &[i64]) -> AllocationTrace {
        let requests = (0..sizes.len()).flat_map(|block| [(ALLOCATE, 0), (FREE, block as u32)]).collect();
        AllocationTrace { python: String::new(), settings: None, streams: 1, requests, sizes: sizes.to_vec() }
    }

    #[test]
    fn blocks_of_two_courses_are_distinguished() {
        let of_four = (4, course(&[1000, 40, 44, 50, 80, 1000, 1000, 60]));
        let pairs = |sizes: &[i64]| super::sizes(&of_four, &(8, course(sizes)));
        // As many in the same order: what they are does not matter.
        let alike = pairs(&[1000, 81, 88, 100, 160, 1000, 1000, 1]).unwrap();
        assert_eq!((alike[1], alike[7]), ((40, 81), (60, 1)));
        // A workspace that the smaller does not have, in the middle and at the end; one that it alone has; one that grew by another law.
        let added = pairs(&[1000, 80, 88, 70, 100, 160, 1000, 1000, 120, 30]).unwrap();
        assert_eq!((added[3], added[4], added[9]), ((35, 70), (50, 100), (15, 30)));
        assert_eq!(added.len(), 10);
        let dropped = pairs(&[1000, 80, 100, 160, 1000, 1000, 120]).unwrap();
        assert_eq!(dropped, [(1000, 1000), (40, 80), (50, 100), (80, 160), (1000, 1000), (1000, 1000), (60, 120)]);
        let grown = pairs(&[1000, 80, 70, 99, 160, 1000, 1000, 120, 30]).unwrap();
        assert_eq!((grown[2], grown[3], grown[8]), ((44, 70), (50, 99), (15, 30)));
        assert_eq!(pairs(&(0..99).map(|n| 7 * n + 1).collect::<Vec<i64>>()), None);
    }
}
