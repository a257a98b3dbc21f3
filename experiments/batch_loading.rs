//! A whole data set at once, in batches, or sample by sample: what does it take of memory and time?
//!
//! Guides 000 and 001 say that `Dataset` and `DataLoader` keep memory small because only what is needed is loaded, that batches and iterators
//! save the device's memory, and that batches need fewer transfers than single samples.
//!
//! Claims: loading-memory, batch-loading.

use anyhow::{Context, Result, bail};
use std::process::ExitCode;
use std::sync::Arc;
use tch::{Device, Kind, Tensor};
use vramlab::data::*;
use vramlab::measure::{Bench, Probe, Quantity, Step, Timing};
use vramlab::protocol::*;

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

pub const PROTOCOL: Protocol = Protocol {
    name: "batch_loading",
    title: "At once, in batches, or one by one",
    question: "What do batches from a loader save against loading a data set at once, and what do single samples cost?",
    hypothesis: "A data set that is loaded at once takes its whole size, on the host and again on the device. Batches take the loader's few \
                 batches on the host and one on the device, whatever the size of the data set. Single samples take still less and pay for \
                 each with a transfer and a kernel launch of its own.",
    factors: &[
        Factor { name: "samples", meaning: "samples in the data set", levels: &[] },
        Factor { name: "side", meaning: "side of an image in pixels", levels: &[] },
        Factor { name: "batch", meaning: "samples that are computed with at once", levels: &[] },
        Factor {
            name: "how",
            meaning: "how samples come",
            levels: &[
                Level { name: "everything", meaning: "one tensor with all samples, moved to the device at once and used in parts" },
                Level {
                    name: "batches",
                    meaning: "batches from a loader that is two ahead, each moved to the device when its turn comes",
                },
                Level { name: "samples", meaning: "single samples from such a loader, moved and used one by one" },
            ],
        },
    ],
    grids: &[
        ways(&[Profile::Smoke], &[axis("samples", &["64"]), axis("side", &["16"]), axis("batch", &["8"]), WAYS]),
        ways(&[Profile::Quick], &[axis("samples", &["2048"]), axis("side", &["48"]), axis("batch", &["16", "64", "256"]), WAYS]),
        ways(&[Profile::Full], &[axis("samples", &["8192"]), axis("side", &["224"]), axis("batch", &["16", "64", "256"]), WAYS]),
    ],
    metrics: &[
        PEAK,
        STEP_PEAK,
        Metric { name: "features_error", label: "difference of features", unit: "1", pass: Pass::Check },
        Metric { label: "time per sample", ..TIME },
    ],
    checks: &[Check { when: "", expect: Relation::Equal { tolerance: 1e-5 } }],
    claims: &[
        Claim {
            id: "loading-memory",
            from: "000 001",
            text: "a data set behind a loader keeps memory small",
            judged_on: &[Platform::Cpu],
            rule: Rule::Ratio {
                metric: PEAK.name,
                of: "how=batches",
                confirm: Bound::AtMost(0.5),
                refute: Bound::AtLeast(0.9),
                scope: None,
            },
            meaning: Meaning {
                confirmed: "Load in batches: the peak is {effect} of what loading everything takes, and does not grow with the data set.",
                refuted: "Batches save no memory here: they take {effect} of what loading everything does, since the loader's few batches are \
                          most of the data set.",
                depends: "Batches save half of the memory or more where {where}; with larger ones the loader's own few batches count.",
                inconclusive: "Batches save some memory ({effect}), less than half.",
            },
        },
        Claim {
            id: "batch-loading",
            from: "001",
            text: "batches and iterators save device memory",
            judged_on: &[Platform::Gpu, Platform::Dry],
            rule: Rule::Ratio {
                metric: PEAK.name,
                of: "how=batches|samples",
                confirm: Bound::AtMost(0.5),
                refute: Bound::AtLeast(0.9),
                scope: None,
            },
            meaning: Meaning {
                confirmed: "Move data to the device when its turn comes: the peak is {effect} of that of moving everything. Move batches, not single \
                            samples: they save as much, and each transfer has a price.",
                refuted: "Moving batches saves no device memory here ({effect}).",
                depends: "Moving batches saves half of the device's memory or more where {where}.",
                inconclusive: "Moving batches saves some device memory ({effect}), less than half.",
            },
        },
    ],
    published: &[],
    plots: &[
        Plot {
            name: "peak",
            caption: "Peak memory against loading everything at once",
            of: "",
            metric: PEAK.name,
            kind: PlotKind::Bars { clusters: &["batch"] },
        },
        Plot {
            name: "time",
            caption: "Time per sample, by batch size",
            of: "",
            metric: TIME.name,
            kind: PlotKind::Lines { x: "batch", series: &["how"] },
        },
    ],
    threats: &[
        "Samples are made up in memory: time is handing over and computing, without a disk or a decoder, which would hide the price of single \
         samples.",
        "On the CPU nothing is moved, so one peak holds what would be host and device memory.",
    ],
};

const WAYS: Axis = axis("how", &["everything", "batches", "samples"]);

const fn ways(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "memory and time", profiles, studied: "how", axes, passes: &[Pass::Check, Pass::Memory, Pass::Time], only_on: &[] }
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    let (samples, side) = (cell.number("samples")?, cell.number("side")?);
    let batch = cell.number("batch")?;
    let at_once = match cell.level("how")? {
        "everything" => samples,
        "batches" => batch,
        "samples" => 1,
        other => bail!("'{other}' is no way to load"),
    };
    // A dry device computes nothing, and gigabytes of what nobody looks at take their time.
    let is_looked_at = bench.platform != Platform::Dry;
    let data = FnDataset::new(usize::try_from(samples)?, &[3, side, side], move |index, _, into: &mut [f32]| {
        if is_looked_at {
            // Cheap, and different for each sample and place.
            into.iter_mut().enumerate().for_each(|(at, value)| *value = ((index * 7 + at) % 256) as f32 / 255.0);
        }
        Ok(0)
    });
    let weight = Tensor::randn([3 * side * side, FEATURES], (Kind::Float, bench.device)) / (side as f64);
    let (data, at_once) = (Arc::new(data), usize::try_from(at_once)?);
    Ok(Box::new(Features { data, at_once, batch, weight, device: bench.device, sums: None }))
}

/// Features that are computed of each sample.
const FEATURES: i64 = 16;

/// Computes features of all samples and adds them up.
struct Features<D: Dataset> {
    data: Arc<D>,
    /// Samples that are loaded and moved at once.
    at_once: usize,
    /// Samples that are computed with at once.
    batch: i64,
    weight: Tensor,
    device: Device,
    sums: Option<Tensor>,
}

impl<D: Dataset> Step for Features<D> {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        self.sums = None;
        probe.at_rest();
        let workers = usize::from(self.at_once < self.data.len());
        let config = Config { batch: self.at_once, workers, prefetch: 2, shuffle: false, ..Config::default() };
        let mut loader: Loader<D> = Loader::new(Arc::clone(&self.data), config)?;
        let mut sums = Tensor::zeros([FEATURES], (Kind::Float, self.device));
        for batch in loader.epoch(0)? {
            let samples = batch?.samples.to_device(self.device).flatten(1, -1);
            for part in samples.split(self.batch, 0) {
                sums += part.matmul(&self.weight).relu().sum_dim_intlist([0i64].as_slice(), false, Kind::Float);
            }
        }
        self.sums = Some(sums);
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        let sums = self.sums.as_ref().context("no step was run")?;
        Ok(vec![Quantity { name: "features", tensors: vec![sums.shallow_clone()] }])
    }

    fn items(&self) -> f64 {
        self.data.len() as f64
    }

    fn timing(&self) -> Timing {
        // An epoch is a step, which is long enough for few of them.
        Timing { warm_up_steps: 2, samples: 5, ..Timing::default() }
    }
}
