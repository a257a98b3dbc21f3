//! How many workers should load data, and what do the loader's other settings give?
//!
//! Guide 1 says that workers help and that too many hurt, guide 3 that two to four for each core are right, that workers which stay save
//! the start of each epoch, that more prefetched batches hide latency, and that a training without the loading bottleneck takes much less
//! time.
//!
//! The claims are about Python's `DataLoader`, whose workers are processes that hand whole batches over through shared memory; the PyTorch
//! reference `experiments/num_workers/step.py` measures it on the same files. This lab's own loader, whose workers are threads that fill one
//! batch together, stands beside it.

mod loading;
mod recipe;
mod training;
mod waiting;

use harness::lab::*;
use harness::process::proportional_of_tree;
use loader::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PROPORTIONAL: Metric = Metric::timed("proportional", "memory of all processes (PSS)", "B");
const SAMPLES_ERROR: Metric = Metric::compared("samples_error", "difference of samples");

levels! {
    Work as "transform" "what is done to a sample":
    Heavy "a 500 x 375 JPEG read, decoded, randomly cropped and resized to 224, flipped, normalised",
    Light "3 x 32 x 32 bytes in memory, normalised",
    Small "as heavy, from JPEG files of 96 x 72 to 32",
}
number! { Samples "samples in an epoch" }
levels! {
    Workers "workers":
    Nobody as "0" "the training thread loads by itself",
    One as "1" "",
    PerCore as "1x" "as many as the process may use cores",
    TwoPerCore as "2x" "twice as many as cores",
    ThreePerCore as "3x" "three times as many as cores",
    FourPerCore as "4x" "four times as many as cores",
}

/// Small, so that an epoch of a second has enough of them.
const BATCH: usize = 16;
/// A loader starts once in a process; the rounds give the spread.
const ONCE: Timing = Timing { warm_up_steps: 0, warm_up_seconds: 0.0, samples: 1, least_sample: 0.0 };

fn main() -> ExitCode {
    harness::run(protocol())
}

pub fn protocol() -> Protocol {
    Protocol::new("num_workers", "DataLoader workers")
        .question(
            "How many workers should load data, should they stay between epochs, how far should they be ahead, and how much does training \
             gain?",
        )
        .hypothesis(
            "Decoding images is work for a core, so workers help up to the number of cores and no further: beyond it they only share cores, \
             take memory and take time to start. More than that pays where workers wait for storage instead. Python pays for each epoch \
             with new processes unless they are kept; threads start in microseconds, so there keeping them gains little. More prefetched \
             batches help where batches take unequal times and the trainer would else wait for a slow one. Training gains what it waited \
             for: much where loading is the bottleneck, nothing where it was not.",
        )
        .grid(loading::grid())
        .grid(waiting::grid())
        .grid(training::grid())
        .grid(recipe::grid())
        .threat(
            "The files are in the page cache: what is measured is decoding and handing over, not a disk. Prefetching is measured with \
             samples that wait as a disk makes them wait.",
        )
        .threat("Epochs here last a second or less; a gap between epochs is a much smaller share of an hour.")
        .threat("On a CPU training and workers share the cores, so overlapping them gains little; on a GPU it gains what the CPU had to wait.")
        .threat("The PyTorch reference's random crops differ from ours; both draw them from the same distribution.")
        .threat(
            "The PyTorch reference imports torchvision's transforms alone, which start a second sooner and take less memory than all of \
             torchvision; the \
             experiment loader compares the memory of whole programs.",
        )
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Workers {
    fn count(self) -> usize {
        match self {
            Workers::Nobody => 0,
            Workers::One => 1,
            Workers::PerCore => cores(),
            Workers::TwoPerCore => 2 * cores(),
            Workers::ThreePerCore => 3 * cores(),
            Workers::FourPerCore => 4 * cores(),
        }
    }

    fn config(self) -> Config {
        Config { batch: BATCH, workers: self.count(), ..Config::default() }
    }
}

/// JPEG files of the work, and what is done to them.
fn images(work: Work, samples: Samples) -> Result<Arc<Images<ImageFolder>>> {
    let images = usize::try_from(samples.0)?;
    let (textured, size) = match work {
        Work::Heavy => (Textured { images, ..Textured::default() }, 224),
        Work::Small => (Textured { images, classes: 2, sides: (96, 72) }, 32),
        Work::Light => bail!("samples of the light work are no images"),
    };
    let folder = textured.folder(&cache_folder())?;
    Ok(Arc::new(Images::new(ImageFolder::open(&folder)?, Transform::training(size))))
}
