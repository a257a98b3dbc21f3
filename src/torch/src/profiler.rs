//! PyTorch's own profiler, the one behind Python's `torch.profiler`: what each operation took of time and memory, and a trace of all of it.
//! ```no_run
//! use tch::{Device, Kind, Tensor};
//! use torch::{Profiler, Profiling, range};
//!
//! fn main() -> anyhow::Result<()> {
//!     let x = Tensor::randn([512, 512], (Kind::Float, Device::Cpu));
//!     let profiler = Profiler::begin(Profiling { memory: true, ..Profiling::default() })?;
//!     range("product", || x.matmul(&x))?;
//!     let mut profile = profiler.end()?;
//!     for operation in profile.by_self_time().iter().take(10) {
//!         println!("{:40} {:4} calls {:>9} ns {:>9} bytes", operation.name, operation.calls, operation.self_ns, operation.allocated);
//!     }
//!     profile.save("trace.json".as_ref())
//! }
//! ```
//! The trace opens in <https://ui.perfetto.dev> and `chrome://tracing`.
//!
//! # What it does not see
//! - Memory, where `memory` was not asked for: each operation then has 0 bytes, and nothing says that none were recorded.
//! - Threads that neither began it nor run a backward pass for the one that did.
//! - Stacks of Rust. Python's `with_stack` gathers those of Python, which are not there.
//! - Its own time. What it takes to note an event is part of the operation around it.

use super::native::profiler::{self, ProfilerEvent as Raw, ProfilerSession};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// What is recorded besides the operations and their times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Profiling {
    /// Every allocation and free, with its bytes (`profile_memory`).
    pub memory: bool,
    /// The shapes of the inputs (`record_shapes`).
    pub shapes: bool,
    /// Estimates of the floating-point operations of products and convolutions (`with_flops`); implies `shapes`.
    pub flops: bool,
    /// Kernels and copies on CUDA devices, through CUPTI.
    pub cuda: bool,
}

/// A profiler that records what this thread does, and the threads that run its backward passes. One that is dropped, by a panic for
/// instance, stops, and what it recorded is gone.
#[derive(Debug)]
pub struct Profiler(ProfilerSession);

impl Profiler {
    /// Begins to record. The first of a process takes longer, because Kineto is set up.
    ///
    /// # Errors
    /// A profiler records already: a process has one at a time. This process is a dry one, where Kineto corrupts the heap;
    /// [`super::Recorder`] and [`super::MemoryHistory`] work there.
    pub fn begin(profiling: Profiling) -> Result<Profiler> {
        let Profiling { memory, shapes, flops, cuda } = profiling;
        Ok(Profiler(
            ProfilerSession::begin(profiler::ProfilerOptions { memory, shapes, flops, cuda }).context("starting the profiler")?,
        ))
    }

    /// Ends the recording and gives what was recorded.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn end(self) -> Result<Profiled> {
        let recorded = self.0.end().context("ending the profiler")?;
        let (events, allocations) = nested(recorded.events());
        Ok(Profiled { recorded, events, allocations })
    }
}

/// Runs `body` in a named range, which traces show around its operations.
///
/// # Errors
/// A name with a zero byte.
pub fn range<T>(name: &str, body: impl FnOnce() -> T) -> Result<T> {
    let _range = Range::enter(name)?;
    Ok(body())
}

/// A named range of this thread, from its beginning until it is dropped; see [`range`].
#[derive(Debug)]
pub struct Range {
    _range: profiler::ProfilerRange,
}

impl Range {
    /// # Errors
    /// As for [`range`].
    pub fn enter(name: &str) -> Result<Range> {
        Ok(Range { _range: profiler::ProfilerRange::enter(name).context("naming a range for the profiler")? })
    }
}

/// Where an event comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventSource {
    /// An operation of PyTorch, or a node of the backward pass, as the CPU ran or launched it.
    Operation,
    /// A [`range`].
    Range,
    /// A kernel, copy or fill on a CUDA device.
    Device,
    /// A call of CUDA's runtime or driver, and what else Kineto notes.
    Other,
}

/// Something that began and ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfiledEvent {
    /// `aten::addmm`, or a kernel's name.
    pub name: String,
    pub source: EventSource,
    /// Sizes of the inputs, `[64, 32], [32]`; empty where they were not asked for.
    pub shapes: String,
    /// Nanoseconds since 1970.
    pub start_ns: i64,
    pub duration_ns: i64,
    /// The part of the duration in which no event of [`EventSource::Operation`] ran inside of it on its thread. Of a range, nothing.
    pub self_ns: i64,
    pub thread: u64,
    /// A CUDA device's number; none for the CPU.
    pub device: Option<i32>,
    /// Estimated floating-point operations; 0 where they were not asked for or are not known.
    pub flops: u64,
    /// Bytes that were allocated in it and in no operation inside of it, on whatever device, and of these those freed again there or there
    /// freed of others'; 0 where memory was not asked for.
    pub allocated: i64,
    pub freed: i64,
}

/// An allocation, or its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Nanoseconds since 1970.
    pub at_ns: i64,
    /// Bytes; negative where they were freed.
    pub bytes: i64,
    /// A CUDA device's number; none for the CPU.
    pub device: Option<i32>,
    /// Position in [`Profiled::events`] of the operation in which it happened; none outside of any.
    pub within: Option<usize>,
}

/// All calls of one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    pub name: String,
    pub calls: usize,
    /// Time without that of operations inside of it, and with it. An operation inside of its like counts twice in the latter.
    pub self_ns: i64,
    pub total_ns: i64,
    /// Bytes allocated in it and in no operation inside of it, and bytes freed there.
    pub allocated: i64,
    pub freed: i64,
}

/// What a profiler recorded.
#[derive(Debug)]
pub struct Profiled {
    recorded: profiler::ProfilerResult,
    events: Vec<ProfiledEvent>,
    allocations: Vec<Change>,
}

impl Profiled {
    /// Everything with a duration, by thread or device and then by its beginning; what holds others comes before them.
    pub fn events(&self) -> &[ProfiledEvent] {
        &self.events
    }

    /// Every allocation and free in order; none where memory was not asked for.
    pub fn allocations(&self) -> &[Change] {
        &self.allocations
    }

    /// Operations with most time of their own first. Equal ones stand by name.
    pub fn by_self_time(&self) -> Vec<Operation> {
        let mut by_name: BTreeMap<&str, Operation> = BTreeMap::new();
        for event in self.events.iter().filter(|event| event.source == EventSource::Operation) {
            let new = || Operation { name: event.name.clone(), calls: 0, self_ns: 0, total_ns: 0, allocated: 0, freed: 0 };
            let operation = by_name.entry(&event.name).or_insert_with(new);
            operation.calls += 1;
            operation.self_ns += event.self_ns;
            operation.total_ns += event.duration_ns;
            operation.allocated += event.allocated;
            operation.freed += event.freed;
        }
        let mut operations: Vec<Operation> = by_name.into_values().collect();
        operations.sort_by_key(|operation| std::cmp::Reverse(operation.self_ns));
        operations
    }

    /// Writes the trace as JSON in the Trace Event Format; once, because libtorch's profiler gives it away.
    ///
    /// # Errors
    /// It has been written before; the file cannot be written.
    pub fn save(&mut self, path: &Path) -> Result<()> {
        self.recorded.save(path).with_context(|| format!("writing a profiler's trace to {}", path.display()))
    }

    /// The trace as [`Profiled::save`] writes it, less the path that libtorch notes in it, so that it can be passed on.
    ///
    /// # Errors
    /// As for [`Profiled::save`]; no temporary file can be written.
    pub fn trace(&mut self) -> Result<Vec<u8>> {
        let folder = tempfile::tempdir().context("making a folder for a trace")?;
        let path = folder.path().join("trace.json");
        self.save(&path)?;
        let text = std::fs::read(&path).context("reading a trace that was just written")?;
        let mut trace: serde_json::Value = serde_json::from_slice(&text).context("a trace that is no JSON")?;
        if let Some(fields) = trace.as_object_mut() {
            fields.remove("traceName");
        }
        Ok(serde_json::to_vec(&trace)?)
    }
}

/// libkineto's activity types that are operations and ranges of the CPU, and those of a device; `ActivityType.h`.
const CPU_OP: i32 = 0;
const USER_ANNOTATION: i32 = 1;
/// What the profiler calls an allocation or free.
const MEMORY: &str = "[memory]";

/// Sorts events, and gives each operation the time and the bytes that belong to it and to none inside of it.
fn nested(raw: Vec<Raw>) -> (Vec<ProfiledEvent>, Vec<Change>) {
    let (memory, timed): (Vec<Raw>, Vec<Raw>) = raw.into_iter().partition(|event| event.name == MEMORY);
    let device = |event: &Raw| (event.device >= 0).then_some(event.device);
    let mut events: Vec<ProfiledEvent> = timed
        .into_iter()
        .map(|event| ProfiledEvent {
            source: match event.activity {
                _ if event.device >= 0 => EventSource::Device,
                CPU_OP => EventSource::Operation,
                USER_ANNOTATION => EventSource::Range,
                _ => EventSource::Other,
            },
            device: device(&event),
            name: event.name,
            shapes: event.shapes,
            start_ns: event.start_ns,
            duration_ns: event.duration_ns,
            self_ns: event.duration_ns,
            thread: event.thread,
            flops: event.flops,
            allocated: 0,
            freed: 0,
        })
        .collect();
    events.sort_by_key(|event| (event.device, event.thread, event.start_ns, std::cmp::Reverse(event.duration_ns)));
    // The operations that are open, innermost last.
    let mut open: Vec<usize> = Vec::new();
    for at in 0..events.len() {
        let (source, thread, start) = (events[at].source, events[at].thread, events[at].start_ns);
        if source != EventSource::Operation {
            events[at].self_ns = if source == EventSource::Range { 0 } else { events[at].duration_ns };
            continue;
        }
        open.retain(|outer| events[*outer].thread == thread && end(&events[*outer]) > start);
        if let Some(&outer) = open.last() {
            // Clocks are read one after the other, so that the inner one may seem to end last.
            let inside = end(&events[at]).min(end(&events[outer])) - start;
            events[outer].self_ns -= inside;
        }
        open.push(at);
    }
    let mut by_thread: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (at, event) in events.iter().enumerate().filter(|(_, event)| event.source == EventSource::Operation) {
        by_thread.entry(event.thread).or_default().push(at);
    }
    let mut allocations: Vec<Change> = memory
        .iter()
        .map(|change| Change {
            at_ns: change.start_ns,
            bytes: change.bytes,
            device: device(change),
            within: by_thread.get(&change.thread).and_then(|operations| innermost(&events, operations, change.start_ns)),
        })
        .collect();
    allocations.sort_by_key(|change| change.at_ns);
    for change in &allocations {
        let Some(event) = change.within.map(|at| &mut events[at]) else { continue };
        if change.bytes > 0 {
            event.allocated += change.bytes;
        } else {
            event.freed -= change.bytes;
        }
    }
    (events, allocations)
}

fn end(event: &ProfiledEvent) -> i64 {
    event.start_ns + event.duration_ns
}

/// Of one thread's operations, by their beginning, the last that has begun and not ended at a time.
fn innermost(events: &[ProfiledEvent], operations: &[usize], at_ns: i64) -> Option<usize> {
    let begun = operations.partition_point(|at| events[*at].start_ns <= at_ns);
    operations[..begun].iter().rev().copied().find(|at| end(&events[*at]) >= at_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(name: &str, thread: u64, start_ns: i64, duration_ns: i64, bytes: i64) -> Raw {
        let activity = if name == MEMORY { 8 } else { CPU_OP };
        Raw { name: name.into(), shapes: String::new(), start_ns, duration_ns, thread, bytes, flops: 0, activity, device: -1 }
    }

    #[test]
    fn time_and_bytes_belong_to_the_innermost_operation() {
        let (events, allocations) = nested(vec![
            raw("inner", 1, 20, 30, 0),
            raw("outer", 1, 10, 100, 0),
            raw("innermost", 1, 25, 5, 0),
            raw("second", 1, 60, 10, 0),
            // Another thread's runs at the same time and inside of nothing.
            raw("elsewhere", 2, 30, 40, 0),
            raw(MEMORY, 1, 27, 0, 512),
            raw(MEMORY, 1, 40, 0, 64),
            raw(MEMORY, 1, 55, 0, -512),
            raw(MEMORY, 1, 5, 0, 8),
            raw(MEMORY, 2, 35, 0, 16),
        ]);
        let of = |name: &str| events.iter().find(|event| event.name == name).unwrap();
        let times = ["outer", "inner", "innermost", "second", "elsewhere"].map(|name| of(name).self_ns);
        assert_eq!(times, [60, 25, 5, 10, 40]);
        let bytes = ["outer", "inner", "innermost", "elsewhere"].map(|name| (of(name).allocated, of(name).freed));
        assert_eq!(bytes, [(0, 512), (64, 0), (512, 0), (16, 0)]);
        assert_eq!(allocations[0], Change { at_ns: 5, bytes: 8, device: None, within: None });
    }
}
