//! The largest batch that fits.

use super::dry_run::predict;
use super::plan::Tried;
use super::prediction::Prediction;
use crate::dry::{Dry, Taken};
use crate::torch::{self, Made, Timeline};
use crate::training::Configuration;
use anyhow::Result;
use serde::{Deserialize, Serialize};

/// Batches above the found one that are tried, one by one, at most: by running them, and by playing what they would allocate.
const MOST_RUN: i64 = 256;
const MOST_PLAYED: i64 = 16384;

/// The largest batch of a configuration that fits a card.
///
/// It is exact, not an extrapolation. This batch was run on the simulated GPU and fits. Each larger one up to `bound` was tried, too, and
/// none fits. Beyond `bound` none can: at one moment of the step the tensors alone ask for more bytes than the card has. That is needed
/// because whether a batch fits is not monotone: the allocator takes segments of other sizes for tensors of other sizes. The bytes that
/// tensors ask for are monotone, since each size is a constant plus a multiple of the batch. Three runs check that; then what a batch would
/// allocate is known without running it, and is played on the same allocator. What fits when it is played is run as well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Largest {
    /// Samples of one step; 0 where not even one of each micro-batch fits.
    pub batch: i64,
    /// What it needs.
    pub needs: Option<Tried>,
    /// What became of the next larger one.
    pub next: Option<Tried>,
    /// Batches above this ask for more than the card has.
    pub bound: i64,
    /// Whether each batch up to the bound was tried. Where single samples are tiny beside the allocator's segments there can be too many:
    /// then those up to `tried` were.
    pub exact: bool,
    pub tried: i64,
    /// Dry runs that it took.
    pub runs: u32,
    /// Batches that were only played.
    pub played: u32,
}

struct Runs<'a> {
    dry: &'a Dry,
    configuration: &'a Configuration,
    count: u32,
}

impl Runs<'_> {
    /// Predicts with so many samples in each micro-batch; none where that is beyond what libtorch can count.
    fn of(&mut self, micro_batch: i64) -> Result<Option<Prediction>> {
        let Some(batch) = micro_batch.checked_mul(self.configuration.accumulate) else { return Ok(None) };
        let configuration = Configuration { batch, ..self.configuration.clone() };
        if configuration.validate().is_err() {
            return Ok(None);
        }
        self.count += 1;
        predict(self.dry, &configuration).map(Some)
    }

    fn fit(&mut self, micro_batch: i64) -> Result<bool> {
        Ok(self.of(micro_batch)?.is_some_and(|prediction| prediction.fits()))
    }
}

/// Finds the largest batch that fits; the batch of `configuration` says nothing, and its micro-batches are all equally large.
///
/// # Errors
/// As for [`predict`].
pub fn largest(dry: &Dry, configuration: &Configuration) -> Result<Largest> {
    let accumulate = configuration.accumulate;
    Configuration { batch: accumulate, ..configuration.clone() }.validate()?;
    torch::empty_cuda_cache()?;
    let room = torch::cuda_memory(0)?.free;
    let mut runs = Runs { dry, configuration, count: 0 };
    let (mut fits, mut fails) = (0, 1);
    while runs.fit(fails)? {
        (fits, fails) = (fails, fails.saturating_mul(2));
    }
    while fails - fits > 1 {
        let middle = fits + (fails - fits) / 2;
        if runs.fit(middle)? { fits = middle } else { fails = middle }
    }
    // The two next to the border tell how each tensor grows.
    let (bound, growth) = match (fits, runs.of(fits)?, runs.of(fails)?) {
        (1.., Some(below), Some(above)) => {
            let bound = bound(&below, &above, fails, room);
            (bound, if fits > 2 { Growth::between(&mut runs, below, fits)? } else { None })
        }
        _ => (fails - 1, None),
    };
    let most = if growth.is_some() { MOST_PLAYED } else { MOST_RUN };
    let top = bound.min(fails.saturating_add(most));
    let (mut best, mut played) = (fits, 0);
    for micro_batch in (fails + 1..=top).rev() {
        if let Some(growth) = &growth {
            played += 1;
            if !growth.fits(micro_batch)? {
                continue;
            }
        }
        if runs.fit(micro_batch)? {
            best = micro_batch;
            break;
        }
    }
    let tried = |prediction: Option<Prediction>| prediction.as_ref().map(Tried::from);
    Ok(Largest {
        batch: best * accumulate,
        needs: if best > 0 { tried(runs.of(best)?) } else { None },
        next: tried(runs.of(best + 1)?),
        bound: bound * accumulate,
        exact: top == bound,
        tried: top.max(fails) * accumulate,
        runs: runs.count,
        played,
    })
}

/// What a step allocates, by the size of the micro-batch.
struct Growth {
    timeline: Timeline,
    /// The micro-batch that the timeline is of.
    at: i64,
    /// Bytes that each allocation has more for each sample more.
    more: Vec<i64>,
}

impl Growth {
    /// None where the sizes do not grow evenly, or something else than sizes differs.
    fn between(runs: &mut Runs, known: Prediction, at: i64) -> Result<Option<Growth>> {
        let (Some(before), Some(far)) = (runs.of(at - 1)?, runs.of(at / 2)?) else { return Ok(None) };
        let (before, far, timeline) = (before.timeline, far.timeline, known.timeline);
        if before.events != timeline.events || far.events != timeline.events {
            return Ok(None);
        }
        let more: Vec<i64> = timeline.made.iter().zip(&before.made).map(|(now, before)| now.bytes - before.bytes).collect();
        let evenly = |(now, (far, more)): (&Made, (&Made, &i64))| now.bytes - far.bytes == more * (at - at / 2) && *more >= 0;
        let even = timeline.made.iter().zip(far.made.iter().zip(&more)).all(evenly);
        Ok(even.then_some(Growth { timeline, at, more }))
    }

    /// Plays what a step with such micro-batches allocates.
    fn fits(&self, micro_batch: i64) -> Result<bool> {
        torch::empty_cuda_cache()?;
        let mut memory: Vec<Option<Taken>> = Vec::new();
        memory.resize_with(self.more.len(), || None);
        for event in &self.timeline.events {
            if event.freed {
                memory[event.made] = None;
                continue;
            }
            let bytes = self.timeline.made[event.made].bytes + self.more[event.made] * (micro_batch - self.at);
            memory[event.made] = Taken::take(bytes.unsigned_abs());
            if memory[event.made].is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The largest micro-batch whose tensors ask for no more than `room` bytes at any moment that both runs have gone through: `below`, which
/// fits, and `above` with one sample more, `fails` of them, which runs out of memory at some time.
fn bound(below: &Prediction, above: &Prediction, fails: i64, room: i64) -> i64 {
    let (mut live, mut growth) = (0, 0);
    let mut bound = i64::MAX;
    let pairs = below.timeline.events.iter().zip(&above.timeline.events);
    for (mine, its) in pairs.take_while(|(mine, its)| mine == its) {
        let bytes = above.timeline.made[its.made].bytes;
        let more = bytes - below.timeline.made[mine.made].bytes;
        let sign = if its.freed { -1 } else { 1 };
        live += sign * bytes;
        growth += sign * more;
        if growth > 0 {
            bound = bound.min(fails + (room - live).max(0) / growth);
        }
    }
    bound.max(fails)
}
