//! Follows a training step by its allocations, so that each byte is known by what it turns out to be for.

use super::prediction::{Peak, Prediction};
use super::timeline::{Event, Made, Marked, Timeline};
use crate::dry::{self, Dry};
use crate::native;
use crate::torch::{Backend, Memory};
use crate::training::{Categories, Category, Mark, Onward, OutOfMemory, Phase, Stage};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use tch::nn::VarStore;
use tch::{Device, Tensor};

/// Tensors of one kind that live at the peak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensors {
    pub count: usize,
    /// Bytes of each.
    pub bytes: i64,
    pub category: Category,
    /// When they were allocated: iteration (0 while loading) and phase.
    pub iteration: u32,
    pub phase: Phase,
    /// The parameter that they are or belong to, where it is known; `*` stands for numbers that differ.
    pub name: Option<String>,
}

/// Kinds of tensors that a prediction lists.
const LISTED: usize = 12;

/// The state of the allocator between two micro-batches. It puts free neighbours together, so the allocations that live, its segments and
/// nothing else decide what it does next: where a micro-batch leaves this as it found it, the next one will do the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    live: Fingerprint,
    /// Requested, allocated, reserved and inactive split bytes, and retries.
    meter: [i64; 5],
}

impl State {
    /// # Errors
    /// The meter's message.
    pub fn read(live: Fingerprint) -> Result<State> {
        let m = native::cuda_memory(0)?;
        Ok(State { live, meter: [m.requested, m.allocated, m.reserved, m.inactive_split, m.retries] })
    }
}

/// What lives, by address and bytes: the sum of the hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Fingerprint(u64);

impl Fingerprint {
    pub fn add(&mut self, address: u64, bytes: i64) {
        self.0 = self.0.wrapping_add(hash(address, bytes));
    }

    pub fn remove(&mut self, address: u64, bytes: i64) {
        self.0 = self.0.wrapping_sub(hash(address, bytes));
    }
}

fn hash(address: u64, bytes: i64) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((address, bytes))
}

/// Follows steps on the dry device. Recording belongs to the process, so one follower is used at a time.
#[derive(Debug)]
pub struct Follower<'a> {
    dry: &'a Dry,
    timeline: Timeline,
    /// Position in the timeline of what lives, by address.
    live: BTreeMap<u64, usize>,
    fingerprint: Fingerprint,
    settled: Option<State>,
    parameters: Vec<(String, Tensor)>,
    /// Iteration and phase that are under way.
    at: (u32, Phase),
    meters: Vec<Memory>,
}

impl<'a> Follower<'a> {
    /// Starts to follow, before anything is loaded. What lived before is not seen.
    ///
    /// # Errors
    /// The dry device's message.
    pub fn begin(dry: &'a Dry) -> Result<Follower<'a>> {
        dry.reset_peaks()?;
        native::record_allocations(true)?;
        drop(native::take_allocations());
        Ok(Follower {
            dry,
            timeline: Timeline::default(),
            live: BTreeMap::new(),
            fingerprint: Fingerprint::default(),
            settled: None,
            parameters: Vec::new(),
            at: (0, Phase::Load),
            meters: Vec::new(),
        })
    }

    /// The device that steps are to run on.
    pub fn device(&self) -> Device {
        self.dry.device()
    }

    /// Enters a phase that has just ended. Parameters are those of the store when loading ended; `data` are the inputs and targets that
    /// live now; gradients are read from the parameters at the end of a backward pass, when the loss must have been dropped.
    ///
    /// Says whether the micro-batches that may follow can be left out, since each would do to the allocator what this one did.
    ///
    /// # Errors
    /// The meter's message.
    pub fn ended(&mut self, mark: Mark, store: &VarStore, data: &[&Tensor]) -> Result<Onward> {
        let first = self.timeline.made.len();
        self.take();
        for made in &mut self.timeline.made[first..] {
            (made.iteration, made.phase) = (mark.iteration, mark.phase);
        }
        if mark.phase == Phase::Load {
            self.parameters = store.variables().into_iter().collect();
            for at in 0..self.parameters.len() {
                let (name, tensor) = &self.parameters[at];
                if let Some(made) = position(&self.live, tensor) {
                    let made = &mut self.timeline.made[made];
                    made.category = Category::Parameters;
                    made.parameter = Some(name.clone());
                }
            }
            self.parameters.retain(|(_, tensor)| tensor.requires_grad());
        }
        for tensor in data {
            self.claim(tensor, Category::Data, None);
        }
        match mark.phase {
            Phase::Load => {}
            Phase::Forward => self.claim_living(first, Category::Activations),
            Phase::Backward => {
                for at in 0..self.parameters.len() {
                    let gradient = self.parameters[at].1.grad();
                    if gradient.defined() {
                        self.claim(&gradient, Category::Gradients, Some(at));
                    }
                }
            }
            Phase::Step => self.claim_living(first, Category::OptimizerState),
        }
        let memory = self.dry.memory()?;
        self.meters.push(memory);
        self.timeline.marks.push(Marked { iteration: mark.iteration, phase: mark.phase, events: self.timeline.events.len() });
        self.dry.reset_peaks()?;
        self.at = mark.following(i64::MAX);
        if mark.phase != Phase::Backward {
            if mark.phase == Phase::Step {
                self.settled = None;
                self.timeline.held = dry::held_blocks()?;
            }
            return Ok(Onward::Next);
        }
        let state = State::read(self.fingerprint)?;
        let onward = if self.settled.as_ref() == Some(&state) { Onward::ToStep } else { Onward::Next };
        self.settled = Some(state);
        Ok(onward)
    }

    /// Says that no micro-batch follows, so that an error of the step is not taken for one of a forward pass.
    pub fn steps_next(&mut self) {
        self.at.1 = Phase::Step;
    }

    /// Reads what was allocated and freed since.
    fn take(&mut self) {
        for event in native::take_allocations() {
            if event.freed {
                // What was there before the follower is none of its business.
                let Some(made) = self.live.remove(&event.address) else { continue };
                self.fingerprint.remove(event.address, event.bytes);
                self.timeline.events.push(Event { made, freed: true });
            } else {
                self.fingerprint.add(event.address, event.bytes);
                let made = self.timeline.made.len();
                self.live.insert(event.address, made);
                self.timeline.events.push(Event { made, freed: false });
                self.timeline.made.push(Made {
                    address: event.address,
                    bytes: event.bytes,
                    category: Category::Temporaries,
                    iteration: self.at.0,
                    phase: self.at.1,
                    parameter: None,
                });
            }
        }
    }

    fn claim(&mut self, tensor: &Tensor, category: Category, parameter: Option<usize>) {
        let Some(made) = position(&self.live, tensor) else { return };
        let made = &mut self.timeline.made[made];
        if made.category == Category::Temporaries {
            made.category = category;
            made.parameter = parameter.map(|at| self.parameters[at].0.clone());
        }
    }

    /// Claims what was made since and lives.
    fn claim_living(&mut self, first: usize, category: Category) {
        let made = &mut self.timeline.made;
        for &at in self.live.values().filter(|at| **at >= first) {
            if made[at].category == Category::Temporaries {
                made[at].category = category;
            }
        }
    }

    /// Claims what a forward pass had made and kept when memory ran out in it.
    fn claim_unfinished(&mut self) {
        if self.at.1 != Phase::Forward {
            return;
        }
        let begun = self.timeline.marks.last().map_or(0, |mark| mark.events);
        let last = self.timeline.events.iter().rposition(|event| !event.freed).map_or(begun, |at| at + 1).max(begun);
        let (passed, after) = self.timeline.events.split_at(last);
        let gone: Vec<usize> = passed[begun..].iter().filter(|event| event.freed).map(|event| event.made).collect();
        // What was freed afterwards was freed because memory ran out.
        for event in after.iter().filter(|event| !gone.contains(&event.made)) {
            let made = &mut self.timeline.made[event.made];
            if made.category == Category::Temporaries {
                made.category = Category::Activations;
            }
        }
    }

    /// Ends following; `error` is what ended the steps before their time.
    ///
    /// # Errors
    /// That error, where it is another one than memory that ran out.
    pub(super) fn finish(mut self, error: Option<anyhow::Error>) -> Result<Prediction> {
        self.take();
        let out_of_memory = match error {
            Some(error) => match OutOfMemory::of(&error, self.at) {
                Some(out) => {
                    self.claim_unfinished();
                    Some(out)
                }
                None => return Err(error),
            },
            None => None,
        };
        let rest = native::cuda_memory(0)?;
        let mut timeline = std::mem::take(&mut self.timeline);
        match timeline.marks.last() {
            // What follows is the end of the model, which is no part of a step.
            Some(last) if out_of_memory.is_none() => timeline.events.truncate(last.events),
            _ => timeline.held = dry::held_blocks()?,
        }
        let (stages, top) = stages(&timeline, &self.meters);
        let (iteration, phase) = top.event.map_or(self.at, |event| timeline.at(event).unwrap_or(self.at));
        let most = |metric: &str, rest: i64| stages.iter().filter_map(|s| s.others.get(metric)).copied().fold(rest, i64::max);
        let reserved = most("reserved_peak", rest.reserved_peak);
        // What others have of the card never changes.
        let taken = rest.total - rest.free - rest.reserved;
        timeline.peak = top.event;
        let loaded = timeline.marks.iter().any(|mark| mark.phase == Phase::Load);
        Ok(Prediction {
            parameters: loaded.then(|| self.parameters.iter().map(|(_, parameter)| parameter.numel()).sum()),
            requested: top.bytes,
            allocated: most("allocated_peak", rest.allocated_peak),
            reserved,
            device_used: reserved + taken,
            retries: rest.retries,
            peak: Peak { bytes: top.bytes, iteration, phase, categories: top.categories, tensors: listed(&timeline, top.event) },
            phases: stages,
            out_of_memory,
            timeline,
        })
    }
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        // Switching off cannot fail: it only sets a flag.
        let _ = native::record_allocations(false);
        drop(native::take_allocations());
    }
}

/// Where in the timeline the memory is that a tensor stands in.
fn position(live: &BTreeMap<u64, usize>, tensor: &Tensor) -> Option<usize> {
    let address = tensor.data_ptr() as u64;
    // A view may begin inside of its memory.
    live.range(..=address).next_back().filter(|_| address != 0).map(|(_, made)| *made)
}

/// The moment at which most bytes lived.
struct Top {
    bytes: i64,
    categories: Categories,
    /// Position of the event after which they lived; none where nothing ever lived.
    event: Option<usize>,
}

/// Each phase with its micro-batches joined, and the moment at which most bytes lived; of equal moments the first.
fn stages(timeline: &Timeline, meters: &[Memory]) -> (Vec<Stage>, Top) {
    let mut now = Categories::default();
    let mut live = 0;
    let mut top = Top { bytes: 0, categories: now, event: None };
    let mut stages: Vec<Stage> = Vec::new();
    let mut from = 0;
    let mut walk = |from: usize, to: usize, peak: &mut (i64, Categories)| {
        for (at, event) in timeline.events[from..to].iter().enumerate() {
            let made = &timeline.made[event.made];
            let bytes = if event.freed { -made.bytes } else { made.bytes };
            *made.category.of(&mut now) += bytes;
            live += bytes;
            if live > peak.0 {
                *peak = (live, now);
            }
            if live > top.bytes {
                top = Top { bytes: live, categories: now, event: Some(from + at) };
            }
        }
        (live, now)
    };
    let mut last = (0, Categories::default());
    for (mark, memory) in timeline.marks.iter().zip(meters) {
        let mut peak = last;
        last = walk(from, mark.events, &mut peak);
        from = mark.events;
        let others = memory.others.iter().map(|(metric, bytes)| (metric.to_string(), *bytes)).collect();
        let mut stage = Stage {
            iteration: mark.iteration,
            phase: mark.phase,
            live: last.0,
            peak: peak.0,
            at_end: last.1,
            at_peak: peak.1,
            // The prediction tells the tensors of its whole peak.
            largest: Vec::new(),
            others,
        };
        let earlier = stages.iter().rposition(|s| (s.iteration, s.phase) == (mark.iteration, mark.phase));
        if let Some(earlier) = earlier.map(|at| stages.remove(at)) {
            if earlier.peak > stage.peak {
                (stage.peak, stage.at_peak) = (earlier.peak, earlier.at_peak);
            }
            for metric in ["allocated_peak", "reserved_peak"] {
                let before = earlier.others.get(metric).copied().unwrap_or_default();
                stage.others.entry(metric.to_string()).and_modify(|bytes| *bytes = before.max(*bytes));
            }
        }
        stages.push(stage);
    }
    // A phase that memory ended.
    walk(from, timeline.events.len(), &mut last);
    (stages, top)
}

/// The kinds of tensors that hold most of the bytes after an event.
fn listed(timeline: &Timeline, event: Option<usize>) -> Vec<Tensors> {
    let Some(event) = event else { return Vec::new() };
    let mut live = vec![false; timeline.made.len()];
    for event in &timeline.events[..=event] {
        live[event.made] = !event.freed;
    }
    let mut kinds: HashMap<_, (usize, &Option<String>)> = HashMap::new();
    for made in live.iter().zip(&timeline.made).filter(|(live, _)| **live).map(|(_, made)| made) {
        let pattern = made.parameter.as_deref().map(pattern);
        let key = (made.bytes, made.category, made.iteration, made.phase, pattern);
        kinds.entry(key).and_modify(|kind| kind.0 += 1).or_insert((1, &made.parameter));
    }
    let kinds = kinds.into_iter().map(|((bytes, category, iteration, phase, pattern), (count, name))| Tensors {
        count,
        bytes,
        category,
        iteration,
        phase,
        name: if count == 1 { name.clone() } else { pattern },
    });
    let mut kinds: Vec<Tensors> = kinds.collect();
    // Ties are broken by all that is told, so that the list is the same every time.
    kinds.sort_by_cached_key(|t| (-(t.count as i64) * t.bytes, -t.bytes, t.category, t.iteration, t.phase, t.name.clone()));
    kinds.truncate(LISTED);
    kinds
}

/// `block.*.up.weight` of `block.7.up.weight`.
fn pattern(name: &str) -> String {
    let part = |part: &str| if part.bytes().all(|b| b.is_ascii_digit()) { "*".to_string() } else { part.to_string() };
    name.split(['.', '|']).map(part).collect::<Vec<_>>().join(".")
}
