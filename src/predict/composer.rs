//! Many configurations of one search in one process, without running anything twice that they have in common.

use super::dry_run::predict;
use super::follower::{Fingerprint, State};
use super::plan::Tried;
use crate::dry::{Dry, Taken};
use crate::torch::{self, Backend, Event, Phase, Timeline};
use crate::training::{CheckpointPolicy, Configuration, OptimizerKind, Precision};
use anyhow::Result;
use std::collections::HashMap;
use std::rc::Rc;

/// Predicts configurations of one model, settings and batch.
///
/// Configurations that differ only in the optimizer allocate the same in loading, forward and backward, and every step of an optimizer
/// allocates the same whatever went before. So what one configuration allocated is put together with another one's steps, and played on
/// the same allocator: its decisions are made again, each of them, but no operation of libtorch runs. The figures are those of a run of
/// the configuration itself.
#[derive(Debug)]
pub struct Composer<'a> {
    dry: &'a Dry,
    passes: HashMap<Passes, Rc<Timeline>>,
    steps: HashMap<(OptimizerKind, Precision), Rc<Timeline>>,
    /// Where memory ran out before any optimizer had done a step, which it then does with each.
    failed: HashMap<Passes, Tried>,
}

/// What decides what is allocated outside of an optimizer's steps.
type Passes = (String, i64, Precision, CheckpointPolicy, i64);

impl<'a> Composer<'a> {
    pub fn new(dry: &'a Dry) -> Composer<'a> {
        Composer { dry, passes: HashMap::new(), steps: HashMap::new(), failed: HashMap::new() }
    }

    /// Says what a configuration needs.
    ///
    /// # Errors
    /// As for [`predict`].
    pub fn try_out(&mut self, configuration: &Configuration) -> Result<Tried> {
        let Configuration { ref model, batch, settings, optimizer, precision, checkpoint, accumulate } = *configuration;
        let passes = (format!("{model} {settings:?}"), batch, precision, checkpoint, accumulate);
        let step = (optimizer, precision);
        if let Some(failed) = self.failed.get(&passes) {
            return Ok(failed.clone());
        }
        if let (Some(passes), Some(steps)) = (self.passes.get(&passes), self.steps.get(&step))
            && let Some(tried) = self.play(passes, steps, accumulate)?
        {
            return Ok(tried);
        }
        let prediction = predict(self.dry, configuration)?;
        let tried = Tried::from(&prediction);
        match &tried.out_of_memory {
            None => {
                let timeline = Rc::new(prediction.timeline);
                self.passes.insert(passes, timeline.clone());
                self.steps.entry(step).or_insert(timeline);
            }
            Some(out) if out.iteration <= 1 && out.phase != Phase::Step => {
                self.failed.insert(passes, tried.clone());
            }
            Some(_) => {}
        }
        Ok(tried)
    }

    /// Plays the passes of one timeline with the steps of another. None where that cannot be done, or memory runs out: then the
    /// configuration has to be run, for what PyTorch says.
    fn play(&self, passes: &Timeline, steps: &Timeline, accumulate: i64) -> Result<Option<Tried>> {
        let (Some(passes), Some(steps)) = (Parts::of(passes), Parts::of(steps)) else { return Ok(None) };
        torch::empty_cuda_cache()?;
        self.dry.reset_peaks()?;
        let mut player = Player { of_passes: Vec::new(), of_steps: Vec::new(), live: Fingerprint::default() };
        player.of_passes.resize_with(passes.timeline.made.len(), || None);
        player.of_steps.resize_with(steps.timeline.made.len(), || None);
        let played = player.play(&passes, &steps, accumulate)?;
        drop(player);
        let m = torch::cuda_memory(0)?;
        let tried = Tried {
            requested: m.requested_peak,
            allocated: m.allocated_peak,
            reserved: m.reserved_peak,
            device_used: m.reserved_peak + (m.total - m.free - m.reserved),
            out_of_memory: None,
        };
        torch::empty_cuda_cache()?;
        Ok(played.then_some(tried))
    }
}

/// A timeline taken apart.
struct Parts<'a> {
    timeline: &'a Timeline,
    load: &'a [Event],
    iterations: Vec<Iteration<'a>>,
}

#[derive(Default)]
struct Iteration<'a> {
    micro_batches: Vec<&'a [Event]>,
    step: &'a [Event],
}

impl<'a> Parts<'a> {
    /// None where a micro-batch that may be repeated, or a step, frees what it did not make, or a micro-batch keeps something.
    fn of(timeline: &'a Timeline) -> Option<Parts<'a>> {
        let mut parts = Parts { timeline, load: &[], iterations: Vec::new() };
        let mut from = 0;
        for mark in &timeline.marks {
            if mark.phase == Phase::Forward {
                // Until the end of the backward pass.
                continue;
            }
            let events = &timeline.events[from..mark.events];
            from = mark.events;
            let iteration = mark.iteration as usize;
            if parts.iterations.len() < iteration {
                parts.iterations.push(Iteration::default());
            }
            match (mark.phase, parts.iterations.last_mut()) {
                (Phase::Backward, Some(iteration)) => iteration.micro_batches.push(events),
                (Phase::Step, Some(iteration)) => iteration.step = events,
                _ => parts.load = events,
            }
        }
        let own = |events: &[Event], place: (u32, Phase)| {
            let made = |event: &Event| &timeline.made[event.made];
            events.iter().all(|event| !event.freed || (place.0 >= made(event).iteration && made(event).phase == place.1))
        };
        let steps = parts.iterations.iter().zip(1..).all(|(iteration, n)| own(iteration.step, (n, Phase::Step)));
        let repeated = parts.iterations.iter().filter(|i| i.micro_batches.len() > 1).filter_map(|i| i.micro_batches.last());
        (steps && repeated.into_iter().all(|events| is_balanced(timeline, events))).then_some(parts)
    }
}

/// Whether events free all that they make, and nothing else.
fn is_balanced(timeline: &Timeline, events: &[Event]) -> bool {
    let mut lives = vec![false; timeline.made.len()];
    events.iter().all(|event| std::mem::replace(&mut lives[event.made], !event.freed) == event.freed) && !lives.contains(&true)
}

/// Memory by its position among what the timelines made.
struct Player {
    of_passes: Vec<Option<Taken>>,
    of_steps: Vec<Option<Taken>>,
    live: Fingerprint,
}

impl Player {
    /// Plays two iterations as a [`crate::training::Trainer`] runs them. False where memory ran out.
    fn play(&mut self, passes: &Parts, steps: &Parts, accumulate: i64) -> Result<bool> {
        let Player { of_passes, of_steps, live } = self;
        if !events(passes.timeline, passes.load, of_passes, live) {
            return Ok(false);
        }
        for (of_one, step) in passes.iterations.iter().zip(&steps.iterations) {
            let mut settled = None;
            for micro_batch in 0..accumulate {
                let known = of_one.micro_batches.len() - 1;
                let micro_batch = of_one.micro_batches[known.min(usize::try_from(micro_batch)?)];
                if !events(passes.timeline, micro_batch, of_passes, live) {
                    return Ok(false);
                }
                let state = State::read(*live)?;
                if settled.replace(state) == Some(state) {
                    break;
                }
            }
            if !events(steps.timeline, step.step, of_steps, live) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Plays events; false where memory ran out.
fn events(timeline: &Timeline, events: &[Event], memory: &mut [Option<Taken>], live: &mut Fingerprint) -> bool {
    for event in events {
        let bytes = timeline.made[event.made].bytes;
        if event.freed {
            if let Some(taken) = memory[event.made].take() {
                live.remove(taken.address(), bytes);
            }
        } else {
            let Some(taken) = Taken::take(bytes.unsigned_abs()) else { return false };
            live.add(taken.address(), bytes);
            memory[event.made] = Some(taken);
        }
    }
    true
}
