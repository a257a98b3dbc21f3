//! Dropping tensors: what is given back to whom, when, and what a surviving reference keeps.
//!
//! Guide 001 says that `del` frees a tensor's GPU memory. It frees it for the next tensor: the allocator keeps what it has from the device
//! until `empty_cache`. And it frees nothing that somebody else still refers to: a clone of the handle, a view, a graph that saved it, an
//! optimizer.
//!
//! Claims: del-frees.

use anyhow::{Context, Result, bail};
use std::process::ExitCode;
use tch::nn::{Adam, Optimizer, OptimizerConfig};
use tch::{Device, Kind, Reduction, Tensor};
use vramlab::measure::{Bench, Probe, Quantity, Step, Timing};
use vramlab::models::Model;
use vramlab::process;
use vramlab::protocol::*;
use vramlab::torch::{empty_cuda_cache, trim_heap};
use vramlab::units::Bytes;

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

const ALLOCATED: Metric = Metric { name: "allocated", label: "allocated", unit: "B", pass: Pass::Memory };
const RESERVED: Metric = Metric { name: "reserved", label: "reserved", unit: "B", pass: Pass::Memory };
const USED: Metric = Metric { name: "device_used", label: "used on the device", unit: "B", pass: Pass::Memory };
/// By how much each has fallen since the drop, over the bytes of what was dropped.
const FREED: Metric = Metric { name: "freed", label: "allocated given back / size", unit: "1", pass: Pass::Memory };
const UNRESERVED: Metric = Metric { name: "unreserved", label: "reserved given back / size", unit: "1", pass: Pass::Memory };
const RETURNED: Metric = Metric { name: "device_returned", label: "seen free on the device / size", unit: "1", pass: Pass::Memory };
/// What the process has in memory above what it had before anything was made.
const RESIDENT: Metric = Metric { name: "resident_above", label: "resident above the start", unit: "B", pass: Pass::Time };

/// The kernel batches its counts of resident pages, so that less than this is nothing.
const RESIDENT_NOISE: u64 = 256 << 10;

pub const PROTOCOL: Protocol = Protocol {
    name: "free_tensors",
    title: "Dropping tensors",
    question: "Does dropping a tensor or a model free its memory, for whom, when, and what does a surviving reference keep?",
    hypothesis: "The bytes of tensors fall by what is dropped, at once, if nobody else refers to it. What the allocator holds, and so what \
                 the device shows, falls at empty_cache and not before, and only by segments that are empty. On the CPU the C library gives \
                 back large blocks at once and keeps small ones.",
    factors: &[
        Factor {
            name: "watched",
            meaning: "where memory is looked at",
            levels: &[
                Level { name: "tensors", meaning: "the bytes that the allocator has given to tensors" },
                Level { name: "device", meaning: "the bytes that the allocator has from the device, and what the device says" },
                Level { name: "process", meaning: "the memory that the process has from the kernel" },
            ],
        },
        Factor {
            name: "dropped",
            meaning: "what is dropped",
            levels: &[
                Level { name: "tensor", meaning: "one tensor" },
                Level { name: "small-tensors", meaning: "tensors of 64 KiB, as many as make up the size" },
                Level { name: "model", meaning: "a model with its gradients, and Adam with its state, after two training steps" },
            ],
        },
        Factor { name: "size", meaning: "its size, or the model's name", levels: &[] },
        Factor {
            name: "reference",
            meaning: "what survives",
            levels: &[
                Level { name: "none", meaning: "nothing" },
                Level { name: "clone", meaning: "another handle to the tensor, a second name for it" },
                Level { name: "view", meaning: "a view of one of its elements" },
                Level { name: "graph", meaning: "a result whose graph saved it for the backward pass" },
                Level { name: "gradient", meaning: "its gradient, as large as itself" },
                Level { name: "few", meaning: "every 32nd of the tensors" },
                Level { name: "optimizer", meaning: "the optimizer: only the model is dropped" },
                Level { name: "loss", meaning: "the loss of a forward pass, kept with its graph" },
                Level { name: "gradients", meaning: "the parameters' gradients" },
                Level { name: "row", meaning: "a view of one row of one parameter" },
            ],
        },
        Factor {
            name: "moment",
            meaning: "when",
            levels: &[
                Level { name: "before", meaning: "before the drop" },
                Level { name: "dropped", meaning: "after it" },
                Level { name: "empty-cache", meaning: "after empty_cache" },
                Level { name: "malloc-trim", meaning: "after the C library was told to give back what is unused (malloc_trim)" },
            ],
        },
    ],
    grids: &[
        counted(&[Profile::Quick], &[TENSORS, TENSOR, axis("size", &["16MiB"]), TENSOR_REFERENCES, DROPPED]),
        counted(&[Profile::Quick], &[TENSORS, SMALL, axis("size", &["16MiB"]), axis("reference", &["none", "few"]), DROPPED]),
        counted(&[Profile::Quick], &[TENSORS, MODEL, axis("size", &["mlp-8x256"]), MODEL_REFERENCES, DROPPED]),
        held(&[Profile::Quick], &[DEVICE, TENSOR, axis("size", &["64MiB"]), axis("reference", &["none", "view"]), EMPTIED]),
        held(&[Profile::Quick], &[DEVICE, SMALL, axis("size", &["64MiB"]), axis("reference", &["none", "few"]), EMPTIED]),
        held(&[Profile::Quick], &[DEVICE, MODEL, axis("size", &["mlp-8x512"]), axis("reference", &["none", "optimizer"]), EMPTIED]),
        counted(&[Profile::Full], &[TENSORS, TENSOR, axis("size", &["1GiB"]), TENSOR_REFERENCES, DROPPED]),
        counted(&[Profile::Full], &[TENSORS, SMALL, axis("size", &["1GiB"]), axis("reference", &["none", "few"]), DROPPED]),
        counted(&[Profile::Full], &[TENSORS, MODEL, axis("size", &["gpt2-medium"]), MODEL_REFERENCES, DROPPED]),
        held(&[Profile::Full], &[DEVICE, TENSOR, axis("size", &["1GiB"]), axis("reference", &["none", "view"]), EMPTIED]),
        held(&[Profile::Full], &[DEVICE, SMALL, axis("size", &["1GiB"]), axis("reference", &["none", "few"]), EMPTIED]),
        held(
            &[Profile::Full],
            &[DEVICE, MODEL, axis("size", &["gpt2-medium"]), axis("reference", &["none", "optimizer"]), EMPTIED],
        ),
        // The C library's turn: one block that it maps by itself, blocks that it cuts out of its heap, and a model of both.
        of_process(&[PROCESS, TENSOR, axis("size", &["64MiB"]), axis("reference", &["none"]), TRIMMED]),
        of_process(&[PROCESS, SMALL, axis("size", &["64MiB"]), axis("reference", &["none", "few"]), TRIMMED]),
        counted(&[Profile::Smoke], &[TENSORS, TENSOR, axis("size", &["1MiB"]), axis("reference", &["none", "clone"]), DROPPED]),
    ],
    metrics: &[
        ALLOCATED,
        FREED,
        RESERVED,
        UNRESERVED,
        USED,
        RETURNED,
        RESIDENT,
        Metric { name: "survivor_error", label: "error of what survives", unit: "1", pass: Pass::Check },
    ],
    checks: &[
        // What survives a drop is untouched.
        Check { when: "", expect: Relation::Equal { tolerance: 1e-6 } },
    ],
    claims: &[Claim {
        id: "del-frees",
        from: "001",
        text: "dropping a tensor frees its GPU memory: allocated falls by its size, reserved and the device's only at empty_cache, and a \
               surviving reference keeps it",
        judged_on: &[Platform::Cpu, Platform::Gpu, Platform::Dry],
        rule: Rule::All(&[
            Rule::Value {
                metric: FREED.name,
                of: "watched=tensors reference=none moment=dropped",
                confirm: Bound::Within(0.99, 1.01),
                refute: Bound::AtMost(0.50),
            },
            Rule::Value {
                metric: FREED.name,
                of: "watched=tensors reference=clone|view|graph|optimizer moment=dropped",
                confirm: Bound::AtMost(0.01),
                refute: Bound::AtLeast(0.50),
            },
            Rule::Value {
                metric: UNRESERVED.name,
                of: "watched=device reference=none moment=dropped",
                confirm: Bound::AtMost(0.01),
                refute: Bound::AtLeast(0.50),
            },
            Rule::Value {
                metric: RETURNED.name,
                of: "watched=device reference=none moment=dropped",
                confirm: Bound::AtMost(0.01),
                refute: Bound::AtLeast(0.50),
            },
            Rule::Value {
                metric: UNRESERVED.name,
                of: "watched=device reference=none moment=empty-cache",
                confirm: Bound::AtLeast(0.99),
                refute: Bound::AtMost(0.50),
            },
            Rule::Value {
                metric: RETURNED.name,
                of: "watched=device reference=none moment=empty-cache",
                confirm: Bound::AtLeast(0.99),
                refute: Bound::AtMost(0.50),
            },
        ]),
        meaning: Meaning {
            confirmed: "Drop what you no longer need, with every reference to it: its bytes are free for the next tensor at once. A \
                        handle, a view, a graph or an optimizer that still refers to it keeps all of it. On a GPU the device shows the \
                        memory as free only after empty_cache, which nobody but other processes needs.",
            refuted: "Dropping does not do what is said of it here ({effect}): look at which part fails.",
            depends: "It does what is said of it where {where}.",
            inconclusive: "Dropping frees memory ({effect}), but not every part could be shown here.",
        },
    }],
    published: &[],
    plots: &[
        Plot {
            name: "freed",
            caption: "What tensors still hold after the drop, by what survives",
            of: "watched=tensors",
            metric: ALLOCATED.name,
            kind: PlotKind::Bars { clusters: &["dropped", "reference"] },
        },
        Plot {
            name: "reserved",
            caption: "What the allocator still holds from the device, after the drop and after empty_cache",
            of: "watched=device",
            metric: RESERVED.name,
            kind: PlotKind::Bars { clusters: &["dropped", "reference"] },
        },
        Plot {
            name: "used",
            caption: "What the device says is in use, after the drop and after empty_cache",
            of: "watched=device",
            metric: USED.name,
            kind: PlotKind::Bars { clusters: &["dropped", "reference"] },
        },
        Plot {
            name: "resident",
            caption: "What the process still holds from the kernel, after the drop and after malloc_trim",
            of: "watched=process",
            metric: RESIDENT.name,
            kind: PlotKind::Bars { clusters: &["dropped", "reference"] },
        },
    ],
    threats: &[
        "Before the drop the cache is emptied, so that the allocator holds what is alive and nothing else; in a training run it holds more.",
        "Rust drops at a known moment. In Python `del` takes one name away; a reference cycle or a traceback may keep the tensor until the \
         garbage collector comes.",
        "What the C library gives back depends on its version and on what stands at the end of its heap; the figures are glibc's.",
    ],
};

const TENSORS: Axis = axis("watched", &["tensors"]);
const DEVICE: Axis = axis("watched", &["device"]);
const PROCESS: Axis = axis("watched", &["process"]);
const TENSOR: Axis = axis("dropped", &["tensor"]);
const SMALL: Axis = axis("dropped", &["small-tensors"]);
const MODEL: Axis = axis("dropped", &["model"]);
const TENSOR_REFERENCES: Axis = axis("reference", &["none", "clone", "view", "graph", "gradient"]);
const MODEL_REFERENCES: Axis = axis("reference", &["none", "optimizer", "loss", "gradients", "row"]);
const DROPPED: Axis = axis("moment", &["before", "dropped"]);
const EMPTIED: Axis = axis("moment", &["before", "dropped", "empty-cache"]);
const TRIMMED: Axis = axis("moment", &["before", "dropped", "malloc-trim"]);

const fn counted(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "bytes of tensors", profiles, studied: "moment", axes, passes: &[Pass::Check, Pass::Memory], only_on: &[] }
}

/// Only there is an allocator that keeps what is dropped.
const fn held(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    let only_on = &[Platform::Gpu, Platform::Dry];
    Grid { name: "bytes of the device", profiles, studied: "moment", axes, passes: &[Pass::Check, Pass::Memory], only_on }
}

const fn of_process(axes: &'static [Axis]) -> Grid {
    let profiles = &[Profile::Quick, Profile::Full];
    let only_on = &[Platform::Cpu];
    Grid { name: "bytes of the process", profiles, studied: "moment", axes, passes: &[Pass::Check, Pass::Time], only_on }
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    let size = cell.level("size")?;
    let bytes = || size.parse::<Bytes>().map(|size| size.0 as i64).map_err(anyhow::Error::msg);
    let dropped = match cell.level("dropped")? {
        "tensor" => Dropped::Tensor { elements: bytes()? / 4 },
        "small-tensors" => Dropped::SmallTensors { count: bytes()? / SMALL_TENSOR },
        "model" => Dropped::Model { name: size.to_string() },
        other => bail!("'{other}' is nothing to drop"),
    };
    let moment = match cell.level("moment")? {
        "before" => Moment::Before,
        "dropped" => Moment::Dropped,
        "empty-cache" => Moment::EmptyCache,
        "malloc-trim" => Moment::MallocTrim,
        other => bail!("'{other}' is no moment"),
    };
    let reference = cell.level("reference")?.to_string();
    let bystander = Tensor::randn([BYSTANDER / 4], (Kind::Float, bench.device));
    Ok(Box::new(Dropping { dropped, reference, moment, seed: bench.seed, bystander, held: Held::default(), survivor: None }))
}

const SMALL_TENSOR: i64 = 64 << 10;

/// Bytes of a tensor that has nothing to do with the drop. CUDA's allocator gives it a segment that it fills, so that it shares none with
/// what is dropped.
const BYSTANDER: i64 = 20 << 20;

enum Dropped {
    Tensor { elements: i64 },
    SmallTensors { count: i64 },
    Model { name: String },
}

#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Moment {
    Before,
    Dropped,
    EmptyCache,
    MallocTrim,
}

/// What is to be dropped.
#[derive(Default)]
struct Held {
    tensors: Vec<Tensor>,
    model: Option<Model>,
    optimizer: Option<Optimizer>,
}

/// What outlives the drop.
enum Survivor {
    Tensors(Vec<Tensor>),
    /// A result, and the scalar that it depends on by what was saved.
    Graph {
        result: Tensor,
        factor: Tensor,
    },
    Optimizer(Optimizer),
}

struct Dropping {
    dropped: Dropped,
    reference: String,
    moment: Moment,
    seed: i64,
    bystander: Tensor,
    held: Held,
    survivor: Option<Survivor>,
}

impl Dropping {
    fn device(&self) -> Device {
        self.bystander.device()
    }

    /// Makes what will be dropped, and what will survive it.
    fn make(&mut self) -> Result<()> {
        tch::manual_seed(self.seed);
        let options = (Kind::Float, self.device());
        match &self.dropped {
            Dropped::Tensor { elements } => {
                let x = Tensor::randn([*elements], options);
                self.survivor = reference_to_tensor(&self.reference, &x)?;
                self.held.tensors.push(x);
            }
            Dropped::SmallTensors { count } => {
                self.held.tensors = (0..*count).map(|_| Tensor::randn([SMALL_TENSOR / 4], options)).collect();
                self.survivor = match self.reference.as_str() {
                    "none" => None,
                    "few" => Some(Survivor::Tensors(self.held.tensors.iter().step_by(32).map(Tensor::shallow_clone).collect())),
                    other => bail!("'{other}' refers to no small tensors"),
                };
            }
            Dropped::Model { name } => {
                let model = Model::named(name, options.1)?;
                let mut optimizer = Adam::default().build(&model.store, 1e-4)?;
                let batch = model.batch(4);
                let loss = || model.loss(&model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean);
                for _ in 0..2 {
                    optimizer.zero_grad();
                    loss().f_backward()?;
                    optimizer.step();
                }
                let first = model.parameters().into_iter().find(|p| p.dim() == 2).context("a model without a matrix")?;
                let kept = match self.reference.as_str() {
                    "none" | "optimizer" => None,
                    "loss" => Some(vec![loss()]),
                    "gradients" => Some(model.gradients()),
                    "row" => Some(vec![first.detach().narrow(0, 0, 1)]),
                    other => bail!("'{other}' refers to no model"),
                };
                self.survivor = kept.map(Survivor::Tensors);
                if self.reference == "optimizer" {
                    self.survivor = Some(Survivor::Optimizer(optimizer));
                } else {
                    self.held.optimizer = Some(optimizer);
                }
                self.held.model = Some(model);
            }
        }
        Ok(())
    }

    fn empty_cache(&self) -> Result<()> {
        if let Device::Cuda(_) = self.device() {
            empty_cuda_cache()?;
        }
        Ok(())
    }

    /// Resident bytes, where they are what is measured.
    fn resident(probe: &Probe) -> Result<Option<u64>> {
        if probe.is_timing() { process::resident().map(Some) } else { Ok(None) }
    }
}

fn reference_to_tensor(reference: &str, x: &Tensor) -> Result<Option<Survivor>> {
    Ok(match reference {
        "none" => None,
        "clone" => Some(Survivor::Tensors(vec![x.shallow_clone()])),
        "view" => Some(Survivor::Tensors(vec![x.narrow(0, 0, 1)])),
        "graph" => {
            let factor = Tensor::ones([1], (Kind::Float, x.device())).set_requires_grad(true);
            let result = (&factor * x).sum(Kind::Float);
            Some(Survivor::Graph { result, factor })
        }
        "gradient" => {
            let x = x.set_requires_grad(true);
            x.square().sum(Kind::Float).f_backward()?;
            Some(Survivor::Tensors(vec![x.grad()]))
        }
        other => bail!("'{other}' refers to no tensor"),
    })
}

impl Step for Dropping {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        // What the last step left.
        self.held = Held::default();
        self.survivor = None;
        self.empty_cache()?;
        trim_heap();
        let (start, resident_start) = (probe.memory(), Self::resident(probe)?);
        self.make()?;
        self.empty_cache()?;
        let before = probe.memory();
        if self.moment >= Moment::Dropped {
            self.held = Held::default();
        }
        match self.moment {
            Moment::Before | Moment::Dropped => {}
            Moment::EmptyCache => self.empty_cache()?,
            Moment::MallocTrim => drop(trim_heap()),
        }
        if let (Some(start), Some(before), Some(now)) = (start, before, probe.memory()) {
            // A gradient that survives is no part of what is dropped.
            let kept = if self.reference == "gradient" { (before.allocated - start.allocated) / 2 } else { 0 };
            let size = (before.allocated - start.allocated - kept) as f64;
            probe.figure(&ALLOCATED, (now.allocated - start.allocated) as f64);
            probe.figure(&FREED, (before.allocated - now.allocated) as f64 / size);
            if let Device::Cuda(_) = self.device() {
                probe.figure(&RESERVED, (now.reserved - start.reserved) as f64);
                probe.figure(&UNRESERVED, (before.reserved - now.reserved) as f64 / size);
                probe.figure(&RETURNED, (before.used()? - now.used()?) as f64 / size);
            }
        }
        if let (Some(start), Some(now)) = (resident_start, Self::resident(probe)?) {
            probe.sample(&RESIDENT, now.saturating_sub(start).max(RESIDENT_NOISE) as f64);
        }
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        let tensors = match &self.survivor {
            None => vec![self.bystander.shallow_clone()],
            Some(Survivor::Tensors(tensors)) => tensors.iter().map(Tensor::shallow_clone).collect(),
            Some(Survivor::Graph { result, factor }) => Tensor::f_run_backward(&[result], &[factor], true, false)?,
            Some(Survivor::Optimizer(optimizer)) => optimizer.trainable_variables(),
        };
        Ok(vec![Quantity { name: "survivor", tensors }])
    }

    /// The first run loads code and sizes the C library's pools; the second is what a program sees all its life.
    fn timing(&self) -> Timing {
        Timing { warm_up_steps: 1, warm_up_seconds: 0.0, samples: 1, least_sample: 0.0 }
    }
}
