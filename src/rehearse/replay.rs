//! A script's allocations in the sizes that another number would give them, asked for again of PyTorch's own allocator: where `fit` looks
//! for the border before it rehearses there.

use super::answer::own;
use super::launch::{Rehearsal, Variant};
use super::trace::{Kind, Trace};
use serde::Serialize;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;

/// What `replaying.py` does, by number.
const ALLOCATE: u8 = 0;
const FREE: u8 = 1;
const EMPTY_CACHE: u8 = 2;

/// What a process asked of one card's allocator, in order.
#[derive(Debug, Clone)]
pub struct Course {
    python: String,
    device: u16,
    streams: usize,
    /// With the stream that a block is for, or the number of the block that is freed.
    requests: Vec<(u8, usize)>,
    /// Bytes of each block, as asked for.
    sizes: Vec<i64>,
}

impl Course {
    pub fn of(trace: &Trace, device: u16) -> Course {
        let is_told = |kind| !matches!(kind, Kind::Mark | Kind::Label | Kind::Imagined | Kind::FreeRequested);
        let events: Vec<_> = own(trace).iter().filter(|event| event.device == device && is_told(event.kind)).collect();
        let mut streams = vec![0];
        let mut live = HashMap::new();
        let (mut requests, mut sizes) = (Vec::new(), Vec::new());
        for (at, event) in events.iter().enumerate() {
            let next = events.get(at + 1).map(|event| event.kind);
            match event.kind {
                Kind::Alloc => {
                    let stream = streams.iter().position(|stream| *stream == event.stream).unwrap_or_else(|| {
                        streams.push(event.stream);
                        streams.len() - 1
                    });
                    live.insert(event.address, sizes.len());
                    sizes.push(event.bytes);
                    requests.push((ALLOCATE, stream));
                }
                Kind::FreeCompleted => requests.extend(live.remove(&event.address).map(|block| (FREE, block))),
                // The cache goes piece by piece. Where new memory follows, the allocator made room for it by itself, and will again.
                Kind::SegmentFree | Kind::SegmentUnmap => match next {
                    Some(Kind::SegmentFree | Kind::SegmentUnmap | Kind::SegmentAlloc | Kind::SegmentMap) => {}
                    _ => requests.push((EMPTY_CACHE, 0)),
                },
                _ => {}
            }
        }
        // A graph is taken down in the order of addresses, which are others each time.
        for freed in requests.chunk_by_mut(|(one, _), (other, _)| (*one, *other) == (FREE, FREE)) {
            freed.sort_unstable();
        }
        Course { python: trace.process.executable.clone(), device, streams: streams.len(), requests, sizes }
    }
}

/// What `replaying.py` reads.
#[derive(Serialize)]
struct Told<'a> {
    device: u16,
    streams: usize,
    numbers: (u64, u64),
    requests: &'a [(u8, usize)],
    /// With the one number, and with the other.
    sizes: Vec<(i64, i64)>,
    low: u64,
    high: u64,
}

/// Of each block of the larger number its bytes with both, in order. Where the courses are not the same but for sizes, because of an algorithm
/// that takes a workspace from some batch on, for instance, blocks are those of one another whose bytes stayed, or grew as the number did, as
/// the next ones do; what is left over grows as the number does. None where too much is.
fn sizes((less, one): &(u64, Course), (more, other): &(u64, Course)) -> Option<Vec<(i64, i64)>> {
    if one.device != other.device {
        return None;
    }
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
/// that can be told from one another; `low` is known to fit. None where there are no such two, and where nothing can be asked.
pub fn largest(rehearsal: &Rehearsal, courses: &[(u64, Course)], low: u64, high: u64) -> Option<u64> {
    let pairs = (1..courses.len()).rev().flat_map(|more| (0..more).rev().map(move |less| (&courses[less], &courses[more])));
    let (numbers, one, sizes) = pairs.into_iter().find_map(|(less, more)| Some(((less.0, more.0), &more.1, sizes(less, more)?)))?;
    if sizes.iter().all(|(with_less, with_more)| with_less == with_more) {
        return None;
    }
    let told = Told { device: one.device, streams: one.streams, numbers, requests: &one.requests, sizes, low, high };
    let folder = rehearsal.session().ok()?;
    let path = folder.path().join("courses");
    fs::write(&path, serde_json::to_vec(&told).ok()?).ok()?;
    let program = "import sys; from vramlab_rehearsal import replaying; replaying.largest(sys.argv[1])";
    let command = [one.python.as_str(), "-c", program].map(OsString::from).into_iter().chain([path.clone().into()]).collect();
    let variant = Variant { command: Some(command), ..Variant::default() };
    Rehearsal { variant, ..rehearsal.clone() }.run_in_silence().ok()?;
    fs::read_to_string(folder.path().join("courses.largest")).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(sizes: &[i64]) -> Course {
        let requests = (0..sizes.len()).flat_map(|block| [(ALLOCATE, 0), (FREE, block)]).collect();
        Course { python: String::new(), device: 0, streams: 1, requests, sizes: sizes.to_vec() }
    }

    #[test]
    fn blocks_of_two_courses_are_told_from_one_another() {
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
