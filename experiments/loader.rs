//! The loader against PyTorch's: the same files, the same job, the same number of workers, in the same rounds.
//!
//! JPEG files of some 500 x 375 pixels are read, decoded, randomly cropped and resized to 224 with antialias, mirrored at random and
//! normalised, in batches of 64; the twin does it with torchvision and torch.utils.data.DataLoader, whose workers are processes where
//! ours are threads. `vramlab compare loader` runs this and prints the table. That the pixels are torchvision's within a tolerance is
//! tested elsewhere, with values that it made.
//!
//! Claims: loader-rate, loader-first, loader-memory (of this project).

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use vramlab::data::*;
use vramlab::measure::{Bench, Probe, Quantity, Step, Timing};
use vramlab::process::proportional_of_tree;
use vramlab::protocol::*;

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

const RATE: Metric = Metric { name: "rate", label: "images a second", unit: "1", pass: Pass::Time };
const FIRST: Metric = Metric { name: "first_batch", label: "time to the first batch", unit: "s", pass: Pass::Time };
const GAP: Metric = Metric { name: "gap", label: "gap between epochs", unit: "s", pass: Pass::Time };
/// Where an image's time goes on one core, with 0 workers, after all other figures of the cell were taken.
const STAGES: [Metric; 4] =
    [stage("stage.read"), stage("stage.decode"), stage("stage.crop and resize"), stage("stage.flip and normalise")];
const PROPORTIONAL: Metric = Metric { name: "proportional", label: "memory of all processes", unit: "B", pass: Pass::Time };

pub const PROTOCOL: Protocol = Protocol {
    name: "loader",
    title: "The loader against PyTorch's",
    question: "How fast are images loaded, how soon is the first batch there, and how much memory does it take, against PyTorch's DataLoader \
               with as many workers?",
    hypothesis: "Threads that write into the batch's own memory need no copies between processes and no interpreter: more images a second, \
                 a first batch without waiting for processes to start, and one process's memory.",
    factors: &[
        Factor { name: "images", meaning: "images in the data set", levels: &[] },
        Factor { name: "size", meaning: "pixels of an image, about", levels: &[] },
        Factor { name: "workers", meaning: "workers", levels: &[Level { name: "0", meaning: "the training's own thread loads" }] },
        Factor {
            name: BY,
            meaning: "whose loader",
            levels: &[
                Level { name: "pytorch", meaning: "torch.utils.data.DataLoader with torchvision" },
                Level { name: "vramlab", meaning: "this project's" },
            ],
        },
    ],
    grids: &[
        side_by_side(&[Profile::Quick], &[axis("images", &["256"]), PHOTOGRAPHS, WORKERS, SIDES]),
        side_by_side(&[Profile::Full], &[axis("images", &["512"]), PHOTOGRAPHS, WORKERS, SIDES]),
        // Checks come before all that is timed, so these also make the images that both sides read.
        same_batches(&[Profile::Quick], &[axis("images", &["256"]), PHOTOGRAPHS, WORKERS], &[Pass::Check]),
        same_batches(&[Profile::Full], &[axis("images", &["512"]), PHOTOGRAPHS, WORKERS], &[Pass::Check]),
        same_batches(
            &[Profile::Smoke],
            &[axis("images", &["96"]), axis("size", &["96x72"]), axis("workers", &["0", "2"])],
            &[Pass::Check, Pass::Time],
        ),
    ],
    metrics: &[RATE, FIRST, GAP, PROPORTIONAL],
    checks: &[
        // Our batches do not depend on the number of workers. Random crops of two libraries cannot be compared.
        Check { when: "", expect: Relation::Equal { tolerance: 0.0 } },
    ],
    claims: &[
        Claim {
            id: "loader-rate",
            from: "",
            text: "this loader gives twice the images a second of PyTorch's with as many workers",
            judged_on: &[Platform::Cpu, Platform::Gpu],
            rule: against_pytorch(&RATE, "by=vramlab", Bound::AtLeast(2.0), Bound::AtMost(2.0)),
            meaning: Meaning {
                confirmed: "With as many workers it gives {effect} of PyTorch's images a second.",
                refuted: "It gives {effect} of PyTorch's images a second, less than twice.",
                depends: "It is twice as fast where {where}.",
                inconclusive: "It gives {effect} of PyTorch's images a second, about twice.",
            },
        },
        Claim {
            id: "loader-first",
            from: "",
            text: "its first batch comes 3x sooner at 2 workers or more",
            judged_on: &[Platform::Cpu, Platform::Gpu],
            rule: against_pytorch(&FIRST, "by=vramlab workers=2|4", Bound::AtMost(1.0 / 3.0), Bound::AtLeast(1.0 / 3.0)),
            meaning: Meaning {
                confirmed: "The first batch takes {effect} of PyTorch's time: all threads fill it together, and none has to start a Python.",
                refuted: "The first batch takes {effect} of PyTorch's time, more than a third.",
                depends: "It is three times as early where {where}.",
                inconclusive: "The first batch takes {effect} of PyTorch's time, about a third.",
            },
        },
        Claim {
            id: "loader-memory",
            from: "",
            text: "it takes a quarter of the memory",
            judged_on: &[Platform::Cpu, Platform::Gpu],
            rule: against_pytorch(&PROPORTIONAL, "by=vramlab workers=2|4", Bound::AtMost(0.25), Bound::AtLeast(0.25)),
            meaning: Meaning {
                confirmed: "All processes together take {effect} of PyTorch's memory.",
                refuted: "All processes together take {effect} of PyTorch's memory, more than a quarter.",
                depends: "It takes a quarter where {where}.",
                inconclusive: "All processes together take {effect} of PyTorch's memory, about a quarter.",
            },
        },
    ],
    published: &[],
    plots: &[
        Plot {
            name: "rate",
            caption: "Images a second against PyTorch's DataLoader with as many workers",
            of: "",
            metric: RATE.name,
            kind: PlotKind::Bars { clusters: &["workers"] },
        },
        Plot {
            name: "first",
            caption: "Time to the first batch against PyTorch's",
            of: "",
            metric: FIRST.name,
            kind: PlotKind::Bars { clusters: &["workers"] },
        },
        Plot {
            name: "memory",
            caption: "Memory of all processes against PyTorch's",
            of: "",
            metric: PROPORTIONAL.name,
            kind: PlotKind::Bars { clusters: &["workers"] },
        },
        Plot {
            name: "stages",
            caption: "Where the time of an image goes on one core",
            of: "workers=0",
            metric: RATE.name,
            kind: PlotKind::Shares { rows: &[BY], prefix: "stage." },
        },
    ],
    threats: &[
        "The files are in the page cache: what is compared is decoding and transforming, not the disk.",
        "PyTorch keeps 2 batches ahead for each worker, this loader 2 in all; both are the defaults. Workers stay between epochs on both sides.",
        "Memory counts the whole process: a Python with torch and torchvision imported, or this program with libtorch.",
        "Stages are timed one image at a time behind all other figures: where PyTorch collates, samples lie in the cache that a whole batch \
         would not fit in.",
    ],
};

const PHOTOGRAPHS: Axis = axis("size", &["500x375"]);
const WORKERS: Axis = axis("workers", &["0", "1", "2", "4"]);
const SIDES: Axis = axis(BY, &["pytorch", "vramlab"]);

const fn side_by_side(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "side by side", profiles, studied: BY, axes, passes: &[Pass::Time], only_on: &[Platform::Cpu, Platform::Gpu] }
}

const fn same_batches(profiles: &'static [Profile], axes: &'static [Axis], passes: &'static [Pass]) -> Grid {
    let only_on = &[Platform::Cpu, Platform::Gpu];
    Grid { name: "the same batches?", profiles, studied: "workers", axes, passes, only_on }
}

const fn stage(name: Text) -> Metric {
    Metric { name, label: "time of a stage", unit: "s", pass: Pass::Time }
}

const fn against_pytorch(metric: &Metric, of: Select, confirm: Bound, refute: Bound) -> Rule {
    Rule::Ratio { metric: metric.name, of, confirm, refute, scope: None }
}

/// The user's own images, if the variable that `vramlab compare loader --data` sets says where they are; else made-up ones. The twin reads
/// the same folder, and finds it by the cell's levels.
fn folder(cell: &Cell) -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("VRAMLAB_IMAGES") {
        return Ok(PathBuf::from(folder));
    }
    let size = cell.level("size")?;
    let sides = size.split_once('x').and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
    let sides = sides.with_context(|| format!("'{size}' is no size of images"))?;
    let images = usize::try_from(cell.number("images")?)?;
    Textured { images, sides, ..Textured::default() }.folder(&cache_folder())
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    if cell.is_twin() {
        bail!("PyTorch's twin runs this cell");
    }
    loading(&folder(cell)?, cell, bench)
}

/// The cell's loader on the images of a folder.
pub fn loading(folder: &Path, cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    let images = Arc::new(Images::new(ImageFolder::open(folder)?, Transform::training(224)));
    let workers = usize::try_from(cell.number("workers")?)?;
    let config = Config { batch: 64, workers, seed: bench.seed.unsigned_abs(), ..Config::default() };
    Ok(Box::new(Loading { images, config, first: None }))
}

/// Two epochs and the beginning of a third.
struct Loading {
    images: Arc<Images<ImageFolder>>,
    config: Config,
    first: Option<Batch>,
}

impl Loading {
    /// Does to single images what the loader does, with a clock between the stages.
    fn stages(&self, probe: &mut Probe) -> Result<()> {
        let (transform, source) = (self.images.transform(), self.images.source());
        let (mut file, mut decoder, mut pixels, mut resizing) =
            (Vec::new(), Decoder::default(), Pixels::default(), Resizing::default());
        let mut into = vec![0f32; 3 * 224 * 224];
        let mut seconds = [0.0; STAGES.len()];
        let images = source.len().min(2 * self.config.batch);
        for index in 0..images {
            let mut random = sample_random(self.config.seed, 0, index as u64);
            let mut clock = Instant::now();
            let mut lap = |stage: usize| {
                seconds[stage] += clock.elapsed().as_secs_f64();
                clock = Instant::now();
            };
            source.read(index, &mut file)?;
            lap(0);
            let draw = |width, height| transform.draw(width, height, &mut random);
            let (part, mirrored) = decoder.decode_for(&file, draw, transform.size, &mut pixels)?;
            lap(1);
            let resized = resizing.resize(&pixels, part, transform.size)?;
            lap(2);
            transform.write(resized, mirrored, &mut into)?;
            lap(3);
        }
        for (stage, seconds) in STAGES.iter().zip(seconds) {
            probe.sample(stage, seconds / images as f64);
        }
        Ok(())
    }
}

impl Step for Loading {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        let start = Instant::now();
        let mut loader = Loader::<Images<ImageFolder>>::new(Arc::clone(&self.images), self.config)?;
        let mut epoch = loader.epoch(0)?;
        let first = epoch.next().context("the data set is empty")??;
        probe.sample(&FIRST, start.elapsed().as_secs_f64());
        if !probe.is_timing() {
            self.first = Some(first);
            return Ok(());
        }
        drop(first);
        epoch.try_for_each(|batch| batch.map(drop))?;
        drop(epoch);
        let start = Instant::now();
        let mut images = 0;
        for batch in loader.epoch(1)? {
            if images == 0 {
                probe.sample(&GAP, start.elapsed().as_secs_f64());
            }
            images += batch?.indices.len();
        }
        probe.sample(&RATE, images as f64 / start.elapsed().as_secs_f64());
        let mut epoch = loader.epoch(2)?;
        let held = epoch.next().context("the data set is empty")??;
        probe.sample(&PROPORTIONAL, proportional_of_tree(std::process::id())? as f64);
        drop(held);
        drop(epoch);
        drop(loader);
        if self.config.workers == 0 { self.stages(probe) } else { Ok(()) }
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        let first = self.first.as_ref().context("nothing was loaded")?;
        Ok(vec![Quantity { name: "pixels", tensors: vec![first.samples.shallow_clone()] }])
    }

    fn timing(&self) -> Timing {
        Timing { warm_up_steps: 0, warm_up_seconds: 0.0, samples: 1, ..Timing::default() }
    }
}
