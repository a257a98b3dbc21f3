//! How many workers should load data, and what do the loader's other settings give?
//!
//! Guide 000 says that workers help and that too many hurt, guide 002 that two to four for each core are right, that workers which stay save the
//! start of each epoch, that more prefetched batches hide latency, and that a training without the loading bottleneck takes much less time.
//!
//! The claims are about Python's `DataLoader`, whose workers are processes that hand whole batches over through shared memory; the twin
//! `peers/pytorch/num_workers.py` measures it on the same files. This lab's own loader, whose workers are threads that fill one batch
//! together, stands beside it.
//!
//! Claims: workers-faster, workers-too-many, workers-2-4x, persistent-workers, prefetch-factor, loading-total.

use anyhow::{Context, Result, bail};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tch::nn::{Module, OptimizerConfig};
use tch::{Device, Kind, Reduction, Tensor, nn};
use vramlab::data::*;
use vramlab::measure::{Bench, Probe, Quantity, Step, Timing};
use vramlab::models::Model;
use vramlab::process;
use vramlab::protocol::*;

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

const RATE: Metric = Metric { name: "rate", label: "samples per second", unit: "1", pass: Pass::Time };
const FIRST: Metric = Metric { name: "first_batch", label: "time to the first batch", unit: "s", pass: Pass::Time };
const GAP_NEW: Metric = Metric { name: "gap_new", label: "gap between epochs, new workers", unit: "s", pass: Pass::Time };
const GAP_KEPT: Metric = Metric { name: "gap_kept", label: "gap between epochs, kept workers", unit: "s", pass: Pass::Time };
const GAP_RATIO: Metric =
    Metric { name: "gap_ratio", label: "gap with kept workers over gap with new ones", unit: "1", pass: Pass::Time };
const GAP_SHARE: Metric =
    Metric { name: "gap_share", label: "gap with new workers as a share of the epoch", unit: "1", pass: Pass::Time };
const PROPORTIONAL: Metric = Metric { name: "proportional", label: "memory of all processes (PSS)", unit: "B", pass: Pass::Time };
const STEADY: Metric = Metric { name: "steady_rate", label: "samples per second, steady samples", unit: "1", pass: Pass::Time };
const JITTERING: Metric =
    Metric { name: "jittering_rate", label: "samples per second, jittering samples", unit: "1", pass: Pass::Time };

pub const PROTOCOL: Protocol = Protocol {
    name: "num_workers",
    title: "Workers that load data",
    question: "How many workers should load data, should they stay between epochs, how far should they be ahead, and how much does training \
               gain?",
    hypothesis: "Decoding images is work for a core, so workers help up to the number of cores and no further: beyond it they only share \
                 cores, take memory and take time to start. More than that pays where workers wait for storage instead. Python pays for \
                 each epoch with new processes unless they are kept; threads start in microseconds, so there keeping them gains little. \
                 More prefetched batches help where batches take unequal times and the trainer would else wait for a slow one. Training \
                 gains what it waited for: much where loading is the bottleneck, nothing where it was not.",
    factors: &[
        Factor {
            name: BY,
            meaning: "whose loader",
            levels: &[
                Level { name: "vramlab", meaning: "threads that fill one batch together" },
                Level { name: "pytorch", meaning: "torch.utils.data.DataLoader, whose workers are processes" },
            ],
        },
        Factor {
            name: "transform",
            meaning: "what is done to a sample",
            levels: &[
                Level {
                    name: "heavy",
                    meaning: "a 500 x 375 JPEG read, decoded, randomly cropped and resized to 224, flipped, normalised",
                },
                Level { name: "light", meaning: "3 x 32 x 32 bytes in memory, normalised" },
                Level { name: "small", meaning: "as heavy, from JPEG files of 96 x 72 to 32" },
            ],
        },
        Factor { name: "samples", meaning: "samples in an epoch", levels: &[] },
        Factor {
            name: "workers",
            meaning: "workers",
            levels: &[
                Level { name: "0", meaning: "the training thread loads by itself" },
                Level { name: "1x", meaning: "as many as the process may use cores" },
                Level { name: "2x", meaning: "twice as many as cores" },
                Level { name: "3x", meaning: "three times as many as cores: the middle of what guide 002 advises" },
                Level { name: "4x", meaning: "four times as many as cores" },
            ],
        },
        Factor { name: "prefetch", meaning: "batches prefetched for each worker", levels: &[] },
        Factor {
            name: "model",
            meaning: "what is trained",
            levels: &[
                Level { name: "pooled", meaning: "a linear layer on the image shrunk to 8 x 8: training waits for loading" },
                Level { name: "convolutions", meaning: "three convolutions: loading waits for training" },
                Level { name: "resnet50", meaning: "ResNet-50" },
            ],
        },
    ],
    grids: &[
        loading(&[Profile::Smoke], &[OURS, axis("transform", &["small"]), axis("samples", &["16"]), AT_ONCE]),
        loading(&[Profile::Quick], &[OURS, HEAVY, axis("samples", &["256"]), FEW_COUNTS]),
        loading(&[Profile::Quick], &[TWIN, HEAVY, axis("samples", &["256"]), FEW_COUNTS]),
        loading(&[Profile::Full], &[OURS, HEAVY, axis("samples", &["2048"]), COUNTS]),
        loading(&[Profile::Full], &[TWIN, HEAVY, axis("samples", &["2048"]), COUNTS]),
        loading(&[Profile::Full], &[OURS, LIGHT, axis("samples", &["50000"]), COUNTS]),
        loading(&[Profile::Full], &[TWIN, LIGHT, axis("samples", &["50000"]), COUNTS]),
        waiting(&[Profile::Quick, Profile::Full], &[OURS, WAITING]),
        waiting(&[Profile::Quick, Profile::Full], &[TWIN, WAITING]),
        training(
            &[Profile::Smoke],
            &[axis("transform", &["small"]), axis("samples", &["16"]), axis("model", &["pooled"]), AT_ONCE],
        ),
        training(&[Profile::Quick], &[HEAVY, axis("samples", &["256"]), axis("model", &["pooled"]), AT_ONCE]),
        training(&[Profile::Quick], &[HEAVY, axis("samples", &["48"]), axis("model", &["convolutions"]), AT_ONCE]),
        training(&[Profile::Full], &[HEAVY, axis("samples", &["2048"]), axis("model", &["pooled", "resnet50"]), AT_ONCE]),
    ],
    metrics: &[
        RATE,
        FIRST,
        GAP_NEW,
        GAP_KEPT,
        GAP_RATIO,
        GAP_SHARE,
        PROPORTIONAL,
        STEADY,
        JITTERING,
        Metric { name: "samples_error", label: "difference of samples", unit: "1", pass: Pass::Check },
        Metric { name: "parameters_error", label: "difference of parameters", unit: "1", pass: Pass::Check },
        TIME,
    ],
    checks: &[
        // On a GPU sums of gradients come in an order that changes.
        Check { when: "model=pooled|convolutions|resnet50", expect: Relation::Equal { tolerance: 1e-3 } },
        Check { when: "", expect: Relation::Equal { tolerance: 0.0 } },
    ],
    claims: &[
        Claim {
            id: "workers-faster",
            from: "000 002",
            text: "more workers load faster",
            judged_on: &[Platform::Cpu, Platform::Python],
            rule: Rule::Ratio {
                metric: RATE.name,
                of: "transform=heavy workers=1|1x",
                confirm: Bound::AtLeast(1.2),
                refute: Bound::AtMost(1.02),
                scope: None,
            },
            meaning: Meaning {
                confirmed: "Give the loader a worker for each core: {effect} of the images per second that the training thread loads alone.",
                refuted: "Workers do not load this faster ({effect}): look at what else takes the time, storage or the transform's own \
                          threads.",
                depends: "Workers load faster where {where}.",
                inconclusive: "Whether workers load faster could not be told here ({effect}).",
            },
        },
        Claim {
            id: "workers-too-many",
            from: "000",
            text: "too many workers make loading slower",
            judged_on: &[Platform::Cpu, Platform::Python],
            rule: Rule::Picked {
                metric: RATE.name,
                pick: Pick::Lowest,
                of: "transform=heavy workers=2x|3x|4x",
                over: "transform=heavy",
                confirm: Bound::AtMost(0.95),
                refute: Bound::AtLeast(0.98),
            },
            meaning: Meaning {
                confirmed: "Do not give it more workers than cores and hope: one such count loads only {effect} of the best.",
                refuted: "More workers than cores do no harm to speed here ({effect} of the best); they still take memory and time to start.",
                depends: "Too many workers slow loading down where {where}.",
                inconclusive: "More workers than cores may cost a little ({effect} of the best); they gain nothing that is worth it.",
            },
        },
        Claim {
            id: "workers-2-4x",
            from: "002",
            text: "two to four workers for each core are right",
            judged_on: &[Platform::Python],
            rule: Rule::Picked {
                metric: RATE.name,
                pick: Pick::Highest,
                of: "transform=heavy workers=2x|3x|4x",
                over: "transform=heavy workers=1x",
                confirm: Bound::AtLeast(1.05),
                refute: Bound::AtMost(1.02),
            },
            meaning: Meaning {
                confirmed: "Two to four workers for each core load {effect} of what one for each core does: try them.",
                refuted: "One worker for each core is enough: two to four for each give {effect} of its images per second, for more memory.",
                depends: "Two to four workers for each core are better where {where}.",
                inconclusive: "Two to four workers for each core are about as good as one ({effect}); start with one.",
            },
        },
        Claim {
            id: "persistent-workers",
            from: "002",
            text: "workers that stay save the start of each epoch",
            judged_on: &[Platform::Python],
            rule: Rule::Value {
                metric: GAP_RATIO.name,
                of: "transform=heavy workers=1x",
                confirm: Bound::AtMost(0.5),
                refute: Bound::AtLeast(0.5),
            },
            meaning: Meaning {
                confirmed: "Keep the workers: the gap between epochs is {effect} of what new ones cost. How much that is of your epoch depends on \
                            the epoch's length.",
                refuted: "Keeping the workers does not halve the gap between epochs ({effect} of it is left): what is left is loading the \
                          first batch.",
                depends: "Keeping the workers halves the gap where {where}.",
                inconclusive: "Keeping the workers about halves the gap between epochs ({effect}).",
            },
        },
        Claim {
            id: "prefetch-factor",
            from: "002",
            text: "more prefetched batches hide latency",
            judged_on: &[Platform::Cpu, Platform::Python],
            rule: Rule::All(&[gain_of_prefetch(STEADY.name), gain_of_prefetch(JITTERING.name)]),
            meaning: Meaning {
                confirmed: "Raise the prefetch factor from 2 to 4: {effect} of the samples per second.",
                refuted: "Leave the prefetch factor at 2 unless samples jitter: 4 gives {effect} of the samples per second and holds twice \
                          the batches.",
                depends: "More prefetched batches help where {where}.",
                inconclusive: "More prefetched batches help no more than the noise of this machine shows ({effect}).",
            },
        },
        Claim {
            id: "loading-total",
            from: "002",
            text: "without the loading bottleneck training takes much less time",
            judged_on: &[Platform::Cpu, Platform::Gpu],
            rule: Rule::Ratio {
                metric: TIME.name,
                of: "transform=heavy model=pooled|convolutions|resnet50 workers=1x",
                confirm: Bound::AtMost(1.0 / 1.2),
                refute: Bound::AtLeast(1.0 / 1.02),
                scope: None,
            },
            meaning: Meaning {
                confirmed: "Load with workers: an epoch takes {effect} of its time.",
                refuted: "Loading is not the bottleneck of these trainings: with workers an epoch takes {effect} of its time.",
                depends: "Workers shorten training where {where}; where the device is busy anyway there is nothing to win.",
                inconclusive: "Workers shorten an epoch to {effect} of its time, less than claimed or not sure.",
            },
        },
    ],
    published: &[],
    plots: &[
        Plot {
            name: "rate",
            caption: "Samples per second by number of workers, against none",
            of: "",
            metric: RATE.name,
            kind: PlotKind::Bars { clusters: &[BY, "transform"] },
        },
        Plot {
            name: "epoch",
            caption: "Time of a training epoch with workers, against none",
            of: "",
            metric: TIME.name,
            kind: PlotKind::Bars { clusters: &["model"] },
        },
    ],
    threats: &[
        "The files are in the page cache: what is measured is decoding and handing over, not a disk. Prefetching is measured with samples that \
         wait as a disk makes them wait.",
        "Epochs here last a second or less; a gap between epochs is a much smaller share of an hour.",
        "On a CPU training and workers share the cores, so overlapping them gains little; on a GPU it gains what the CPU had to wait.",
        "The twin's random crops differ from ours; both draw them from the same distribution.",
        "The twin imports torchvision's transforms alone, which start a second sooner and take less memory than all of torchvision; the \
         experiment loader compares the memory of whole programs.",
    ],
};

const OURS: Axis = axis(BY, &["vramlab"]);
const TWIN: Axis = axis(BY, &["pytorch"]);
const HEAVY: Axis = axis("transform", &["heavy"]);
const LIGHT: Axis = axis("transform", &["light"]);
const COUNTS: Axis = axis("workers", &["0", "1", "1x", "2x", "4x"]);
const FEW_COUNTS: Axis = axis("workers", &["0", "1x", "3x"]);
const AT_ONCE: Axis = axis("workers", &["0", "1x"]);
const WAITING: Axis = axis("prefetch", &["2", "4"]);
const TIMED: &[Pass] = &[Pass::Check, Pass::Time];

const fn loading(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "loading alone", profiles, studied: "workers", axes, passes: TIMED, only_on: &[] }
}

const fn waiting(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "samples that wait for storage", profiles, studied: "prefetch", axes, passes: TIMED, only_on: &[] }
}

const fn training(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "training", profiles, studied: "workers", axes, passes: TIMED, only_on: &[] }
}

const fn gain_of_prefetch(metric: &'static str) -> Rule {
    Rule::Ratio { metric, of: "prefetch=4", confirm: Bound::AtLeast(1.05), refute: Bound::AtMost(1.02), scope: None }
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    if cell.get("prefetch").is_some() {
        let per_worker = usize::try_from(cell.number("prefetch")?)?;
        return Ok(Box::new(Waiting { prefetch: per_worker * cores(), given: Vec::new() }));
    }
    let config = Config { batch: BATCH, workers: workers(cell.level("workers")?)?, ..Config::default() };
    let samples = usize::try_from(cell.number("samples")?)?;
    let (images, size) = match cell.level("transform")? {
        "heavy" => (Textured { images: samples, ..Textured::default() }, 224),
        "small" => (Textured { images: samples, classes: 2, sides: (96, 72) }, 32),
        "light" => {
            let pixels: Vec<u8> = (0..samples * 3 * 32 * 32).map(|at| (at * 31 % 251) as u8).collect();
            let light = FnDataset::new(samples, &[3, 32, 32], move |index, _, into: &mut [f32]| {
                let bytes = &pixels[index * into.len()..][..into.len()];
                into.iter_mut().zip(bytes).for_each(|(value, byte)| *value = f32::from(*byte) / 127.5 - 1.0);
                Ok((index % 10) as i64)
            });
            return Ok(Box::new(Loading { data: Arc::new(light), config, given: Vec::new() }));
        }
        other => bail!("'{other}' is no transform"),
    };
    let folder = images.folder(&cache_folder())?;
    let images = Arc::new(Images::new(ImageFolder::open(&folder)?, Transform::training(size)));
    match cell.get("model") {
        None => Ok(Box::new(Loading { data: images, config, given: Vec::new() })),
        Some(model) => Ok(Box::new(Training::new(images, config, model, bench.device)?)),
    }
}

/// Small, so that an epoch of a second has enough of them.
const BATCH: usize = 16;

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Workers that a level stands for: a number, or a multiple of the cores.
fn workers(level: &str) -> Result<usize> {
    let (number, unit) = level.strip_suffix('x').map_or((level, 1), |number| (number, cores()));
    Ok(number.parse::<usize>().with_context(|| format!("'{level}' is no number of workers"))? * unit)
}

/// Loads epochs and does nothing with them.
struct Loading<D: Dataset> {
    data: Arc<D>,
    config: Config,
    /// Samples and labels of an epoch, one batch after another.
    given: Vec<Tensor>,
}

impl<D: Dataset> Loading<D> {
    fn loader(&self) -> Result<Loader<D>> {
        Loader::new(Arc::clone(&self.data), self.config)
    }

    /// Seconds from the last batch of an epoch to the first of the next, for epochs of two batches a worker.
    fn gap(&self, persistent: bool) -> Result<f64> {
        let few = (2 * BATCH * self.config.workers.max(1)).min(self.data.len());
        let few = Subset::new(Arc::clone(&self.data), (0..few as u32).collect())?;
        let mut loader = Loader::new(few, Config { persistent, ..self.config })?;
        drain(loader.epoch(0)?)?;
        let start = Instant::now();
        let mut second = loader.epoch(1)?;
        second.next().context("an epoch without a batch")??;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Takes all batches of an epoch.
fn drain<D: Dataset>(mut epoch: Epoch<'_, D>) -> Result<()> {
    epoch.try_for_each(|batch| batch.map(drop))
}

impl<D: Dataset> Step for Loading<D> {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        let start = Instant::now();
        let mut loader = self.loader()?;
        if !probe.is_timing() {
            let batches = loader.epoch(0)?.collect::<Result<Vec<Batch>>>()?;
            self.given = batches.into_iter().flat_map(|batch| [batch.samples, batch.labels]).collect();
            return Ok(());
        }
        let mut first = loader.epoch(0)?;
        drop(first.next().context("an epoch without a batch")??);
        probe.sample(&FIRST, start.elapsed().as_secs_f64());
        drain(first)?;
        let start = Instant::now();
        drain(loader.epoch(1)?)?;
        let seconds = start.elapsed().as_secs_f64();
        probe.sample(&RATE, self.data.len() as f64 / seconds);
        let mut third = loader.epoch(2)?;
        let held = third.next().transpose()?;
        probe.sample(&PROPORTIONAL, process::proportional_of_tree(std::process::id())? as f64);
        drop((held, third));
        drop(loader);
        // What is judged of gaps is judged at as many workers as cores; starting more of them would take its time.
        if self.config.workers == cores() {
            let (new, kept) = (self.gap(false)?, self.gap(true)?);
            probe.sample(&GAP_NEW, new);
            probe.sample(&GAP_KEPT, kept);
            probe.sample(&GAP_RATIO, kept / new);
            probe.sample(&GAP_SHARE, new / (new + seconds));
        }
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "samples", tensors: self.given.iter().map(Tensor::shallow_clone).collect() }])
    }

    fn timing(&self) -> Timing {
        ONCE
    }
}

/// A loader starts once in a process; the rounds give the spread.
const ONCE: Timing = Timing { warm_up_steps: 0, warm_up_seconds: 0.0, samples: 1, least_sample: 0.0 };

/// Samples that wait, as for storage, and a trainer that takes as long for a batch as the workers do on average.
struct Waiting {
    prefetch: usize,
    given: Vec<Tensor>,
}

/// What a sample waits, on average.
const WAIT: Duration = Duration::from_millis(2);
const WAITING_BATCHES: usize = 16;

/// What one sample waits: always the same, or one in sixteen very long and the others half as long.
fn wait(index: usize, jittering: bool) -> Duration {
    match jittering {
        false => WAIT,
        // Fibonacci hashing spreads the long ones unevenly over batches.
        true if (index as u32).wrapping_mul(0x9e37_79b1) >> 28 == 0 => WAIT.mul_f64(8.5),
        true => WAIT / 2,
    }
}

impl Waiting {
    /// Samples that wait as long as `wait` says.
    fn loader(&self, wait: impl Fn(usize) -> Duration + Send + Sync + 'static) -> Result<Loader<impl Dataset>> {
        let data = FnDataset::new(WAITING_BATCHES * BATCH, &[3, 224, 224], move |index, _, into: &mut [f32]| {
            std::thread::sleep(wait(index));
            into.fill(index as f32);
            Ok(index as i64)
        });
        Loader::new(data, Config { batch: BATCH, workers: cores(), prefetch: self.prefetch, ..Config::default() })
    }

    /// Bytes of all processes while one batch is in use and the next ones lie ready.
    fn memory(&self) -> Result<f64> {
        let mut loader = self.loader(|_| Duration::ZERO)?;
        let mut epoch = loader.epoch(0)?;
        let held = epoch.next().transpose()?;
        std::thread::sleep(Duration::from_millis(100));
        let bytes = process::proportional_of_tree(std::process::id())?;
        drop(held);
        Ok(bytes as f64)
    }

    fn epoch(&self, jittering: bool, trainer: bool) -> Result<(f64, Vec<Tensor>)> {
        let mut loader = self.loader(move |index| if trainer { wait(index, jittering) } else { Duration::ZERO })?;
        let start = Instant::now();
        let mut labels = Vec::new();
        for batch in loader.epoch(0)? {
            labels.push(batch?.labels);
            if trainer {
                std::thread::sleep(WAIT * BATCH as u32 / cores() as u32);
            }
        }
        Ok(((WAITING_BATCHES * BATCH) as f64 / start.elapsed().as_secs_f64(), labels))
    }
}

impl Step for Waiting {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        if !probe.is_timing() {
            self.given = self.epoch(true, false)?.1;
            return Ok(());
        }
        probe.sample(&STEADY, self.epoch(false, true)?.0);
        probe.sample(&JITTERING, self.epoch(true, true)?.0);
        probe.sample(&PROPORTIONAL, self.memory()?);
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "samples", tensors: self.given.iter().map(Tensor::shallow_clone).collect() }])
    }

    fn timing(&self) -> Timing {
        ONCE
    }
}

type Network = Box<dyn Fn(&Tensor) -> Tensor>;

/// Trains an epoch on the device, with loading as it comes.
struct Training {
    loader: Loader<Images<ImageFolder>>,
    store: nn::VarStore,
    net: Network,
    optimizer: nn::Optimizer,
    device: Device,
    epoch: u64,
}

impl Training {
    fn new(images: Arc<Images<ImageFolder>>, config: Config, model: &str, device: Device) -> Result<Training> {
        let (store, net): (nn::VarStore, Network) = match model {
            "pooled" => {
                let store = nn::VarStore::new(device);
                let linear = nn::linear(store.root(), 3 * 8 * 8, CLASSES, nn::LinearConfig::default());
                (store, Box::new(move |x: &Tensor| linear.forward(&x.adaptive_avg_pool2d([8, 8]).flatten(1, -1))))
            }
            "convolutions" => {
                let store = nn::VarStore::new(device);
                let layer = |from, to, side, stride| {
                    nn::conv2d(
                        store.root(),
                        from,
                        to,
                        side,
                        nn::ConvConfig { stride, padding: side / 2, ..nn::ConvConfig::default() },
                    )
                };
                let layers = [layer(3, 32, 7, 4), layer(32, 64, 3, 1), layer(64, 128, 3, 2)];
                let linear = nn::linear(store.root(), 128, CLASSES, nn::LinearConfig::default());
                let net = move |x: &Tensor| {
                    let x = layers.iter().fold(x.shallow_clone(), |x, layer| layer.forward(&x).relu());
                    linear.forward(&x.mean_dim([2i64, 3].as_slice(), false, Kind::Float))
                };
                (store, Box::new(net))
            }
            name => {
                let Model { store, stem, blocks, head, .. } = Model::named(name, device)?;
                let net = move |x: &Tensor| {
                    let x = blocks.iter().fold(stem.forward(x, true), |x, block| block.forward(&x, true));
                    head.forward(&x, true)
                };
                (store, Box::new(net))
            }
        };
        let optimizer = nn::Sgd::default().build(&store, 1e-3)?;
        Ok(Training { loader: Loader::new(images, config)?, store, net, optimizer, device, epoch: 0 })
    }
}

const CLASSES: i64 = 8;

impl Step for Training {
    fn run(&mut self, _: &mut Probe) -> Result<()> {
        for batch in self.loader.epoch(self.epoch)? {
            let Batch { samples, labels, .. } = batch?;
            let (samples, labels) = (samples.to_device(self.device), labels.to_device(self.device));
            let loss = (self.net)(&samples).cross_entropy_loss::<Tensor>(&labels, None, Reduction::Mean, -100, 0.0);
            self.optimizer.zero_grad();
            loss.f_backward()?;
            self.optimizer.step();
        }
        self.epoch += 1;
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        let mut parameters: Vec<(String, Tensor)> = self.store.variables().into_iter().collect();
        parameters.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(vec![Quantity { name: "parameters", tensors: parameters.into_iter().map(|(_, tensor)| tensor).collect() }])
    }

    fn timing(&self) -> Timing {
        // An epoch is long enough to be measured by itself.
        Timing { warm_up_steps: 1, warm_up_seconds: 0.0, samples: 2, least_sample: 0.0 }
    }
}
