//! The loader against PyTorch's: the same files, the same job, the same number of workers, in the same rounds.
//!
//! JPEG files of some 500 x 375 pixels are read, decoded, randomly cropped and resized to 224 with antialias, mirrored at random and
//! normalised, in batches of 64; the PyTorch reference does it with torchvision and torch.utils.data.DataLoader, whose workers are
//! processes where ours are threads. `vramlab compare loader` runs this and prints the table. That the pixels are torchvision's within a
//! tolerance is tested elsewhere, with values that it made.

mod same_batches;
mod side_by_side;
mod stages;

use harness::lab::*;
use harness::process::proportional_of_tree;
use loader::*;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

const RATE: Metric = Metric::timed("rate", "images a second", "1");
const FIRST: Metric = Metric::timed("first_batch", "time to the first batch", "s");
const GAP: Metric = Metric::timed("gap", "gap between epochs", "s");
const PROPORTIONAL: Metric = Metric::timed("proportional", "memory of all processes", "B");
const PIXELS_ERROR: Metric = Metric::compared("pixels_error", "error of the pixels");

number! { Count as "images" "images in the data set" }
levels! { Size "pixels of an image, about": Photographs as "500x375" "", Thumbnails as "96x72" "" }
number! { Workers "workers; with 0 the training's own thread loads" }

fn main() -> ExitCode {
    harness::run(protocol())
}

pub fn protocol() -> Protocol {
    Protocol::new("loader", "The lab's image loader beside PyTorch's")
        .question(
            "How fast are images loaded, how soon is the first batch there, and how much memory does it take, against PyTorch's DataLoader \
             with as many workers?",
        )
        .hypothesis(
            "Threads that write into the batch's own memory need no copies between processes and no interpreter: more images a second, a \
             first batch without waiting for processes to start, and one process's memory.",
        )
        .grid(side_by_side::grid())
        .grid(same_batches::grid())
        .kind(SubjectKind::SelfCheck)
        .threat("The files are in the page cache: what is compared is decoding and transforming, not the disk.")
        .threat("PyTorch keeps 2 batches ahead for each worker, this loader 2 in all; both are the defaults. Workers stay between epochs on both sides.")
        .threat("Memory counts the whole process: a Python with torch and torchvision imported, or this program with libtorch.")
        .threat(
            "Stages are timed one image at a time behind all other figures: where PyTorch collates, samples lie in the cache that a whole \
             batch would not fit in.",
        )
}

/// The user's own images, if the variable that `vramlab compare loader --data` sets says where they are; else made-up ones. The PyTorch
/// reference reads the same folder, and finds it by the cell's levels.
fn folder(images: Count, size: Size) -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("VRAMLAB_IMAGES") {
        return Ok(PathBuf::from(folder));
    }
    let sides = match size {
        Size::Photographs => (500, 375),
        Size::Thumbnails => (96, 72),
    };
    Textured { images: usize::try_from(images.0)?, sides, ..Textured::default() }.folder(&cache_folder())
}

/// Two epochs and the beginning of a third; where nothing is timed, the first batch.
fn loading(images: Count, size: Size, workers: Workers, bench: &Bench) -> Result<Step> {
    let images = Arc::new(Images::new(ImageFolder::open(&folder(images, size)?)?, Transform::training(224)));
    let config = Config { batch: 64, workers: usize::try_from(workers.0)?, seed: bench.seed.unsigned_abs(), ..Config::default() };
    let step = Step::new(move |probe| {
        let start = Instant::now();
        let mut loader = Loader::<Images<ImageFolder>>::new(Arc::clone(&images), config)?;
        let mut epoch = loader.epoch(0)?;
        let first = epoch.next().context("the data set is empty")??;
        probe.emit(FIRST, start.elapsed().as_secs_f64());
        if !probe.is_timing() {
            return probe.compare(PIXELS_ERROR, || Ok(vec![first.samples]));
        }
        drop(first);
        epoch.try_for_each(|batch| batch.map(drop))?;
        drop(epoch);
        let start = Instant::now();
        let mut loaded = 0;
        for batch in loader.epoch(1)? {
            if loaded == 0 {
                probe.emit(GAP, start.elapsed().as_secs_f64());
            }
            loaded += batch?.indices.len();
        }
        probe.emit(RATE, loaded as f64 / start.elapsed().as_secs_f64());
        let mut epoch = loader.epoch(2)?;
        let held = epoch.next().context("the data set is empty")??;
        probe.emit(PROPORTIONAL, proportional_of_tree(std::process::id())?);
        drop(held);
        drop(epoch);
        drop(loader);
        if workers == Workers(0) { stages::emit(probe, &images, &config) } else { Ok(()) }
    });
    // A loader starts once in a process.
    Ok(step.timing(Timing { warm_up_steps: 0, warm_up_seconds: 0.0, samples: 1, ..Timing::default() }).times_itself())
}
