//! Where the bytes of a training step are: by phase and by what they are for.

use super::attribution::{Blocks, Followed, Known};
use super::{Held, Mark, Phase, Trainer};
use crate::native::Allocation;
use crate::torch::{Backend, Memory, is_out_of_memory};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tch::Tensor;

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
    /// Everything else: what lives only within a phase, and what libraries keep in PyTorch's allocator.
    pub temporaries: i64,
}

impl Categories {
    pub fn total(&self) -> i64 {
        self.named().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Each category with its name.
    pub fn named(&self) -> [(&'static str, i64); 6] {
        [
            ("parameters", self.parameters),
            ("gradients", self.gradients),
            ("optimizer state", self.optimizer_state),
            ("activations", self.activations),
            ("data", self.data),
            ("temporaries", self.temporaries),
        ]
    }

    /// These categories, each cut to what is left of `bytes` in the order given, and the rest as temporaries.
    fn fitted(bytes: i64, wanted: Categories, order: [fn(&mut Categories) -> &mut i64; 5]) -> Categories {
        let (mut wanted, mut fitted, mut left) = (wanted, Categories::default(), bytes);
        for category in order {
            let part = (*category(&mut wanted)).min(left).max(0);
            *category(&mut fitted) = part;
            left -= part;
        }
        Categories { temporaries: left, ..fitted }
    }
}

/// One phase of one iteration; with accumulation, that phase of all its micro-batches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Counts from 1; 0 while loading.
    pub iteration: u32,
    pub phase: Phase,
    /// Bytes that live at the phase's end; exact.
    pub live: i64,
    /// Most bytes that lived at once during the phase; exact.
    pub peak: i64,
    /// What lives at the end. Exact but for gradients that share their memory with something else, whose surplus counts as temporary.
    pub at_end: Categories,
    /// What lived at the peak. Exact where the allocator's events are followed. With a meter alone the sum is exact, and the parts are where
    /// the peak is at the phase's beginning or end; in between parameters, data and state are known, then activations count as what
    /// forward left alive and gradients as what backward left, each as far as the peak has room for it, and the rest as temporaries.
    /// What a checkpointed segment computes again is temporary.
    pub at_peak: Categories,
    /// The kinds of blocks that held most of the peak; none where no events are followed.
    pub largest: Vec<Held>,
    /// What else the device's meter shows at the end, by metric.
    pub others: BTreeMap<String, i64>,
}

/// Where memory ran out, and PyTorch's message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutOfMemory {
    /// Counts from 1; 0 while loading.
    pub iteration: u32,
    pub phase: Phase,
    pub message: String,
}

impl OutOfMemory {
    /// Reads an error of a phase of a training step; none where it is another error.
    pub fn of(error: &anyhow::Error, (iteration, phase): (u32, Phase)) -> Option<OutOfMemory> {
        let message = format!("{error:#}");
        if !is_out_of_memory(&message) {
            return None;
        }
        // libtorch appends a C++ stack of a hundred lines.
        let message = message.split("Exception raised from").next().unwrap_or_default().trim();
        let message = message.strip_prefix("Internal torch error: ").unwrap_or(message).to_string();
        Some(OutOfMemory { iteration, phase, message })
    }

    /// `loading`, or `backward of iteration 1`.
    pub fn place(&self) -> String {
        match self.phase {
            Phase::Load => "loading".to_string(),
            phase => format!("{phase} of iteration {}", self.iteration),
        }
    }
}

/// Follows a training step by its device's memory meter.
///
/// The meter counts for the whole process; what lived in it when the ledger was opened is left out of all figures.
pub struct Ledger<'a> {
    backend: &'a dyn Backend,
    base: i64,
    optimizer_state: i64,
    /// What lasts over a whole iteration without being of a category.
    lasting: i64,
    /// What the last forward pass left alive.
    activations: i64,
    stages: Vec<Stage>,
    events: Option<Events<'a>>,
}

/// Where an allocator's events come from, and the blocks that live by them.
struct Events<'a> {
    take: Box<dyn FnMut() -> Vec<Allocation> + 'a>,
    blocks: Blocks,
}

impl<'a> Ledger<'a> {
    /// Opens a ledger before anything is loaded.
    ///
    /// # Errors
    /// The meter's message.
    pub fn open(backend: &'a dyn Backend) -> Result<Ledger<'a>> {
        backend.reset_peaks()?;
        let base = backend.memory()?.requested;
        Ok(Ledger { backend, base, optimizer_state: 0, lasting: 0, activations: 0, stages: Vec::new(), events: None })
    }

    /// Follows the allocator's events too, which say what each byte of a peak is for. `take` gives those since it was last called, in order,
    /// and forgets them: [`crate::native::take_allocations`], where [`crate::native::record_allocations`] has begun the recording.
    #[must_use]
    pub fn following(mut self, mut take: impl FnMut() -> Vec<Allocation> + 'a) -> Ledger<'a> {
        // What was before is in none of the figures.
        drop(take());
        self.events = Some(Events { take: Box::new(take), blocks: Blocks::default() });
        self
    }

    /// The phases so far, in order.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The phase in which most bytes lived; of equal ones the first.
    pub fn peak(&self) -> Option<&Stage> {
        self.stages.iter().rev().max_by_key(|stage| stage.peak)
    }

    /// Enters a phase that has just ended.
    ///
    /// # Errors
    /// The meter's message.
    pub fn enter(&mut self, mark: Mark, trainer: &Trainer) -> Result<()> {
        let memory = self.backend.memory()?;
        let before = self.stages.last().map(|stage| stage.at_end).unwrap_or_default();
        let (live, peak) = (memory.requested - self.base, memory.requested_peak - self.base);
        let tensors = Tensors::of(trainer);
        let mut at_end = self.at_end(mark, &tensors, live, &before);
        let mut at_peak = self.at_peak(mark.phase, peak, &before, &at_end);
        let mut largest = Vec::new();
        if let Some(events) = &mut self.events {
            let followed = events.blocks.follow(mark.phase, &(events.take)(), &tensors.known());
            Followed { at_end, at_peak, largest } = followed;
            // The meter has the last word on the sums.
            at_end.temporaries += live - at_end.total();
            at_peak.temporaries += peak - at_peak.total();
        }
        let Memory { others, .. } = memory;
        let stage = Stage {
            iteration: mark.iteration,
            phase: mark.phase,
            live,
            peak,
            at_end,
            at_peak,
            largest,
            others: others.into_iter().map(|(metric, bytes)| (metric.to_string(), bytes)).collect(),
        };
        self.stage(stage);
        self.backend.reset_peaks()
    }

    /// Adds a stage, or joins it with that of an earlier micro-batch.
    fn stage(&mut self, stage: Stage) {
        let earlier = self.stages.iter().rposition(|s| (s.iteration, s.phase) == (stage.iteration, stage.phase));
        match earlier.map(|at| self.stages.remove(at)) {
            Some(earlier) if earlier.peak > stage.peak => {
                self.stages.push(Stage { peak: earlier.peak, at_peak: earlier.at_peak, largest: earlier.largest, ..stage });
            }
            _ => self.stages.push(stage),
        }
    }

    fn at_end(&mut self, mark: Mark, tensors: &Tensors, live: i64, before: &Categories) -> Categories {
        let mut known = Categories {
            parameters: bytes(&tensors.parameters),
            gradients: bytes(&tensors.gradients),
            optimizer_state: self.optimizer_state,
            data: bytes(&tensors.data),
            ..Categories::default()
        };
        match mark.phase {
            Phase::Load => {}
            Phase::Forward => {
                known.activations = live - known.total() - self.lasting;
                self.activations = known.activations;
            }
            Phase::Backward => {}
            // What a step leaves behind and the phase before did not have is the optimizer's.
            Phase::Step => {
                self.optimizer_state += live - before.total() - (known.gradients - before.gradients);
                known.optimizer_state = self.optimizer_state;
            }
        }
        known.temporaries = live - known.total();
        self.lasting = known.temporaries;
        known
    }

    fn at_peak(&self, phase: Phase, peak: i64, before: &Categories, at_end: &Categories) -> Categories {
        if let Some(known) = [at_end, before].into_iter().find(|categories| categories.total() == peak) {
            return *known;
        }
        let most = |category: fn(&Categories) -> i64| category(before).max(category(at_end));
        let wanted = Categories {
            parameters: most(|c| c.parameters),
            // In a forward pass there are the gradients of the micro-batches before it, or none.
            gradients: if phase == Phase::Forward { at_end.gradients } else { most(|c| c.gradients) },
            optimizer_state: most(|c| c.optimizer_state),
            activations: if phase == Phase::Step { 0 } else { self.activations },
            data: most(|c| c.data),
            temporaries: 0,
        };
        Categories::fitted(
            peak,
            wanted,
            [|c| &mut c.parameters, |c| &mut c.data, |c| &mut c.optimizer_state, |c| &mut c.activations, |c| &mut c.gradients],
        )
    }
}

/// The tensors of which is known what they are for.
struct Tensors {
    parameters: Vec<Tensor>,
    gradients: Vec<Tensor>,
    data: Vec<Tensor>,
}

impl Tensors {
    fn of(trainer: &Trainer) -> Tensors {
        let (model, batch) = (trainer.model(), trainer.batch());
        Tensors {
            parameters: model.store.variables().into_values().collect(),
            gradients: model.store.trainable_variables().iter().map(Tensor::grad).collect(),
            data: vec![batch.inputs.shallow_clone(), batch.targets.shallow_clone()],
        }
    }

    fn known(&self) -> Known {
        let addresses = |tensors: &[Tensor]| filled(tensors).map(|t| t.data_ptr() as u64).collect();
        Known { parameters: addresses(&self.parameters), gradients: addresses(&self.gradients), data: addresses(&self.data) }
    }
}

fn filled(tensors: &[Tensor]) -> impl Iterator<Item = &Tensor> {
    tensors.iter().filter(|t| t.defined() && t.numel() > 0)
}

/// Bytes of the memory that tensors stand in, each counted once. A tensor is taken to fill its memory.
fn bytes(tensors: &[Tensor]) -> i64 {
    let blocks: BTreeMap<usize, usize> =
        filled(tensors).map(|t| (t.data_ptr() as usize, t.numel() * t.kind().elt_size_in_bytes())).collect();
    blocks.values().map(|bytes| *bytes as i64).sum()
}
