//! Profiling tools: what each shows of time and memory, and what looking costs.
//!
//! Guide 002 writes a profiler into the training loop (`torch.profiler.profile(record_shapes=True)`) and says that one sees time and memory
//! by operation then; guide 001 names `memory_stats`. As 002 writes it, no memory is recorded: that needs `profile_memory`. Both guides read
//! `max_memory_allocated` as the peak of the GPU's memory, and leave out what is not in PyTorch's blocks.
//!
//! Claims: profiler, peak-statistics.

use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::process::ExitCode;
use std::time::Instant;
use tch::{Cuda, Device, Tensor};
use vramlab::measure::{Bench, Probe, Quantity, Step, Timing};
use vramlab::process;
use vramlab::protocol::*;
use vramlab::torch::profiler::{Operation, Range, Source};
use vramlab::torch::{Backend, Cpu, Mark, MemoryHistory, Phase, Profiled, Profiler, Profiling, Recorder, Recording, allocations};
use vramlab::training::{Configuration, Trainer};

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

const WHOLE: Metric = Metric { label: "time per step, with starting, stopping and writing", ..TIME };
const RECORDING: Metric = Metric { name: "recording", label: "time per step while it records", unit: "s", pass: Pass::Time };
const TIME_TOLD: Metric =
    Metric { name: "time_told", label: "time told by operation over the step's", unit: "1", pass: Pass::Time };
const MEMORY_TOLD: Metric =
    Metric { name: "memory_told", label: "bytes told by operation over those allocated", unit: "1", pass: Pass::Memory };
const EVENTS: Metric = Metric { name: "events", label: "events of a step", unit: "1", pass: Pass::Time };
const FILE: Metric = Metric { name: "file_size", label: "file, for each step", unit: "B", pass: Pass::Time };
const HOST: Metric = Metric { name: "host_memory", label: "host memory that it takes at first", unit: "B", pass: Pass::Time };
const ALLOCATED_SHARE: Metric =
    Metric { name: "allocated_of_device", label: "max_memory_allocated over the device's use", unit: "1", pass: Pass::Memory };
const RESERVED_SHARE: Metric =
    Metric { name: "reserved_of_device", label: "max_memory_reserved over the device's use", unit: "1", pass: Pass::Memory };
const OWN_TIME: Metric = Metric { name: "self_time.", label: "time of its own", unit: "s", pass: Pass::Time };
const ALLOCATED: Metric = Metric { name: "allocated.", label: "allocated", unit: "B", pass: Pass::Memory };

pub const PROTOCOL: Protocol = Protocol {
    name: "profiling",
    title: "Profiling tools",
    question: "What do the profiler, the allocator's history and its statistics show of a training step, and what does looking cost?",
    hypothesis: "The profiler notes each operation for about a microsecond, so it slows down steps of many small operations and not those \
                 of large ones. As guide 002 writes it, it shows no memory at all; with profile_memory it shows every byte. Statistics show \
                 no operation and cost next to nothing, and they miss what is not in PyTorch's blocks.",
    factors: &[
        Factor {
            name: "bound",
            meaning: "what limits the step",
            levels: &[
                Level { name: "launch", meaning: "many small operations" },
                Level { name: "compute", meaning: "large products" },
            ],
        },
        Factor { name: "model", meaning: "model", levels: &[] },
        Factor { name: "batch", meaning: "samples of a step", levels: &[] },
        Factor {
            name: BY,
            meaning: "who trains and looks",
            levels: &[
                Level { name: "vramlab", meaning: "this project, through libtorch's C++" },
                Level { name: "pytorch", meaning: "PyTorch in Python" },
            ],
        },
        Factor {
            name: "tool",
            meaning: "what looks at the step",
            levels: &[
                Level { name: "profiler-002", meaning: "the profiler as guide 002 writes it, with record_shapes" },
                Level { name: "profiler-memory", meaning: "and with profile_memory" },
                Level { name: "profiler-full", meaning: "and with with_flops and, in Python, with_stack" },
                Level { name: "timeline", meaning: "this project's recorder: each allocation with its phase and operation" },
                Level { name: "statistics", meaning: "the allocator's statistics, read after each step" },
                Level { name: "history", meaning: "the history of CUDA's allocator, for memory_viz" },
            ],
        },
    ],
    grids: &[
        tools(&[Profile::Quick], &[LAUNCH, axis("model", &["mlp-8x64"]), axis("batch", &["32"]), OURS, FEW_TOOLS]),
        tools(&[Profile::Quick], &[COMPUTE, axis("model", &["mlp-8x256"]), axis("batch", &["512"]), OURS, ONE_TOOL]),
        tools(&[Profile::Quick], &[LAUNCH, axis("model", &["mlp-8x64"]), axis("batch", &["32"]), TWIN, GUIDES_TOOLS]),
        tools(&[Profile::Full], &[LAUNCH, axis("model", &["mlp-8x64"]), axis("batch", &["32"]), OURS, EVERY_TOOL]),
        tools(&[Profile::Full], &[COMPUTE, axis("model", &["mlp-8x4096"]), axis("batch", &["4096"]), OURS, EVERY_TOOL]),
        tools(&[Profile::Full], &[LAUNCH, axis("model", &["mlp-8x64"]), axis("batch", &["32"]), TWIN, TWINS_TOOLS]),
        tools(&[Profile::Full], &[COMPUTE, axis("model", &["mlp-8x4096"]), axis("batch", &["4096"]), TWIN, TWINS_TOOLS]),
        of_cuda(&[Profile::Full], &[LAUNCH, axis("model", &["gpt-4x128"]), axis("batch", &["2"]), OURS, CUDAS_TOOLS]),
        of_cuda(&[Profile::Full], &[COMPUTE, axis("model", &["gpt2"]), axis("batch", &["4"]), OURS, CUDAS_TOOLS]),
        tools(&[Profile::Full], &[COMPUTE, axis("model", &["gpt2"]), axis("batch", &["2"]), OURS, ONE_TOOL]),
        tools(&[Profile::Smoke], &[LAUNCH, axis("model", &["mlp-2x32"]), axis("batch", &["16"]), OURS, ONE_TOOL]),
        of_cuda(
            &[Profile::Smoke],
            &[LAUNCH, axis("model", &["mlp-2x32"]), axis("batch", &["32"]), OURS, axis("tool", &["none", "history"])],
        ),
    ],
    metrics: &[WHOLE, RECORDING, TIME_TOLD, MEMORY_TOLD, EVENTS, FILE, HOST, ALLOCATED_SHARE, RESERVED_SHARE],
    checks: &[
        // The same kernels on the same numbers: who looks changes nothing.
        Check { when: "", expect: Relation::Equal { tolerance: 1e-5 } },
    ],
    claims: &[
        Claim {
            id: "profiler",
            from: "001 002",
            text: "profiling tools show time and memory by operation",
            judged_on: &[Platform::Cpu, Platform::Gpu, Platform::Python],
            rule: Rule::All(&[
                Rule::Value { metric: MEMORY_TOLD.name, of: PROFILERS, confirm: Bound::AtLeast(0.95), refute: Bound::AtMost(0.05) },
                Rule::Value { metric: TIME_TOLD.name, of: PROFILERS, confirm: Bound::AtLeast(0.75), refute: Bound::AtMost(0.50) },
            ]),
            meaning: Meaning {
                confirmed: "The profiler assigns what a step takes to its operations: {effect}.",
                refuted: "The profiler does not assign what a step takes to its operations: {effect}.",
                depends: "Write `profile_memory=True`: the profiler shows memory by operation where {where}. As guide 002 writes it, it \
                          records no byte, and nothing says so: each operation's memory reads 0. Time it shows either way ({effect}). Look \
                          at a few steps of a launch-bound training only: its table says what a recording costs.",
                inconclusive: "Too much of a step's time lies between its operations to say that the profiler shows it ({effect}).",
            },
        },
        Claim {
            id: "peak-statistics",
            from: "001 002",
            text: "max_memory_allocated is the peak GPU memory",
            judged_on: &[Platform::Gpu],
            rule: Rule::Value {
                metric: ALLOCATED_SHARE.name,
                of: "tool=statistics",
                confirm: Bound::AtLeast(0.95),
                refute: Bound::AtMost(0.90),
            },
            meaning: Meaning {
                confirmed: "The statistic is what the device reports, to {effect}.",
                refuted: "Do not size a card by max_memory_allocated: it is {effect} of what the device has in use. The context, the \
                          libraries and what the allocator holds without using it come on top.",
                depends: "The statistic is close to the device's use where {where}; over all cells it is {effect} of it. What it leaves \
                          out (the context, the libraries, cached blocks) is some hundred megabytes, which small models notice.",
                inconclusive: "The statistic is {effect} of what the device has in use, which is neither all nor clearly less.",
            },
        },
    ],
    published: &[],
    plots: &[
        Plot {
            name: "cost",
            caption: "Time of a step while a tool records it, against no tool",
            of: "",
            metric: RECORDING.name,
            kind: PlotKind::Bars { clusters: &["by", "bound"] },
        },
        Plot {
            name: "whole-cost",
            caption: "Time of a step with a tool's starting, stopping and writing, for three steps recorded at once",
            of: "",
            metric: WHOLE.name,
            kind: PlotKind::Bars { clusters: &["by", "bound"] },
        },
        Plot {
            name: "top-time",
            caption: "Operations with most time",
            of: "tool=profiler-memory",
            metric: RECORDING.name,
            kind: ranking(&[OWN_TIME, ALLOCATED]),
        },
        Plot {
            name: "top-memory",
            caption: "Operations that allocate most",
            of: "tool=profiler-memory",
            metric: MEMORY_TOLD.name,
            kind: ranking(&[ALLOCATED, OWN_TIME]),
        },
    ],
    threats: &[
        "Three steps are recorded at once, as guide 002's schedule does; stopping and writing are paid once for each recording, so longer \
         ones pay less for each step, and take more memory.",
        "While a recording runs, the time to note an operation counts as that of the operation around it.",
        "What was allocated is counted by the allocator (the same hooks that this project's timeline records); in Python on a CPU nothing \
         counts, so there the bytes are those of the tensors that operations returned.",
        "The device's use is what the driver says when the step is done: it includes the contexts of other processes.",
        "A process that is profiled for the first time pays for setting Kineto up; that is in the host memory, and not in any time.",
    ],
};

const PROFILERS: &str = "tool=profiler-002|profiler-memory|profiler-full";
const LAUNCH: Axis = axis("bound", &["launch"]);
const COMPUTE: Axis = axis("bound", &["compute"]);
const OURS: Axis = axis(BY, &["vramlab"]);
const TWIN: Axis = axis(BY, &["pytorch"]);
const EVERY_TOOL: Axis = axis("tool", &["none", "profiler-002", "profiler-memory", "profiler-full", "timeline", "statistics"]);
const ONE_TOOL: Axis = axis("tool", &["none", "profiler-memory"]);
const FEW_TOOLS: Axis = axis("tool", &["none", "profiler-002", "profiler-memory", "timeline", "statistics"]);
const GUIDES_TOOLS: Axis = axis("tool", &["none", "profiler-002", "profiler-memory"]);
const TWINS_TOOLS: Axis = axis("tool", &["none", "profiler-002", "profiler-memory", "profiler-full", "statistics", "history"]);
const CUDAS_TOOLS: Axis = axis("tool", &["none", "timeline", "statistics", "history"]);

const fn tools(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid {
        name: "tools",
        profiles,
        studied: "tool",
        axes,
        passes: &[Pass::Check, Pass::Memory, Pass::Time],
        // The profiler does not run beside a dry device's pretended CUDA.
        only_on: &[Platform::Cpu, Platform::Gpu],
    }
}

/// With tools that only CUDA's allocator has, real or dry.
const fn of_cuda(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "CUDA's own tools", only_on: &[Platform::Gpu, Platform::Dry], ..tools(profiles, axes) }
}

const fn ranking(columns: &'static [Metric]) -> PlotKind {
    PlotKind::Ranking { rows: &["by", "bound", "model", "batch"], part: "operation", columns, most: 10 }
}

/// Steps that are recorded at once in the time pass: guide 002's `active=3`.
const ACTIVE: usize = 3;
/// Recordings before the samples begin. The first of a process sets Kineto up.
const WARM_UP: usize = 2;
/// Allocations and frees that a history keeps.
const ENTRIES: u64 = 1_000_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tool {
    None,
    Profiler(Profiling),
    Timeline,
    Statistics,
    History,
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    let profiling = Profiling { shapes: true, cuda: bench.platform == Platform::Gpu, ..Profiling::default() };
    let tool = match cell.level("tool")? {
        "none" => Tool::None,
        "profiler-002" => Tool::Profiler(profiling),
        "profiler-memory" => Tool::Profiler(Profiling { memory: true, ..profiling }),
        "profiler-full" => Tool::Profiler(Profiling { memory: true, flops: true, ..profiling }),
        "timeline" => Tool::Timeline,
        "statistics" => Tool::Statistics,
        "history" => Tool::History,
        other => bail!("'{other}' is no tool"),
    };
    let configuration = Configuration::new(cell.level("model")?, cell.number("batch")?);
    let trainer = Trainer::load(&configuration, bench.device)?;
    let name = format!("{}-{}", cell.level("model")?, cell.level("tool")?);
    let backend: Option<Box<dyn Backend>> = match (bench.platform, bench.device) {
        // Of a dry device there is one meter, which the memory pass has.
        (Platform::Dry, _) => None,
        (_, Device::Cuda(index)) => Some(Box::new(vramlab::torch::Cuda::new(i32::try_from(index)?)?)),
        // Without `Cpu::new`, which would lift a limit on the memory.
        _ => Some(Box::new(Cpu)),
    };
    Ok(Box::new(Looked { tool, trainer, device: bench.device, backend, name, recordings: 0, host: 0 }))
}

/// A training that a tool looks at.
struct Looked {
    tool: Tool,
    trainer: Trainer,
    device: Device,
    /// The device where its memory is not what is measured; a dry one has nothing else.
    backend: Option<Box<dyn Backend>>,
    /// Of its files.
    name: String,
    /// How many the time pass has had so far.
    recordings: usize,
    /// Host memory that the first took.
    host: u64,
}

/// What a tool told of some steps.
#[derive(Default)]
struct Told {
    events: usize,
    /// Bytes of the allocations that it names an operation for; none where it tells of no operations.
    bytes: Option<i64>,
    /// Seconds of operations' own; none where it tells no time.
    seconds: Option<f64>,
    operations: Vec<Operation>,
    file: Option<Written>,
}

/// A tool's file, as its user has it written.
enum Written {
    /// A trace that is still to be written without its path.
    Trace(Box<Profiled>),
    Bytes(Vec<u8>),
}

impl Written {
    fn into_kept(self) -> Result<Vec<u8>> {
        match self {
            Written::Trace(mut profile) => profile.trace(),
            Written::Bytes(bytes) => Ok(bytes),
        }
    }

    /// Writes it, as a user would; gives its bytes.
    fn write(self) -> Result<u64> {
        let folder = tempfile::tempdir().context("making a folder for a recording")?;
        let path = folder.path().join("recording");
        match self {
            Written::Trace(mut profile) => profile.save(&path)?,
            Written::Bytes(bytes) => fs::write(&path, bytes).context("writing a recording")?,
        }
        Ok(fs::metadata(&path).context("looking at a recording that was just written")?.len())
    }
}

impl Looked {
    /// Has the tool look at some steps; gives what it told, and the seconds until the last step was done, without the tool's start and end.
    fn look(&mut self, steps: usize, meter: Option<&dyn Backend>) -> Result<(Told, f64)> {
        let trainer = &mut self.trainer;
        let device = self.device;
        let backend = meter.or(self.backend.as_deref()).context("a dry device is looked at in the memory pass only")?;
        let timed = |body: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
            synchronise(device);
            let start = Instant::now();
            (0..steps).try_for_each(|_| body())?;
            synchronise(device);
            Ok(start.elapsed().as_secs_f64())
        };
        let plain = &mut |_: Mark, _: &Trainer| Ok(());
        Ok(match self.tool {
            Tool::None => (Told::default(), timed(&mut || trainer.iterate(plain))?),
            Tool::Profiler(profiling) => {
                let profiler = Profiler::begin(profiling)?;
                let seconds = timed(&mut || in_phases(trainer))?;
                (of_profile(profiler.end()?), seconds)
            }
            Tool::Timeline => {
                let mut recorder = Recorder::begin(backend, Recording { meter: false, operations: true })?;
                trainer.tell(Mark::LOADED, &mut recorder)?;
                let seconds = timed(&mut || trainer.iterate(&mut |mark, trainer| trainer.tell(mark, &mut recorder)))?;
                let timeline = recorder.end();
                let named = timeline.made.iter().filter(|made| made.operation.is_some());
                let told =
                    Told { events: timeline.events.len(), bytes: Some(named.map(|made| made.bytes).sum()), ..Told::default() };
                (told, seconds)
            }
            Tool::Statistics => {
                let mut reads = 0;
                let seconds = timed(&mut || {
                    trainer.iterate(plain)?;
                    reads += usize::from(backend.memory()?.requested_peak > 0);
                    Ok(())
                })?;
                (Told { events: reads, ..Told::default() }, seconds)
            }
            Tool::History => {
                let history = MemoryHistory::begin(ENTRIES)?;
                let seconds = timed(&mut || trainer.iterate(plain))?;
                let folder = tempfile::tempdir().context("making a folder for a snapshot")?;
                let path = folder.path().join("snapshot.pickle");
                let kept = history.save(&path)?;
                let file = Some(Written::Bytes(fs::read(&path).context("reading a snapshot that was just written")?));
                (Told { events: usize::try_from(kept.entries)?, bytes: Some(kept.allocated), file, ..Told::default() }, seconds)
            }
        })
    }

    /// One step looked at, against one counted.
    fn count(&mut self, probe: &mut Probe, backend: &dyn Backend) -> Result<()> {
        allocations::record(self.device, false)?;
        let iterated = self.trainer.iterate(&mut |_, _| Ok(()));
        allocations::stop();
        let counted: i64 = allocations::take().iter().filter(|a| !a.freed).map(|a| a.bytes).sum();
        iterated?;
        ensure!(counted > 0, "a step that allocates nothing has nothing to show");
        let (told, _) = self.look(1, Some(backend))?;
        if let Some(bytes) = told.bytes {
            probe.figure(&MEMORY_TOLD, bytes as f64 / counted as f64);
        }
        for operation in told.operations.iter().filter(|operation| operation.allocated > 0) {
            probe.detail(format!("{}{}", ALLOCATED.name, operation.name), ALLOCATED.unit, 0, operation.allocated as f64);
        }
        if self.tool == Tool::Statistics {
            self.device_shares(probe, backend)?;
        }
        let Some(file) = told.file.filter(|_| probe.is_keeping()) else { return Ok(()) };
        match self.tool {
            Tool::Profiler(Profiling { memory: true, flops: false, .. }) => {
                probe.keep(&format!("trace-{}.json.gz", self.name), &file.into_kept()?)?;
            }
            Tool::History => probe.keep(&format!("snapshot-{}.pickle", self.name), &file.into_kept()?)?,
            _ => {}
        }
        Ok(())
    }

    /// What the allocator's peaks are of the device's use. The allocator keeps what it has, so that the device's use after the step is that
    /// at the step's peak.
    fn device_shares(&self, probe: &mut Probe, backend: &dyn Backend) -> Result<()> {
        let memory = backend.memory()?;
        let Ok(used) = memory.used() else { return Ok(()) };
        for (metric, statistic) in [(&ALLOCATED_SHARE, "allocated_peak"), (&RESERVED_SHARE, "reserved_peak")] {
            if let Some((_, bytes)) = memory.others.iter().find(|(name, _)| *name == statistic) {
                probe.figure(metric, *bytes as f64 / used as f64);
            }
        }
        Ok(())
    }

    /// One recording in the time pass.
    fn time(&mut self, probe: &mut Probe) -> Result<()> {
        let first = self.recordings == 0;
        let before = if first {
            // The step's own memory is none of the tool's.
            self.trainer.iterate(&mut |_, _| Ok(()))?;
            process::reset_peak_resident()?;
            process::resident()?
        } else {
            0
        };
        let (mut told, seconds) = self.look(ACTIVE, None)?;
        let written = told.file.take().map(Written::write).transpose()?;
        if first {
            self.host = process::peak_resident()?.saturating_sub(before);
        }
        probe.sample(&RECORDING, seconds / ACTIVE as f64);
        if self.recordings == WARM_UP {
            let of_each = |total: f64| total / ACTIVE as f64;
            probe.sample(&HOST, self.host as f64);
            if self.tool != Tool::None {
                probe.sample(&EVENTS, of_each(told.events as f64));
            }
            if let Some(bytes) = written {
                probe.sample(&FILE, of_each(bytes as f64));
            }
            if let Some(own) = told.seconds {
                probe.sample(&TIME_TOLD, own / seconds);
            }
            for operation in &told.operations {
                let own = operation.self_ns as f64 / 1e9 / ACTIVE as f64;
                probe.sample_detail(format!("{}{}", OWN_TIME.name, operation.name), OWN_TIME.unit, own);
            }
        }
        self.recordings += 1;
        Ok(())
    }
}

/// Waits for a GPU. A dry device has nothing to wait for, and its clock is asked by nobody.
fn synchronise(device: Device) {
    if let Device::Cuda(index) = device {
        Cuda::synchronize(index as i64);
    }
}

/// One iteration, each phase in a range that the trace shows.
fn in_phases(trainer: &mut Trainer) -> Result<()> {
    let mut open = Some(Range::enter("forward")?);
    trainer.iterate(&mut |mark, _| {
        drop(open.take());
        open = match mark.phase {
            Phase::Forward => Some(Range::enter("backward")?),
            Phase::Backward => Some(Range::enter("step")?),
            Phase::Load | Phase::Step => None,
        };
        Ok(())
    })
}

fn of_profile(profile: Profiled) -> Told {
    let operations = profile.by_self_time();
    let own: i64 = operations.iter().map(|operation| operation.self_ns).sum();
    Told {
        events: profile.events().iter().filter(|event| event.source != Source::Range).count() + profile.allocations().len(),
        bytes: Some(operations.iter().map(|operation| operation.allocated).sum()),
        seconds: Some(own as f64 / 1e9),
        operations: with_one_engine(operations),
        file: Some(Written::Trace(Box::new(profile))),
    }
}

/// What the autograd engine takes around the nodes that it runs, as one operation and not as one for each kind of node.
fn with_one_engine(operations: Vec<Operation>) -> Vec<Operation> {
    let (engine, mut others): (Vec<_>, Vec<_>) = operations.into_iter().partition(|o| o.name.starts_with("autograd::engine::"));
    let joined = engine.into_iter().reduce(|a, b| Operation {
        name: a.name,
        calls: a.calls + b.calls,
        self_ns: a.self_ns + b.self_ns,
        total_ns: a.total_ns + b.total_ns,
        allocated: a.allocated + b.allocated,
        freed: a.freed + b.freed,
    });
    others.extend(joined.map(|engine| Operation { name: "autograd engine".to_string(), ..engine }));
    // Times put them in another order every time.
    others.sort_by(|a, b| a.name.cmp(&b.name));
    others
}

impl Step for Looked {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        match probe.meter() {
            Some(backend) => self.count(probe, backend),
            None if probe.is_timing() => self.time(probe),
            None if self.backend.is_some() => self.look(1, None).map(drop),
            None => self.trainer.iterate(&mut |_, _| Ok(())),
        }
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "gradient", tensors: self.trainer.model().gradients().iter().map(Tensor::detach).collect() }])
    }

    fn items(&self) -> f64 {
        ACTIVE as f64
    }

    fn least_flops(&self) -> f64 {
        ACTIVE as f64 * self.trainer.model().least_training_flops(self.trainer.configuration().batch)
    }

    fn timing(&self) -> Timing {
        // Warm-up is so many recordings, neither more nor less, and each is a sample of its own.
        Timing { warm_up_steps: WARM_UP, warm_up_seconds: 0.0, samples: 16, least_sample: 0.0 }
    }
}
