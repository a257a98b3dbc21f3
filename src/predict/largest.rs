//! The largest batch that fits.

use super::plan::Tried;
use super::prediction::{Prediction, predict};
use crate::dry::Dry;
use crate::native;
use crate::training::Configuration;
use anyhow::Result;
use serde::{Deserialize, Serialize};

/// Batches above the found one that are tried, one by one, at most.
const MOST_TRIED: i64 = 1024;

/// The largest batch of a configuration that fits a card.
///
/// It is exact, not an extrapolation: this batch was run on the dry device and fits, and so was each larger one up to `bound`, and none of
/// these fits. Beyond `bound` none can: at one moment of the step the tensors alone ask for more bytes than the card has. Whether a
/// batch fits is not monotone, since the allocator takes segments of different sizes for tensors of different sizes; the bytes that tensors
/// ask for are, since every size is a constant plus a multiple of the batch.
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
    /// then the 1024 next to the found one were tried.
    pub exact: bool,
    /// Dry runs that it took.
    pub runs: u32,
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
    native::empty_cuda_cache()?;
    let room = native::cuda_memory(0)?.free;
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
    let bound = match (fits, runs.of(fits)?, runs.of(fails)?) {
        (1.., Some(below), Some(above)) => bound(&below, &above, fails, room),
        _ => fails - 1,
    };
    let top = bound.min(fails.saturating_add(MOST_TRIED));
    let mut best = fits;
    for micro_batch in (fails + 1..=top).rev() {
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
        runs: runs.count,
    })
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
