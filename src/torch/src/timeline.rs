//! Memory through a training step: every allocation and its end, by what the bytes turn out to be for.
//!
//! A [`Recorder`] hears what the device's allocator does: on the CPU our counting allocator, on CUDA PyTorch's caching allocator, real or
//! dry. It is told when a phase of the step ends, with the parameters and the data. What a block is for shows then: a forward pass leaves
//! activations, a backward pass fills the parameters' gradients, an optimizer's step leaves its state, and what is gone again was
//! temporary. The [`Timeline`] that comes out has the events and blocks of [`sim::trace`], as a rehearsal's trace has, and gives what lives
//! after each event, the peak, and what lives there.
//! ```no_run
//! use tch::{Device, Kind, Tensor, nn, nn::Module, nn::OptimizerConfig};
//! use torch::{Cpu, Mark, Phase, Recorder};
//!
//! fn main() -> anyhow::Result<()> {
//!     let cpu = Cpu::new(None);
//!     let mut recorder = Recorder::begin(&cpu)?;
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
//!         recorder.ended(mark(Phase::Optimizer), &store, &[&x])?;
//!     }
//!     let timeline = recorder.end();
//!     if let Some(peak) = timeline.peak() {
//!         println!("{} bytes at most: {:?}", peak.live.total(), peak.live);
//!     }
//!     Ok(())
//! }
//! ```
//! # What it does not see
//! Memory that does not come from the allocator: the CUDA context, oneDNN's scratchpads, the Rust heap. What was allocated before the
//! recording began is left out of all figures. What libraries keep in PyTorch's allocator (workspaces of cuBLAS) counts as temporary where the
//! device does not tell it apart, which only the dry one does.

use super::Backend;
use super::by_address::ByAddress;
use super::native::allocations;
use super::native::optimizers::gradient_addresses;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use sim::trace::{Category, Event, Kind, MemoryBlock, Phase};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use tch::Tensor;
use tch::nn::VarStore;

/// The end of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Counts from 1; 0 in [`Phase::Load`].
    pub iteration: u32,
    pub phase: Phase,
    /// Which micro-batch of the iteration, from 0; the last in [`Phase::Optimizer`].
    pub micro_batch: i64,
}

impl Mark {
    pub const LOADED: Mark = Mark { iteration: 0, phase: Phase::Load, micro_batch: 0 };
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

    /// One category's bytes. What has no field of its own counts in another's: buffers among the parameters, what nobody knows among the
    /// temporaries.
    pub fn of(&mut self, category: Category) -> &mut i64 {
        match category {
            Category::Parameters | Category::Buffers | Category::WeightCopies => &mut self.parameters,
            Category::Gradients => &mut self.gradients,
            Category::OptimizerState => &mut self.optimizer_state,
            Category::Activations | Category::Outputs | Category::KeyValueCache | Category::AutocastCopies => &mut self.activations,
            Category::Data => &mut self.data,
            Category::Temporaries | Category::OptimizerTemporaries | Category::Other => &mut self.temporaries,
            Category::Workspaces => &mut self.workspaces,
        }
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

/// Everything that was allocated, and when.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Timeline {
    /// Every allocation, in order. Its tensor is the parameter that it is or belongs to, where that is known.
    pub blocks: Vec<MemoryBlock>,
    /// Allocations and frees, in order. To the end of the last phase; where a phase did not end, until all of it is freed again.
    pub events: Vec<Event>,
    /// Names of parameters; the first has the number 1.
    pub tensors: Vec<Arc<str>>,
    /// Ends of phases.
    pub marks: Vec<Marked>,
}

/// The end of a phase of a micro-batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Marked {
    pub iteration: u32,
    pub phase: Phase,
    /// Events so far.
    pub events: usize,
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
}

impl Timeline {
    /// The parameter that a block is or belongs to.
    pub fn parameter(&self, block: &MemoryBlock) -> Option<&str> {
        Some(self.tensors.get((block.tensor as usize).checked_sub(1)?)?)
    }

    /// The operation that the program called and in which a block was made.
    pub fn operation(&self, block: &MemoryBlock) -> Option<&'static str> {
        allocations::operation(&self.events[block.made()])
    }

    /// What lives after each event.
    pub fn moments(&self) -> impl Iterator<Item = Moment> + '_ {
        let mut categories = vec![Category::Other; self.events.len()];
        for block in &self.blocks {
            categories[block.made()] = block.category;
            block.freed().into_iter().for_each(|freed| categories[freed] = block.category);
        }
        let mut live = Categories::default();
        self.events.iter().zip(categories).enumerate().map(move |(at, (event, category))| {
            *live.of(category) += event.change();
            Moment { event: at, live }
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
    pub fn living_after(&self, event: usize) -> impl Iterator<Item = &MemoryBlock> {
        self.blocks.iter().filter(move |block| block.lives_after(event))
    }

    /// Each phase that ended, its micro-batches joined.
    pub fn stages(&self) -> Vec<Stage> {
        let mut moments = self.moments();
        let mut now = Categories::default();
        let mut from = 0usize;
        let mut stages: Vec<Stage> = Vec::new();
        for mark in &self.marks {
            let mut most = now;
            for moment in moments.by_ref().take(mark.events - from) {
                now = moment.live;
                if now.total() > most.total() {
                    most = now;
                }
            }
            from = mark.events;
            let stage = Stage {
                iteration: mark.iteration,
                phase: mark.phase,
                live: now.total(),
                peak: most.total(),
                at_end: now,
                at_peak: most,
            };
            join(&mut stages, stage);
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

/// Counts from 1; 0 while loading.
fn iteration(event: &Event) -> u32 {
    if event.phase == Phase::Load { 0 } else { event.step + 1 }
}

/// Adds a stage, or joins it with that of an earlier micro-batch.
fn join(stages: &mut Vec<Stage>, mut stage: Stage) {
    let earlier = stages.iter().rposition(|s| (s.iteration, s.phase) == (stage.iteration, stage.phase));
    if let Some(earlier) = earlier.map(|at| stages.remove(at))
        && earlier.peak > stage.peak
    {
        (stage.peak, stage.at_peak) = (earlier.peak, earlier.at_peak);
    }
    stages.push(stage);
}

/// Records what is allocated and freed, from its beginning until it is dropped. Recording belongs to the process: there is one at a time.
pub struct Recorder<'a> {
    backend: &'a dyn Backend,
    timeline: Timeline,
    /// Which of the timeline's blocks live, by address.
    live: ByAddress<usize>,
    parameters: Vec<(Arc<str>, Tensor)>,
}

impl<'a> Recorder<'a> {
    /// Begins to record, before anything is loaded. What lived before is not seen.
    ///
    /// # Errors
    /// The device's allocator tells nothing of what it does.
    pub fn begin(backend: &'a dyn Backend) -> Result<Recorder<'a>> {
        allocations::record(backend.device())?;
        Ok(Recorder { backend, timeline: Timeline::default(), live: ByAddress::default(), parameters: Vec::new() })
    }

    /// Enters a phase that has just ended. Parameters are those of the store when loading ended; `data` are the inputs and targets that
    /// live now; gradients are read from the parameters at the end of a backward pass, when the loss must have been dropped.
    ///
    /// # Errors
    /// The meter's message.
    pub fn ended(&mut self, mark: Mark, store: &VarStore, data: &[&Tensor]) -> Result<()> {
        let first = self.timeline.blocks.len();
        self.take(mark);
        for address in self.backend.workspaces()? {
            self.claim(self.live.get(&address).copied(), Category::Workspaces, None);
        }
        if mark.phase == Phase::Load {
            self.parameters = store.variables().into_iter().map(|(name, tensor)| (name.into(), tensor)).collect();
            for at in 0..self.parameters.len() {
                let block = self.position(self.parameters[at].1.data_ptr() as u64);
                self.claim(block, Category::Parameters, Some(at));
            }
            self.parameters.retain(|(_, tensor)| tensor.requires_grad());
        }
        for tensor in data {
            self.claim(self.position(tensor.data_ptr() as u64), Category::Data, None);
        }
        match mark.phase {
            Phase::Load | Phase::Evaluation | Phase::Generation | Phase::Saving => {}
            Phase::Forward => self.claim_living(first, Category::Activations),
            Phase::Backward => {
                let parameters: Vec<&Tensor> = self.parameters.iter().map(|(_, parameter)| parameter).collect();
                for (at, address) in gradient_addresses(&parameters)?.into_iter().enumerate() {
                    self.claim(self.position(address), Category::Gradients, Some(at));
                }
            }
            Phase::Optimizer => {
                self.claim_living(first, Category::OptimizerState);
                self.disclaim_lasting(mark.iteration);
            }
        }
        let events = self.timeline.events.len();
        self.timeline.marks.push(Marked { iteration: mark.iteration, phase: mark.phase, events });
        Ok(())
    }

    /// Ends the recording with the last phase that ended; what follows it, as the end of the model, is left out.
    pub fn end(mut self) -> Timeline {
        std::mem::take(&mut self.timeline)
    }

    /// Reads what was allocated and freed since.
    fn take(&mut self, mark: Mark) {
        let Timeline { blocks, events, .. } = &mut self.timeline;
        for mut event in allocations::take() {
            (event.step, event.phase) = (mark.iteration.saturating_sub(1), mark.phase);
            if event.kind == Kind::Alloc {
                self.live.insert(event.address, blocks.len());
                blocks.push(MemoryBlock::begin(events.len(), &event, Category::Temporaries));
            } else {
                // What was there before the recording is none of its business.
                let Some(block) = self.live.remove(&event.address) else { continue };
                blocks[block].end(events.len());
            }
            events.push(event);
        }
    }

    /// Where in the timeline the memory is that an address lies in; none for the address 0.
    fn position(&self, address: u64) -> Option<usize> {
        let has = |start: u64, block: usize| (start..start + self.timeline.blocks[block].bytes.unsigned_abs()).contains(&address);
        if let Some(block) = self.live.get(&address) {
            return has(address, *block).then_some(*block);
        }
        // A view may begin inside of its memory.
        (address != 0).then(|| self.live.iter().find(|(start, block)| has(**start, **block))).flatten().map(|(_, block)| *block)
    }

    fn claim(&mut self, block: Option<usize>, category: Category, parameter: Option<usize>) {
        let Some(block) = block.map(|block| &mut self.timeline.blocks[block]) else { return };
        if block.category != Category::Temporaries {
            return;
        }
        block.category = category;
        if let Some((name, _)) = parameter.map(|at| &self.parameters[at]) {
            let names = &mut self.timeline.tensors;
            let known = names.iter().position(|known| Arc::ptr_eq(known, name));
            let at = known.unwrap_or_else(|| {
                names.push(name.clone());
                names.len() - 1
            });
            block.tensor = at as u32 + 1;
        }
    }

    /// Claims what was made since and lives.
    fn claim_living(&mut self, first: usize, category: Category) {
        for &at in self.live.values().filter(|at| **at >= first) {
            let block = &mut self.timeline.blocks[at];
            if block.category == Category::Temporaries {
                block.category = category;
            }
        }
    }

    /// What a forward pass left and a whole further iteration did not free was no activation: a library keeps it.
    fn disclaim_lasting(&mut self, now: u32) {
        let Timeline { blocks, events, .. } = &mut self.timeline;
        for &at in self.live.values() {
            let block = &mut blocks[at];
            if block.category == Category::Activations && iteration(&events[block.made()]) < now {
                block.category = Category::Temporaries;
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
        f.debug_struct("Recorder").field("timeline", &self.timeline).finish_non_exhaustive()
    }
}
