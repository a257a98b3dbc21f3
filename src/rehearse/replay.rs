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

/// The largest number below `high` whose allocations fit the card, by the line through the largest two of the courses, which are in order,
/// that differ in sizes alone; `low` is known to fit. None where there are no such two, and where nothing can be asked.
pub fn largest(rehearsal: &Rehearsal, courses: &[(u64, Course)], low: u64, high: u64) -> Option<u64> {
    let is_alike = |one: &Course, other: &Course| (one.device, &one.requests) == (other.device, &other.requests);
    let pairs = (1..courses.len()).rev().flat_map(|more| (0..more).rev().map(move |less| (&courses[less], &courses[more])));
    let ((less, one), (more, other)) = pairs.into_iter().find(|(less, more)| is_alike(&less.1, &more.1))?;
    if one.sizes == other.sizes {
        return None;
    }
    let told = Told {
        device: one.device,
        streams: one.streams,
        numbers: (*less, *more),
        requests: &one.requests,
        sizes: one.sizes.iter().copied().zip(other.sizes.iter().copied()).collect(),
        low,
        high,
    };
    let folder = rehearsal.session().ok()?;
    let path = folder.path().join("courses");
    fs::write(&path, serde_json::to_vec(&told).ok()?).ok()?;
    let program = "import sys; from vramlab_rehearsal import replaying; replaying.largest(sys.argv[1])";
    let command = [one.python.as_str(), "-c", program].map(OsString::from).into_iter().chain([path.clone().into()]).collect();
    let variant = Variant { command: Some(command), ..Variant::default() };
    Rehearsal { variant, ..rehearsal.clone() }.run_in_silence().ok()?;
    fs::read_to_string(folder.path().join("courses.largest")).ok()?.parse().ok()
}
