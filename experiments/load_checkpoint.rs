//! Loading a checkpoint: how much memory a load takes at its peak and afterwards, and on which device the loaded state lands.
//!
//! Guide 003 warns twice. A checkpoint goes back to the device that it was saved on unless the load is told otherwise, and can run it out
//! of memory; and the loaded state keeps its memory until it is dropped. Both are about `torch.load`, so PyTorch's twin in Python measures
//! them, and beside it stand tch's readers and our own, which maps a safetensors file.
//!
//! Claims: load-device, load-del.

use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tch::nn::{Adam, OptimizerConfig};
use tch::{Device, Reduction, Tensor};
use tempfile::TempDir;
use vramlab::measure::{Bench, Probe, Quantity, Step, Timing, is_out_of_memory};
use vramlab::models::Model;
use vramlab::process;
use vramlab::protocol::*;
use vramlab::torch::{SafetensorsFile, attempt, save_pickle, trim_heap};

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

/// Bytes of tensors on the model's device over those of the model: at the peak of the load, while the loaded state is held, and when it
/// is dropped.
const LOAD_PEAK: Metric = Metric { name: "load_peak", label: "peak during the load / model", unit: "1", pass: Pass::Memory };
const HELD: Metric = Metric { name: "held", label: "with the state held / model", unit: "1", pass: Pass::Memory };
const DROPPED: Metric = Metric { name: "dropped", label: "with the state dropped / model", unit: "1", pass: Pass::Memory };
/// Share of the loaded state's bytes that are on the model's device.
const LANDED: Metric = Metric { name: "landed", label: "share of the state on the device", unit: "1", pass: Pass::Memory };
/// 1 where the memory sufficed, 0 where it ran out.
const FITS: Metric = Metric { name: "fits", label: "fits", unit: "1", pass: Pass::Memory };
/// The same for the whole process: what the kernel counts beyond what there was before the model, over the bytes of the model.
const PROCESS_PEAK: Metric =
    Metric { name: "process_peak", label: "process, peak during the load / model", unit: "1", pass: Pass::Time };
const PROCESS_HELD: Metric =
    Metric { name: "process_held", label: "process, with the state held / model", unit: "1", pass: Pass::Time };
const PROCESS_DROPPED: Metric =
    Metric { name: "process_dropped", label: "process, with the state dropped / model", unit: "1", pass: Pass::Time };
/// The last after the C library was told to give back what nobody uses.
const PROCESS_TRIMMED: Metric =
    Metric { name: "process_trimmed", label: "process, dropped and trimmed / model", unit: "1", pass: Pass::Time };

pub const PROTOCOL: Protocol = Protocol {
    name: "load_checkpoint",
    title: "Loading a checkpoint",
    question: "How many times the model's memory does a load take, at its peak and until the loaded state is dropped, and where does the \
               state land?",
    hypothesis: "A reader that makes tensors of the whole file holds the model twice, one that takes the file into memory first three times; \
                 a mapped file needs the model and one tensor. torch.load and tch's own formats put tensors where they were saved unless told \
                 otherwise; safetensors knows no device. What is loaded stays until it is dropped.",
    factors: &[
        Factor { name: "model", meaning: "model", levels: &[] },
        Factor {
            name: BY,
            meaning: "who loads",
            levels: &[
                Level { name: "vramlab", meaning: "Rust, through tch or this project's own reader" },
                Level { name: "pytorch", meaning: "PyTorch in Python" },
            ],
        },
        Factor {
            name: "saved",
            meaning: "the device that the tensors were on when they were saved",
            levels: &[Level { name: "device", meaning: "the GPU" }],
        },
        Factor {
            name: "map",
            meaning: "the device that the reader is told",
            levels: &[
                Level { name: "none", meaning: "none: where it puts tensors by itself" },
                Level { name: "device", meaning: "the model's" },
                Level { name: "cpu", meaning: "the CPU" },
            ],
        },
        Factor { name: DEVICE_MEMORY, meaning: "memory of the device", levels: &[] },
        Factor {
            name: "reader",
            meaning: "what reads the file",
            levels: &[
                Level { name: "as-saved", meaning: "nothing is read: the model that was saved" },
                Level { name: "ot", meaning: "Tensor::load_multi, as VarStore::load of a `.ot`" },
                Level { name: "pickle", meaning: "Tensor::loadz_multi, as VarStore::load of a `.pt`" },
                Level { name: "safetensors", meaning: "Tensor::read_safetensors, as VarStore::load of a `.safetensors`" },
                Level {
                    name: "mapped",
                    meaning: "this project's SafetensorsFile: the file is mapped, and copied tensor by tensor",
                },
                Level { name: "load", meaning: "torch.load, and load_state_dict" },
                Level { name: "load-unrestricted", meaning: "torch.load(weights_only=False)" },
                Level { name: "load-mmap", meaning: "torch.load(mmap=True)" },
            ],
        },
        Factor {
            name: "state",
            meaning: "what becomes of the loaded state before a training step",
            levels: &[Level { name: "drop", meaning: "it is dropped" }, Level { name: "keep", meaning: "it is kept" }],
        },
    ],
    grids: &[
        of_process(&[Profile::Quick], &[SMALL, OURS, FROM_CPU, TO_CPU, READERS]),
        of_process(&[Profile::Quick], &[SMALL, TWIN, FROM_CPU, TO_CPU, axis("reader", &["as-saved", "load"])]),
        of_process(&[Profile::Full], &[LARGE, OURS, FROM_CPU, TO_CPU, READERS]),
        of_process(&[Profile::Full], &[LARGE, TWIN, FROM_CPU, TO_CPU, TWIN_READERS]),
        // Which device the state comes to needs a second device.
        of_device(&[Profile::Quick], &[SMALL, OURS, FROM_DEVICE, MAPS, READERS]),
        of_device(&[Profile::Full], &[LARGE, OURS, FROM_DEVICE, axis("map", &["none"]), READERS]),
        // What the process needs beside a GPU.
        Grid {
            passes: TIMED,
            ..of_device(&[Profile::Full], &[LARGE, OURS, FROM_DEVICE, axis("map", &["device", "cpu"]), READERS])
        },
        Grid { only_on: &[Platform::Gpu], ..of_device(&[Profile::Quick], &[SMALL, TWIN, FROM_DEVICE, MAPS, TWIN_READERS]) },
        Grid { only_on: &[Platform::Gpu], ..of_device(&[Profile::Full], &[LARGE, TWIN, FROM_DEVICE, MAPS, TWIN_READERS]) },
        // Or none at all: a file from a GPU on a machine without one.
        Grid {
            name: "a file from a GPU, without one",
            profiles: &[Profile::Quick, Profile::Full],
            studied: "map",
            axes: &[axis("model", &["mlp-2x64"]), TWIN, FROM_DEVICE, axis("reader", &["load"]), axis("map", &["cpu", "none"])],
            passes: &[Pass::Check],
            only_on: &[Platform::Cpu],
        },
        fits_loading(
            &[Profile::Quick],
            &[SMALL, OURS, FROM_DEVICE, axis(DEVICE_MEMORY, &["192MiB"]), LOADED, axis("map", &["none", "cpu"])],
        ),
        fits_loading(
            &[Profile::Full],
            &[LARGE, OURS, FROM_DEVICE, axis(DEVICE_MEMORY, &["384MiB"]), LOADED, axis("map", &["none", "cpu"])],
        ),
        fits_training(&[Profile::Quick], &[SMALL, OURS, FROM_CPU, TO_DEVICE, axis(DEVICE_MEMORY, &["600MiB"]), A_STATE, STATES]),
        fits_training(&[Profile::Full], &[LARGE, OURS, FROM_CPU, TO_DEVICE, axis(DEVICE_MEMORY, &["1300MiB"]), A_STATE, STATES]),
        Grid {
            only_on: &[],
            ..of_process(
                &[Profile::Smoke],
                &[axis("model", &["mlp-2x256"]), OURS, FROM_CPU, TO_CPU, axis("reader", &["as-saved", "mapped"])],
            )
        },
    ],
    metrics: &[
        LOAD_PEAK,
        HELD,
        DROPPED,
        PROCESS_PEAK,
        PROCESS_HELD,
        PROCESS_DROPPED,
        PROCESS_TRIMMED,
        LANDED,
        FITS,
        PEAK,
        Metric { name: "parameter_error", label: "error of the parameters", unit: "1", pass: Pass::Check },
        Metric { name: "raised", label: "error raised", unit: "1", pass: Pass::Check },
        TIME,
    ],
    checks: &[
        // PyTorch's own words where tensors of a GPU are to go back to one that is not there.
        Check {
            when: "by=pytorch map=none model=mlp-2x64",
            expect: Relation::Raises {
                message: "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False",
            },
        },
        // Every bit of every parameter.
        Check { when: "", expect: Relation::Equal { tolerance: 0.0 } },
    ],
    claims: &[
        Claim {
            id: "load-device",
            from: "003",
            text: "a checkpoint goes back to the device that it was saved on unless it is mapped to another, and can run it out of memory",
            judged_on: &[Platform::Python, Platform::Gpu, Platform::Dry],
            rule: Rule::All(&[
                Rule::Value {
                    metric: "raised",
                    of: "by=pytorch model=mlp-2x64 map=none",
                    confirm: Bound::AtLeast(1.0),
                    refute: Bound::AtMost(0.0),
                },
                Rule::Value {
                    metric: "raised",
                    of: "by=pytorch model=mlp-2x64 map=cpu",
                    confirm: Bound::AtMost(0.0),
                    refute: Bound::AtLeast(1.0),
                },
                Rule::Value { metric: LANDED.name, of: UNMAPPED, confirm: Bound::AtLeast(0.99), refute: Bound::AtMost(0.01) },
                Rule::Value { metric: LANDED.name, of: MAPPED_TO_CPU, confirm: Bound::AtMost(0.01), refute: Bound::AtLeast(0.99) },
                Rule::Value {
                    metric: FITS.name,
                    of: "saved=device map=none device-memory=192MiB|384MiB",
                    confirm: Bound::AtMost(0.0),
                    refute: Bound::AtLeast(1.0),
                },
            ]),
            meaning: Meaning {
                confirmed: "Say where to: without map_location a file from a GPU goes back to it ({effect}), beside the model that is there \
                            already, and a machine without that GPU cannot load it at all. Map to the CPU.",
                refuted: "Tensors come to the CPU whatever device they were saved on ({effect}).",
                depends: "It depends on the format: tensors go back to their device where {where}. Safetensors files know no device. For the \
                          others say where to, the CPU for instance, or the load may run the device out of memory.",
                inconclusive: "Not every part could be shown here ({effect}).",
            },
        },
        Claim {
            id: "load-del",
            from: "003",
            text: "the loaded state keeps its memory until it is dropped",
            judged_on: &[Platform::Cpu, Platform::Gpu, Platform::Dry, Platform::Python],
            rule: Rule::All(&[
                // On the CPU and for PyTorch in Python by the process, mapped files and all.
                Rule::Value {
                    metric: PROCESS_HELD.name,
                    of: WHOLE_PROCESS,
                    confirm: Bound::AtLeast(1.90),
                    refute: Bound::AtMost(1.10),
                },
                Rule::Value {
                    metric: PROCESS_TRIMMED.name,
                    of: WHOLE_PROCESS,
                    confirm: Bound::AtMost(1.10),
                    refute: Bound::AtLeast(1.90),
                },
                // On a GPU by the bytes of its tensors.
                Rule::Value { metric: HELD.name, of: MAPPED_TO_DEVICE, confirm: Bound::AtLeast(1.90), refute: Bound::AtMost(1.10) },
                Rule::Value {
                    metric: DROPPED.name,
                    of: MAPPED_TO_DEVICE,
                    confirm: Bound::AtMost(1.10),
                    refute: Bound::AtLeast(1.90),
                },
                Rule::Value { metric: FITS.name, of: "state=keep", confirm: Bound::AtMost(0.0), refute: Bound::AtLeast(1.0) },
                Rule::Value { metric: FITS.name, of: "state=drop", confirm: Bound::AtLeast(1.0), refute: Bound::AtMost(0.0) },
            ]),
            meaning: Meaning {
                confirmed: "Drop the loaded state as soon as the model has it: until then it takes the model's memory once more, \
                            and a training step that would fit does not.",
                refuted: "The loaded state holds no memory of its own here ({effect}).",
                depends: "The loaded state takes the model's memory once more where {where}; a mapped file leaves none on the device.",
                inconclusive: "The state holds memory, but not every part could be shown here.",
            },
        },
    ],
    published: &[],
    plots: &[
        Plot {
            name: "process",
            caption: "Peak of the whole process during a load, against the model itself",
            of: "saved=cpu map=cpu",
            metric: PROCESS_PEAK.name,
            kind: PlotKind::Bars { clusters: &["model", BY] },
        },
        Plot {
            name: "held",
            caption: "The whole process while the loaded state is held, against the model itself",
            of: "saved=cpu map=cpu",
            metric: PROCESS_HELD.name,
            kind: PlotKind::Bars { clusters: &["model", BY] },
        },
        Plot {
            name: "device",
            caption: "Peak of the device's bytes during a load, against the model itself",
            of: "saved=device",
            metric: LOAD_PEAK.name,
            kind: PlotKind::Bars { clusters: &["map", BY] },
        },
    ],
    threats: &[
        "The file has just been written and stands in the page cache, so times are those of copying and not of a disk.",
        "The peak of the process is the kernel's high-water mark of resident memory. There is none of the proportional size; what the two \
         differ in, shared libraries, is there before and after the load alike.",
        "What is dropped goes back to the C library, which keeps blocks of less than 32 MiB for the next request: the process may show no \
         less memory until malloc_trim, which the verdict allows it.",
        "A page of a library counts for a process by its share among all that map it; while other programs that use libtorch start and end, \
         the process moves by some megabytes for that reason alone.",
        "Pages of a mapped file count for the process while they are mapped, though the kernel can take them back at any time.",
        "A ratio to the model's bytes needs no large model, so the files are of moderate size; the model has no optimizer state in them.",
    ],
};

/// The cells of each claim: readers that hold a state, and where there is a device for it.
const UNMAPPED: Select =
    "model=mlp-8x2048|mlp-4x4096 saved=device map=none reader=ot|pickle|safetensors|views|load|load-unrestricted|load-mmap";
const MAPPED_TO_CPU: Select =
    "model=mlp-8x2048|mlp-4x4096 saved=device map=cpu reader=ot|pickle|safetensors|views|load|load-unrestricted|load-mmap";
const MAPPED_TO_DEVICE: Select = "saved=device map=device reader=ot|pickle|safetensors|views|load|load-unrestricted|load-mmap";
const WHOLE_PROCESS: Select = "saved=cpu map=cpu reader=ot|pickle|safetensors|views|load|load-unrestricted|load-mmap";

const SMALL: Axis = axis("model", &["mlp-8x2048"]);
const LARGE: Axis = axis("model", &["mlp-4x4096"]);
const OURS: Axis = axis(BY, &["vramlab"]);
const TWIN: Axis = axis(BY, &["pytorch"]);
const FROM_CPU: Axis = axis("saved", &["cpu"]);
const FROM_DEVICE: Axis = axis("saved", &["device"]);
const TO_CPU: Axis = axis("map", &["cpu"]);
const TO_DEVICE: Axis = axis("map", &["device"]);
const MAPS: Axis = axis("map", &["none", "device", "cpu"]);
const READERS: Axis = axis("reader", &["as-saved", "ot", "pickle", "safetensors", "views", "mapped"]);
const TWIN_READERS: Axis = axis("reader", &["as-saved", "load", "load-unrestricted", "load-mmap"]);
const LOADED: Axis = axis("reader", &["ot", "pickle", "safetensors", "views", "mapped"]);
const A_STATE: Axis = axis("reader", &["ot"]);
const STATES: Axis = axis("state", &["drop", "keep"]);

const TIMED: &[Pass] = &[Pass::Check, Pass::Memory, Pass::Time];

const fn of_process(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "memory of a load", profiles, studied: "reader", axes, passes: TIMED, only_on: &[Platform::Cpu] }
}

const fn of_device(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    let only_on = &[Platform::Gpu, Platform::Dry];
    Grid { name: "where the state lands", profiles, studied: "reader", axes, passes: &[Pass::Check, Pass::Memory], only_on }
}

/// A device with room for one and a half models.
const fn fits_loading(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    let only_on = &[Platform::Gpu, Platform::Dry];
    Grid { name: "does the load fit?", profiles, studied: "map", axes, passes: &[Pass::Memory], only_on }
}

/// A device with room for a training step, and not for one model more.
const fn fits_training(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "does training fit afterwards?", profiles, studied: "state", axes, passes: &[Pass::Memory], only_on: &[] }
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    let name = cell.level("model")?;
    let reader = match cell.level("reader")? {
        "as-saved" => Reader::AsSaved,
        "ot" => Reader::Ot,
        "pickle" => Reader::Pickle,
        "safetensors" => Reader::Safetensors,
        "views" => Reader::Views,
        "mapped" => Reader::Mapped,
        other => bail!("'{other}' is no reader of ours"),
    };
    let map = match cell.level("map")? {
        "none" => None,
        "device" => Some(bench.device),
        "cpu" => Some(Device::Cpu),
        other => bail!("'{other}' is no device to map to"),
    };
    let saved_on = if cell.level("saved")? == "device" { bench.device } else { Device::Cpu };
    let next = match cell.get("state") {
        None => Next::Nothing,
        Some("drop") => Next::Train { keep: false },
        Some("keep") => Next::Train { keep: true },
        Some(other) => bail!("'{other}' is nothing to do with the state"),
    };
    let file = File::write(name, saved_on, bench.seed, reader)?;
    // What writing left in the C library's heap would hide what the load takes.
    trim_heap();
    let before = process::proportional(std::process::id())?;
    let resident_before = process::resident()?;
    tch::manual_seed(bench.seed);
    let model = Model::named(name, bench.device)?;
    if !matches!(reader, Reader::AsSaved) {
        tch::no_grad(|| model.store.variables().values_mut().for_each(|variable| drop(variable.zero_())));
    }
    let bytes = model.store.variables().values().map(bytes).sum::<i64>() as f64;
    let may_run_out = cell.get(DEVICE_MEMORY).is_some();
    Ok(Box::new(Load { model, bytes, file, reader, map, next, before, resident_before, may_run_out }))
}

fn bytes(tensor: &Tensor) -> i64 {
    (tensor.numel() * tensor.kind().elt_size_in_bytes()) as i64
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Reader {
    AsSaved,
    Ot,
    Pickle,
    Safetensors,
    Views,
    Mapped,
}

#[derive(Debug, Clone, Copy)]
enum Next {
    Nothing,
    Train { keep: bool },
}

/// A checkpoint in a folder that goes with it.
struct File {
    path: PathBuf,
    _folder: TempDir,
}

impl File {
    /// Writes the model that the seed gives, in the reader's format, from the device that it is to be tagged with.
    fn write(model: &str, device: Device, seed: i64, reader: Reader) -> Result<File> {
        let folder = tempfile::Builder::new().prefix("vramlab-").tempdir().context("making a folder for the checkpoint")?;
        let path = folder.path().join(match reader {
            Reader::AsSaved | Reader::Ot => "weights.ot",
            Reader::Pickle => "weights.pt",
            Reader::Safetensors | Reader::Views | Reader::Mapped => "weights.safetensors",
        });
        tch::manual_seed(seed);
        let model = Model::named(model, device)?;
        let variables = model.store.variables();
        let mut named: Vec<(&str, &Tensor)> = variables.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        named.sort_by_key(|(name, _)| *name);
        let written = match reader {
            Reader::AsSaved => Ok(()),
            Reader::Ot => Tensor::save_multi(&named, &path).map_err(anyhow::Error::from),
            Reader::Pickle => save_pickle(&path, &named).map_err(anyhow::Error::from),
            Reader::Safetensors | Reader::Views | Reader::Mapped => {
                Tensor::write_safetensors(&named, &path).map_err(anyhow::Error::from)
            }
        };
        let room =
            || format!("writing a checkpoint to {}; TMPDIR names another folder for temporary files", folder.path().display());
        written.with_context(room)?;
        Ok(File { path, _folder: folder })
    }
}

/// Named tensors, as a reader gives them.
type State = Vec<(String, Tensor)>;

/// A state of the CPU on the device that it is mapped to.
fn moved(state: State, device: Option<Device>) -> Result<State> {
    let Some(device) = device else { return Ok(state) };
    state.into_iter().map(|(name, tensor)| Ok((name, tensor.f_to_device(device)?))).collect()
}

struct Load {
    model: Model,
    /// Of the model.
    bytes: f64,
    file: File,
    reader: Reader,
    map: Option<Device>,
    next: Next,
    /// Memory of the process before the model was made: proportional, and resident.
    before: u64,
    resident_before: u64,
    may_run_out: bool,
}

impl Load {
    /// Reads the file and copies what it gives into the model; the state is what a program then still holds.
    fn load(&self) -> Result<State> {
        let path: &Path = &self.file.path;
        let state = match (self.reader, self.map) {
            (Reader::AsSaved, _) => return Ok(State::new()),
            (Reader::Ot, None) => Tensor::load_multi(path)?,
            (Reader::Ot, Some(device)) => Tensor::load_multi_with_device(path, device)?,
            (Reader::Pickle, None) => Tensor::loadz_multi(path)?,
            (Reader::Pickle, Some(device)) => Tensor::loadz_multi_with_device(path, device)?,
            (Reader::Safetensors, device) => moved(Tensor::read_safetensors(path)?, device)?,
            (Reader::Views, device) => {
                let file = SafetensorsFile::open(path)?;
                let views = file.names().into_iter().map(|name| Ok((name.clone(), file.tensor(&name)?))).collect::<Result<_>>()?;
                moved(views, device)?
            }
            (Reader::Mapped, _) => {
                SafetensorsFile::open(path)?.load_into(&self.model.store)?;
                return Ok(State::new());
            }
        };
        let mut variables = self.model.store.variables();
        ensure!(state.len() == variables.len(), "the file has {} tensors and the model {}", state.len(), variables.len());
        for (name, tensor) in &state {
            // The formats of libtorch's modules write a dot in a name as a bar.
            let name = name.replace('|', ".");
            let variable = variables.get_mut(&name).with_context(|| format!("the model has no '{name}'"))?;
            tch::no_grad(|| variable.f_copy_(tensor))?;
        }
        Ok(state)
    }

    /// Loads, and trains one step where that is what follows.
    fn whole(&self) -> Result<State> {
        let mut state = self.load()?;
        if let Next::Train { keep } = self.next {
            if !keep {
                state.clear();
            }
            let batch = self.model.batch(8);
            let mut optimizer = Adam::default().build(&self.model.store, 0.0)?;
            self.model.loss(&self.model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean).f_backward()?;
            optimizer.step();
            optimizer.zero_grad();
        }
        Ok(state)
    }

    /// Memory of the process beyond what there was before the model, over the model's bytes.
    fn share(&self, now: u64, before: u64) -> f64 {
        (now as f64 - before as f64) / self.bytes
    }

    fn proportional(&self) -> Result<f64> {
        Ok(self.share(process::proportional(std::process::id())?, self.before))
    }
}

impl Step for Load {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        probe.at_rest();
        if probe.is_timing() {
            process::reset_peak_resident()?;
        }
        let loaded = attempt(|| self.whole());
        let state = match loaded {
            Err(e) if self.may_run_out && is_out_of_memory(&format!("{e:#}")) => {
                probe.figure(&FITS, 0.0);
                return Ok(());
            }
            loaded => loaded?,
        };
        if self.may_run_out {
            probe.figure(&FITS, 1.0);
            return Ok(());
        }
        if let Some(memory) = probe.memory() {
            probe.figure(&LOAD_PEAK, memory.requested_peak as f64 / self.bytes);
            probe.figure(&HELD, memory.requested as f64 / self.bytes);
            let device = self.model.store.device();
            let landed: i64 = state.iter().filter(|(_, tensor)| tensor.device() == device).map(|(_, tensor)| bytes(tensor)).sum();
            probe.figure(&LANDED, landed as f64 / self.bytes);
        }
        if probe.is_timing() {
            let peak = self.share(process::peak_resident()?, self.resident_before);
            let held = self.proportional()?;
            probe.sample(&PROCESS_PEAK, peak);
            probe.sample(&PROCESS_HELD, held);
        }
        drop(state);
        if probe.is_timing() {
            let dropped = self.proportional()?;
            trim_heap();
            let trimmed = self.proportional()?;
            probe.sample(&PROCESS_DROPPED, dropped);
            probe.sample(&PROCESS_TRIMMED, trimmed);
        }
        if let Some(memory) = probe.memory() {
            probe.figure(&DROPPED, memory.requested as f64 / self.bytes);
        }
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        let parameters = self.model.parameters().iter().map(Tensor::detach).collect();
        Ok(vec![Quantity { name: "parameter", tensors: parameters }])
    }

    /// A program loads once.
    fn timing(&self) -> Timing {
        Timing { warm_up_steps: 0, warm_up_seconds: 0.0, samples: 1, least_sample: 0.0 }
    }
}
