//! Follows a training step on the simulated GPU: its timeline, and the state of the allocator between micro-batches.

use super::prediction::{Peak, Prediction};
use crate::dry::{self, Dry, HeldBlock};
use crate::torch::{self, Backend, Made, Mark, Numbers, Phase, Recorder, Recording};
use crate::training::{Onward, OutOfMemory};
use anyhow::Result;
use std::hash::Hasher;
use tch::nn::VarStore;
use tch::{Device, Tensor};

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
        let m = torch::cuda_memory(0)?;
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
    let mut hasher = Numbers::default();
    hasher.write_u64(address);
    hasher.write_i64(bytes);
    hasher.finish()
}

/// Follows steps on the simulated GPU. Recording belongs to the process, so one follower is used at a time.
#[derive(Debug)]
pub struct Follower<'a> {
    dry: &'a Dry,
    recorder: Recorder<'a>,
    fingerprint: Fingerprint,
    settled: Option<State>,
    /// Iteration and phase that are under way.
    at: (u32, Phase),
    /// What the allocator held when [`Follower::hold`] was called.
    held: Vec<HeldBlock>,
}

impl<'a> Follower<'a> {
    /// Starts to follow, before anything is loaded. What lived before is not seen.
    ///
    /// # Errors
    /// The simulated GPU's message.
    pub fn begin(dry: &'a Dry) -> Result<Follower<'a>> {
        let recorder = Recorder::begin(dry, Recording { meter: true, operations: false })?;
        Ok(Follower { dry, recorder, fingerprint: Fingerprint::default(), settled: None, at: (0, Phase::Load), held: Vec::new() })
    }

    /// The device that steps are to run on.
    pub fn device(&self) -> Device {
        self.dry.device()
    }

    /// Enters a phase that has just ended, as [`Recorder::ended`] does.
    ///
    /// Says whether the micro-batches that may follow can be left out, since each would do to the allocator what this one did.
    ///
    /// # Errors
    /// The meter's message.
    pub fn ended(&mut self, mark: Mark, store: &VarStore, data: &[&Tensor]) -> Result<Onward> {
        let seen = self.recorder.timeline().events.len();
        self.recorder.ended(mark, store, data)?;
        let timeline = self.recorder.timeline();
        for event in &timeline.events[seen..] {
            let Made { address, bytes, .. } = timeline.made[event.made];
            if event.freed { self.fingerprint.remove(address, bytes) } else { self.fingerprint.add(address, bytes) }
        }
        self.at = mark.following(i64::MAX);
        if mark.phase != Phase::Backward {
            if mark.phase == Phase::Step {
                self.settled = None;
            }
            return Ok(Onward::Next);
        }
        let state = State::read(self.fingerprint)?;
        let onward = if self.settled.as_ref() == Some(&state) { Onward::ToStep } else { Onward::Next };
        self.settled = Some(state);
        Ok(onward)
    }

    /// Keeps what the allocator holds now, segments and blocks, for a snapshot: after the last step, while the model still lives.
    ///
    /// # Errors
    /// The simulated GPU's message.
    pub fn hold(&mut self) -> Result<()> {
        self.held = dry::held_blocks()?;
        Ok(())
    }

    /// Says that no micro-batch follows, so that an error of the step is not taken for one of a forward pass.
    pub fn steps_next(&mut self) {
        self.at.1 = Phase::Step;
    }

    /// Ends following; `error` is what ended the steps before their time.
    ///
    /// # Errors
    /// That error, where it is another one than memory that ran out.
    pub(super) fn finish(self, error: Option<anyhow::Error>) -> Result<Prediction> {
        let Follower { recorder, at, mut held, .. } = self;
        let out_of_memory = match error {
            Some(error) => Some(OutOfMemory::of(&error, at).ok_or(error)?),
            None => None,
        };
        let rest = torch::cuda_memory(0)?;
        let loaded = !recorder.timeline().marks.is_empty();
        let parameters = loaded.then(|| recorder.parameters().iter().map(|(_, parameter)| parameter.numel()).sum());
        if out_of_memory.is_some() || !loaded {
            held = dry::held_blocks()?;
        }
        // Without an end of any phase all that was recorded is of the one under way.
        let timeline = if out_of_memory.is_some() || !loaded { recorder.end_within(at) } else { recorder.end() };
        let phases = timeline.stages();
        let most = |metric: &str, rest: i64| phases.iter().filter_map(|s| s.others.get(metric)).copied().fold(rest, i64::max);
        let reserved = most("reserved_peak", rest.reserved_peak);
        // What others have of the card never changes.
        let taken = rest.total - rest.free - rest.reserved;
        let top = timeline.peak();
        let (iteration, phase) = top.map_or(at, |top| timeline.at(top.event).unwrap_or(at));
        let categories = top.map(|top| top.live).unwrap_or_default();
        let tensors = top.map(|top| timeline.held_after(top.event)).unwrap_or_default();
        Ok(Prediction {
            parameters,
            requested: categories.total(),
            allocated: most("allocated_peak", rest.allocated_peak),
            reserved,
            device_used: reserved + taken,
            retries: rest.retries,
            peak: Peak { bytes: categories.total(), iteration, phase, categories, tensors },
            phases,
            out_of_memory,
            timeline,
            held,
        })
    }
}
