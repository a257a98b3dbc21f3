//! Memory through a training step: every allocation and its end, by what the bytes turn out to be for.
//!
//! A [`Recorder`] hears what the device's allocator does: on the CPU our counting allocator, on CUDA PyTorch's caching allocator, real or
//! dry. It is told when a phase of the step ends, with the parameters and the data. What a block is for shows then: a forward pass leaves
//! activations, a backward pass fills the parameters' gradients, an optimizer's step leaves its state, and what is gone again was
//! temporary. The [`Timeline`] that comes out knows every block by address, bytes, category, iteration and phase, and gives what lives after
//! each event, the peak, and what lives there.
//! ```no_run
//! use tch::{Device, Kind, Tensor, nn, nn::Module, nn::OptimizerConfig};
//! use vramlab::torch::{Cpu, Mark, Phase, Recorder, Recording};
//!
//! fn main() -> anyhow::Result<()> {
//!     let cpu = Cpu::new(None);
//!     let mut recorder = Recorder::begin(&cpu, Recording::default())?;
//!     let store = nn::VarStore::new(Device::Cpu);
//!     let model = nn::linear(store.root(), 1024, 1024, Default::default());
//!     let mut optimizer = nn::Adam::default().build(&store, 1e-3)?;
//!     let x = Tensor::randn([64, 1024], (Kind::Float, Device::Cpu));
//!     recorder.ended(Mark::LOADED, &store, &[&x])?;
//!     for iteration in 1..=2 {
//!         let mark = |phase| Mark { iteration, phase, micro_batch: 0 };
//!         optimizer.zero_grad();
//!         let loss = model.forward(&x).square().mean(Kind::Float);
//!         recorder.ended(mark(Phase::Forward), &store, &[&x])?;
//!         loss.backward();
//!         drop(loss);
//!         recorder.ended(mark(Phase::Backward), &store, &[&x])?;
//!         optimizer.step();
//!         recorder.ended(mark(Phase::Step), &store, &[&x])?;
//!     }
//!     let timeline = recorder.end();
//!     if let Some(peak) = timeline.peak() {
//!         println!("{} bytes at most: {:?}", peak.live.total(), timeline.held_after(peak.event));
//!     }
//!     Ok(())
//! }
//! ```
//! # What it does not see
//! Memory that does not come from the allocator: the CUDA context, oneDNN's scratchpads, the Rust heap. What was allocated before the
//! recording began is left out of all figures. What libraries keep in PyTorch's allocator (workspaces of cuBLAS) counts as temporary where the
//! device does not tell it apart, which only the dry one does.

use super::by_address::ByAddress;
use super::native::allocations;
use super::native::optimizers::gradient_addresses;
use super::{Backend, Memory};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use tch::Tensor;
use tch::nn::VarStore;

/// What an iteration goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The model, the optimizer without state, and one batch come onto the device.
    Load,
    Forward,
    Backward,
    Step,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Phase::Load => "load",
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Step => "step",
        })
    }
}

/// The end of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Counts from 1; 0 in [`Phase::Load`].
    pub iteration: u32,
    pub phase: Phase,
    /// Which micro-batch of the iteration, from 0; the last in [`Phase::Step`].
    pub micro_batch: i64,
}

impl Mark {
    pub const LOADED: Mark = Mark { iteration: 0, phase: Phase::Load, micro_batch: 0 };

    /// Iteration and phase that follow this mark, where a step accumulates so many micro-batches.
    pub fn following(self, accumulate: i64) -> (u32, Phase) {
        match self.phase {
            Phase::Load | Phase::Step => (self.iteration + 1, Phase::Forward),
            Phase::Forward => (self.iteration, Phase::Backward),
            Phase::Backward if self.micro_batch + 1 < accumulate => (self.iteration, Phase::Forward),
            Phase::Backward => (self.iteration, Phase::Step),
        }
    }
}

/// Bytes by what they are for. The sum is what the device's meter shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Categories {
    /// Parameters and buffers of the model.
    pub parameters: i64,
    pub gradients: i64,
    pub optimizer_state: i64,
    /// What a forward pass leaves alive for the backward pass, the loss included.
    pub activations: i64,
    /// Inputs and targets.
    pub data: i64,
    /// Everything else: what lives only within a phase.
    pub temporaries: i64,
    /// What cuBLAS keeps in PyTorch's allocator from its first product on, where the device tells; elsewhere it is among the temporaries.
    #[serde(default)]
    pub workspaces: i64,
}

impl Categories {
    pub fn total(&self) -> i64 {
        self.named().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Each category with its name.
    pub fn named(&self) -> [(&'static str, i64); 7] {
        [
            ("parameters", self.parameters),
            ("gradients", self.gradients),
            ("optimizer state", self.optimizer_state),
            ("activations", self.activations),
            ("data", self.data),
            ("temporaries", self.temporaries),
            ("workspaces", self.workspaces),
        ]
    }
}

/// What a block of memory is for; see [`Categories`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    Parameters,
    Gradients,
    OptimizerState,
    Activations,
    Data,
    Temporaries,
    Workspaces,
}

impl Category {
    /// In the order of [`Categories::named`].
    pub const ALL: [Category; 7] = [
        Category::Parameters,
        Category::Gradients,
        Category::OptimizerState,
        Category::Activations,
        Category::Data,
        Category::Temporaries,
        Category::Workspaces,
    ];

    pub fn name(self) -> &'static str {
        Categories::default().named()[self as usize].0
    }

    /// This category's bytes.
    pub fn of(self, categories: &mut Categories) -> &mut i64 {
        match self {
            Category::Parameters => &mut categories.parameters,
            Category::Gradients => &mut categories.gradients,
            Category::OptimizerState => &mut categories.optimizer_state,
            Category::Activations => &mut categories.activations,
            Category::Data => &mut categories.data,
            Category::Temporaries => &mut categories.temporaries,
            Category::Workspaces => &mut categories.workspaces,
        }
    }
}

/// Everything that was allocated, and when.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Timeline {
    /// Every allocation, in order.
    pub made: Vec<Made>,
    /// Allocations and frees, in order. To the end of the last phase; where a phase did not end, until all of it is freed again.
    pub events: Vec<Event>,
    /// Ends of phases.
    pub marks: Vec<Marked>,
}

/// One allocation.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    pub address: u64,
    /// Bytes that were asked for.
    pub bytes: i64,
    pub category: Category,
    /// When it was made; iteration 0 while loading.
    pub iteration: u32,
    pub phase: Phase,
    /// The parameter that it is or belongs to, where it is known.
    pub parameter: Option<Arc<str>>,
    /// The operation that the program called and in which it was made, where names were asked for.
    pub operation: Option<&'static str>,
}

/// An allocation, or its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Position in [`Timeline::made`].
    pub made: usize,
    pub freed: bool,
}

/// The end of a phase of a micro-batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Marked {
    pub iteration: u32,
    pub phase: Phase,
    /// Events so far.
    pub events: usize,
    /// What the device's meter showed, where it was asked.
    pub memory: Option<Memory>,
}

/// What lives after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Position in [`Timeline::events`].
    pub event: usize,
    pub live: Categories,
}

/// One phase of one iteration; with accumulation, that phase of all its micro-batches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Counts from 1; 0 while loading.
    pub iteration: u32,
    pub phase: Phase,
    /// Bytes that live at the phase's end.
    pub live: i64,
    /// Most bytes that lived at once during the phase.
    pub peak: i64,
    /// What lives at the end.
    pub at_end: Categories,
    /// What lived at the peak. What a checkpointed segment computes again is temporary.
    pub at_peak: Categories,
    /// The kinds of blocks that held most of the peak, where they were asked for.
    pub largest: Vec<Held>,
    /// What else the device's meter shows at the end, by metric; where it was not asked, nothing.
    pub others: BTreeMap<String, i64>,
    /// The event after which most bytes lived; none before the first.
    #[serde(skip)]
    pub peak_event: Option<usize>,
}

/// Blocks of one kind that live at a moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
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

/// Kinds of blocks that are listed.
const LISTED: usize = 12;

/// Metrics of a meter that are peaks: of several micro-batches the highest counts.
const PEAKS: [&str; 2] = ["allocated_peak", "reserved_peak"];

impl Timeline {
    /// Iteration and phase that an event belongs to; none behind the last phase that ended.
    pub fn at(&self, event: usize) -> Option<(u32, Phase)> {
        self.marks.iter().find(|mark| event < mark.events).map(|mark| (mark.iteration, mark.phase))
    }

    /// What lives after each event.
    pub fn moments(&self) -> impl Iterator<Item = Moment> + '_ {
        let mut live = Categories::default();
        self.events.iter().enumerate().map(move |(event, change)| {
            let made = &self.made[change.made];
            *made.category.of(&mut live) += if change.freed { -made.bytes } else { made.bytes };
            Moment { event, live }
        })
    }

    /// The moment at which most bytes live, of equal ones the first; none where nothing was allocated.
    pub fn peak(&self) -> Option<Moment> {
        // Of equal ones, `max_by_key` takes the last.
        self.moments().fold(None, |most: Option<Moment>, now| match most {
            Some(most) if most.live.total() >= now.live.total() => Some(most),
            _ => Some(now),
        })
    }

    /// Everything that lives after an event.
    pub fn living_after(&self, event: usize) -> impl Iterator<Item = &Made> {
        let mut lives = vec![false; self.made.len()];
        for event in &self.events[..=event] {
            lives[event.made] = !event.freed;
        }
        self.made.iter().zip(lives).filter(|(_, lives)| *lives).map(|(made, _)| made)
    }

    /// The kinds of blocks that hold most of the bytes after an event, the most first.
    pub fn held_after(&self, event: usize) -> Vec<Held> {
        let mut kinds: HashMap<_, (usize, &Option<Arc<str>>)> = HashMap::new();
        for made in self.living_after(event) {
            let pattern = made.parameter.as_deref().map(pattern);
            let key = (made.bytes, made.category, made.iteration, made.phase, pattern);
            kinds.entry(key).and_modify(|kind| kind.0 += 1).or_insert((1, &made.parameter));
        }
        let kinds = kinds.into_iter().map(|((bytes, category, iteration, phase, pattern), (count, name))| Held {
            count,
            bytes,
            category,
            iteration,
            phase,
            name: if count == 1 { name.as_deref().map(str::to_string) } else { pattern },
        });
        let mut kinds: Vec<Held> = kinds.collect();
        // Ties are broken by all that is told, so that the list is the same every time.
        kinds.sort_by_cached_key(|t| (-(t.count as i64) * t.bytes, -t.bytes, t.category, t.iteration, t.phase, t.name.clone()));
        kinds.truncate(LISTED);
        kinds
    }

    /// Each phase that ended, its micro-batches joined.
    pub fn stages(&self) -> Vec<Stage> {
        let mut moments = self.moments();
        let mut now = Categories::default();
        let mut from = 0usize;
        let mut stages: Vec<Stage> = Vec::new();
        for mark in &self.marks {
            let (mut most, mut at) = (now, from.checked_sub(1));
            for moment in moments.by_ref().take(mark.events - from) {
                now = moment.live;
                if now.total() > most.total() {
                    (most, at) = (now, Some(moment.event));
                }
            }
            from = mark.events;
            let others = mark.memory.iter().flat_map(|memory| &memory.others);
            let stage = Stage {
                iteration: mark.iteration,
                phase: mark.phase,
                live: now.total(),
                peak: most.total(),
                at_end: now,
                at_peak: most,
                largest: Vec::new(),
                others: others.map(|(metric, value)| (metric.to_string(), *value)).collect(),
                peak_event: at,
            };
            join(&mut stages, stage);
        }
        stages
    }

    /// As [`Timeline::stages`], with what held most of each peak.
    pub fn stages_in_detail(&self) -> Vec<Stage> {
        let mut stages = self.stages();
        for stage in &mut stages {
            stage.largest = stage.peak_event.map(|event| self.held_after(event)).unwrap_or_default();
        }
        stages
    }

    /// The events of one phase of an iteration, without accumulation.
    pub fn events_of(&self, iteration: u32, phase: Phase) -> Option<Range<usize>> {
        let mark = self.marks.iter().position(|mark| (mark.iteration, mark.phase) == (iteration, phase))?;
        let from = mark.checked_sub(1).map_or(0, |before| self.marks[before].events);
        Some(from..self.marks[mark].events)
    }

    /// The course of some events in few points: what lives before them, then of each of `parts` equal parts of them the moment at which
    /// most bytes live, then what lives after them. So no peak is lost.
    pub fn outline(&self, events: Range<usize>, parts: usize) -> Vec<Categories> {
        let mut moments = self.moments();
        let live = |moment: Option<Moment>| moment.map(|moment| moment.live).unwrap_or_default();
        let before = if events.start == 0 { Categories::default() } else { live(moments.nth(events.start - 1)) };
        let within: Vec<Categories> = moments.take(events.len()).map(|moment| moment.live).collect();
        let parts = parts.clamp(1, within.len().max(1));
        let part = |n: usize| &within[n * within.len() / parts..(n + 1) * within.len() / parts];
        let most = (0..parts).filter_map(|n| part(n).iter().max_by_key(|live| live.total()));
        let after = within.last().copied().unwrap_or(before);
        std::iter::once(before).chain(most.copied()).chain([after]).collect()
    }
}

/// Adds a stage, or joins it with that of an earlier micro-batch.
fn join(stages: &mut Vec<Stage>, mut stage: Stage) {
    let earlier = stages.iter().rposition(|s| (s.iteration, s.phase) == (stage.iteration, stage.phase));
    if let Some(earlier) = earlier.map(|at| stages.remove(at)) {
        if earlier.peak > stage.peak {
            (stage.peak, stage.at_peak, stage.peak_event) = (earlier.peak, earlier.at_peak, earlier.peak_event);
        }
        for metric in PEAKS {
            if let (Some(now), Some(before)) = (stage.others.get_mut(metric), earlier.others.get(metric)) {
                *now = (*now).max(*before);
            }
        }
    }
    stages.push(stage);
}

/// `block.*.up.weight` of `block.7.up.weight`.
fn pattern(name: &str) -> String {
    let part = |part: &str| if part.bytes().all(|b| b.is_ascii_digit()) { "*".to_string() } else { part.to_string() };
    name.split(['.', '|']).map(part).collect::<Vec<_>>().join(".")
}

/// What is recorded besides the allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recording {
    /// Read the device's meter at the end of each phase, and set its peaks back then.
    pub meter: bool,
    /// Name the operation in which each block was made.
    pub operations: bool,
}

/// Records what is allocated and freed, from its beginning until it is dropped. Recording belongs to the process: there is one at a time.
pub struct Recorder<'a> {
    backend: &'a dyn Backend,
    recording: Recording,
    timeline: Timeline,
    /// Position in the timeline of what lives, by address.
    live: ByAddress<usize>,
    parameters: Vec<(Arc<str>, Tensor)>,
}

impl<'a> Recorder<'a> {
    /// Begins to record, before anything is loaded. What lived before is not seen.
    ///
    /// # Errors
    /// The device's allocator tells nothing of what it does; the meter's message.
    pub fn begin(backend: &'a dyn Backend, recording: Recording) -> Result<Recorder<'a>> {
        if recording.meter {
            backend.reset_peaks()?;
        }
        allocations::record(backend.device(), recording.operations)?;
        Ok(Recorder { backend, recording, timeline: Timeline::default(), live: ByAddress::default(), parameters: Vec::new() })
    }

    /// Enters a phase that has just ended. Parameters are those of the store when loading ended; `data` are the inputs and targets that
    /// live now; gradients are read from the parameters at the end of a backward pass, when the loss must have been dropped.
    ///
    /// # Errors
    /// The meter's message.
    pub fn ended(&mut self, mark: Mark, store: &VarStore, data: &[&Tensor]) -> Result<()> {
        let first = self.timeline.made.len();
        self.take((mark.iteration, mark.phase));
        for address in self.backend.workspaces()? {
            self.claim(self.live.get(&address).copied(), Category::Workspaces, None);
        }
        if mark.phase == Phase::Load {
            self.parameters = store.variables().into_iter().map(|(name, tensor)| (name.into(), tensor)).collect();
            for at in 0..self.parameters.len() {
                let made = self.position(self.parameters[at].1.data_ptr() as u64);
                self.claim(made, Category::Parameters, Some(at));
            }
            self.parameters.retain(|(_, tensor)| tensor.requires_grad());
        }
        for tensor in data {
            self.claim(self.position(tensor.data_ptr() as u64), Category::Data, None);
        }
        match mark.phase {
            Phase::Load => {}
            Phase::Forward => self.claim_living(first, Category::Activations),
            Phase::Backward => {
                let parameters: Vec<&Tensor> = self.parameters.iter().map(|(_, parameter)| parameter).collect();
                for (at, address) in gradient_addresses(&parameters)?.into_iter().enumerate() {
                    self.claim(self.position(address), Category::Gradients, Some(at));
                }
            }
            Phase::Step => {
                self.claim_living(first, Category::OptimizerState);
                self.disclaim_lasting(mark.iteration);
            }
        }
        let memory = if self.recording.meter { Some(self.backend.memory()?) } else { None };
        let events = self.timeline.events.len();
        self.timeline.marks.push(Marked { iteration: mark.iteration, phase: mark.phase, events, memory });
        if self.recording.meter {
            self.backend.reset_peaks()?;
        }
        Ok(())
    }

    /// What was recorded to the end of the last phase.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// The trainable parameters with their names, once loading has ended.
    pub fn parameters(&self) -> &[(Arc<str>, Tensor)] {
        &self.parameters
    }

    /// Ends the recording with the last phase that ended; what follows it, as the end of the model, is left out.
    pub fn end(mut self) -> Timeline {
        std::mem::take(&mut self.timeline)
    }

    /// Ends the recording where an iteration's phase was broken off, as by memory that ran out. Its events are kept, also those by which
    /// all was freed but the parameters, which the recorder holds.
    pub fn end_within(mut self, (iteration, phase): (u32, Phase)) -> Timeline {
        self.take((iteration, phase));
        if phase == Phase::Forward {
            self.claim_unfinished();
        }
        std::mem::take(&mut self.timeline)
    }

    /// Reads what was allocated and freed since.
    fn take(&mut self, (iteration, phase): (u32, Phase)) {
        for event in allocations::take() {
            if event.freed {
                // What was there before the recording is none of its business.
                let Some(made) = self.live.remove(&event.address) else { continue };
                self.timeline.events.push(Event { made, freed: true });
            } else {
                let made = self.timeline.made.len();
                self.live.insert(event.address, made);
                self.timeline.events.push(Event { made, freed: false });
                self.timeline.made.push(Made {
                    address: event.address,
                    bytes: event.bytes,
                    category: Category::Temporaries,
                    iteration,
                    phase,
                    parameter: None,
                    operation: event.operation,
                });
            }
        }
    }

    /// Where in the timeline the memory is that an address lies in; none for the address 0.
    fn position(&self, address: u64) -> Option<usize> {
        let has = |start: u64, made: usize| (start..start + self.timeline.made[made].bytes.unsigned_abs()).contains(&address);
        if let Some(made) = self.live.get(&address) {
            return has(address, *made).then_some(*made);
        }
        // A view may begin inside of its memory.
        (address != 0).then(|| self.live.iter().find(|(start, made)| has(**start, **made))).flatten().map(|(_, made)| *made)
    }

    fn claim(&mut self, made: Option<usize>, category: Category, parameter: Option<usize>) {
        let Some(made) = made.map(|made| &mut self.timeline.made[made]) else { return };
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

    /// What a forward pass left and a whole further iteration did not free was no activation: a library keeps it.
    fn disclaim_lasting(&mut self, iteration: u32) {
        let made = &mut self.timeline.made;
        for &at in self.live.values() {
            if made[at].category == Category::Activations && made[at].iteration < iteration {
                made[at].category = Category::Temporaries;
            }
        }
    }

    /// Claims what a forward pass had made and kept when it was broken off.
    fn claim_unfinished(&mut self) {
        let begun = self.timeline.marks.last().map_or(0, |mark| mark.events);
        let last = self.timeline.events.iter().rposition(|event| !event.freed).map_or(begun, |at| at + 1).max(begun);
        let (passed, after) = self.timeline.events.split_at(last);
        let gone: Vec<usize> = passed[begun..].iter().filter(|event| event.freed).map(|event| event.made).collect();
        // What was freed afterwards was freed because the pass was broken off.
        for event in after.iter().filter(|event| !gone.contains(&event.made)) {
            let made = &mut self.timeline.made[event.made];
            if made.category == Category::Temporaries {
                made.category = Category::Activations;
            }
        }
    }
}

impl Drop for Recorder<'_> {
    fn drop(&mut self) {
        allocations::stop();
        drop(allocations::take());
    }
}

impl fmt::Debug for Recorder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Recorder").field("recording", &self.recording).field("timeline", &self.timeline).finish_non_exhaustive()
    }
}
