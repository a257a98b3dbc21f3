//! The lab against PyTorch in Python: the same steps, from the same parameters on the same data, with the same settings, in the same rounds.
//!
//! Readers use Python, so figures taken through Rust count for them as far as PyTorch gives the same. Here both run the same training
//! steps, from a start that ours hands to the twin: losses, gradients and updated parameters are compared across the two processes, bytes
//! are counted on both sides by the same allocator, and times stand side by side. `vramlab compare pytorch` runs this and prints the table.
//!
//! Claims: agree-values, agree-bytes, as-fast-compute, as-fast-launch, as-fast-default, as-fast-optimizer (of this project).

use anyhow::{Context, Result, bail, ensure};
use std::process::ExitCode;
use tch::{Device, Kind, Reduction, Tensor};
use vramlab::measure::{Bench, Probe, Quantity, Step};
use vramlab::models::{Batch, Block, Model};
use vramlab::pairs;
use vramlab::protocol::*;
use vramlab::torch::ddp::{Ddp, DdpOptions};
use vramlab::torch::distributed::ProcessGroup;
use vramlab::torch::optimizers::{Algorithm, Implementation, Optimizer, ZeroGrad};
use vramlab::torch::{autocast, checkpoint};

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

const LIVE_FORWARD: Metric = Metric { name: "live_forward", label: "live after forward", unit: "B", pass: Pass::Memory };
const LIVE_BACKWARD: Metric = Metric { name: "live_backward", label: "live after backward", unit: "B", pass: Pass::Memory };
const LIVE_STEP: Metric = Metric { name: "live_step", label: "live after the step", unit: "B", pass: Pass::Memory };
const LOSS_ERROR: Metric = Metric { name: "loss_error", label: "loss error", unit: "1", pass: Pass::Check };
const GRADIENT_ERROR: Metric = Metric { name: "gradient_error", label: "gradient error", unit: "1", pass: Pass::Check };
const PARAMETER_ERROR: Metric =
    Metric { name: "parameter_error", label: "error of updated parameters", unit: "1", pass: Pass::Check };

/// What must be equal to the byte: the four figures above with the stated differences taken out.
const MATCHED_PEAK: Metric =
    Metric { name: "matched.requested_peak", label: "peak memory, less what is stated", unit: "B", pass: Pass::Memory };
const MATCHED_FORWARD: Metric =
    Metric { name: "matched.live_forward", label: "live after forward, less what is stated", unit: "B", pass: Pass::Memory };
const MATCHED_BACKWARD: Metric =
    Metric { name: "matched.live_backward", label: "live after backward, less what is stated", unit: "B", pass: Pass::Memory };
const MATCHED_STEP: Metric =
    Metric { name: "matched.live_step", label: "live after the step, less what is stated", unit: "B", pass: Pass::Memory };

const MATCHED: [&Metric; 4] = [&MATCHED_PEAK, &MATCHED_FORWARD, &MATCHED_BACKWARD, &MATCHED_STEP];

// Why PyTorch's bytes are not ours, each with its formula in `Training::stated`.
const COUNTERS: Metric = Metric {
    name: "stated.counters",
    label: "PyTorch's AdamW counts the steps of each parameter in a tensor of 4 bytes, libtorch's in a number",
    unit: "B",
    pass: Pass::Memory,
};
const DENOMINATOR: Metric = Metric {
    name: "stated.denominator",
    label: "Python's loop over the parameters holds what it divided the last one by until it has that of the next",
    unit: "B",
    pass: Pass::Memory,
};
const NUMBER: Metric = Metric {
    name: "stated.number",
    label: "Python makes a tensor of 8 bytes of the number that the loss is divided by, and autograd keeps it",
    unit: "B",
    pass: Pass::Memory,
};
const RANDOM_STATE: Metric = Metric {
    name: "stated.random-state",
    label: "a segment is run to its end again here, with the program's own random state put aside; PyTorch stops before the last operation",
    unit: "B",
    pass: Pass::Memory,
};

pub const PROTOCOL: Protocol = Protocol {
    name: "agreement",
    title: "The lab against PyTorch",
    question: "Does the lab compute what PyTorch in Python computes, take as many bytes, and as little time?",
    hypothesis: "Kernels, autograd and allocator are the same library, so values and bytes are the same. Between operations there is no \
                 interpreter, so steps of small operations take less time, and those of large ones as much.",
    factors: &[
        Factor { name: "model", meaning: "model", levels: &[] },
        Factor { name: "batch", meaning: "samples", levels: &[] },
        Factor {
            name: "optimizer",
            meaning: "optimizer",
            levels: &[
                Level { name: "sgd", meaning: "plain SGD, each side's default" },
                Level { name: "adamw", meaning: "AdamW, each side's default" },
                Level { name: "fused", meaning: "AdamW, PyTorch's fused kernel on both sides" },
                Level { name: "default-or-fused", meaning: "AdamW, PyTorch's default against the lab's fused" },
            ],
        },
        Factor {
            name: "technique",
            meaning: "what is done",
            levels: &[
                Level { name: "none", meaning: "a training step" },
                Level { name: "checkpoint", meaning: "segments of sqrt(depth) blocks, in Python without re-entry" },
                Level { name: "autocast", meaning: "the forward pass in bf16" },
                Level { name: "accumulate", meaning: "four micro-batches" },
                Level { name: "inplace", meaning: "activations that overwrite their input" },
                Level { name: "ddp", meaning: "gradients through the buckets of one process" },
                Level { name: "no-grad", meaning: "a forward pass that keeps nothing" },
                Level { name: "optimizer-step", meaning: "the optimizer's step alone" },
            ],
        },
        Factor { name: THREADS, meaning: "threads", levels: &[Level { name: "all", meaning: "as many as there are cores" }] },
        Factor {
            name: BY,
            meaning: "who runs it",
            levels: &[
                Level { name: "pytorch", meaning: "PyTorch in Python, eager" },
                Level { name: "vramlab", meaning: "this project, on the same libtorch" },
            ],
        },
    ],
    grids: &[
        counted(&[Profile::Quick], &[SMALL_MLP, SMALL_BATCH, axis("optimizer", &["sgd", "adamw"]), PLAIN, ONE_THREAD, SIDES]),
        counted(&[Profile::Quick], &[axis("model", &["mlp-9x128"]), axis("batch", &["256"]), FUSED, TECHNIQUES, ONE_THREAD, SIDES]),
        timed(&[Profile::Quick], &[SMALL_MLP, SMALL_BATCH, FUSED, PLAIN, ONE_THREAD, SIDES]),
        uncounted(&[Profile::Quick], &[SMALL_MLP, SMALL_BATCH, axis("optimizer", &["default-or-fused"]), PLAIN, ONE_THREAD, SIDES]),
        timed(
            &[Profile::Quick],
            &[axis("model", &["mlp-8x512"]), SMALL_BATCH, FUSED, axis("technique", &["optimizer-step"]), ONE_THREAD, SIDES],
        ),
        timed(&[Profile::Quick], &[axis("model", &["mlp-4x1024"]), axis("batch", &["256"]), FUSED, PLAIN, THREAD_COUNTS, SIDES]),
        timed(&[Profile::Quick], &[axis("model", &["gpt-3x256"]), axis("batch", &["8"]), FUSED, PLAIN, THREAD_COUNTS, SIDES]),
        timed(&[Profile::Quick], &[axis("model", &["resnet-2x32-gn"]), axis("batch", &["8"]), FUSED, PLAIN, THREAD_COUNTS, SIDES]),
        // On a GPU.
        counted(&[Profile::Full], &[SMALL_MLP, SMALL_BATCH, axis("optimizer", &["sgd", "adamw"]), PLAIN, ALL_THREADS, SIDES]),
        counted(
            &[Profile::Full],
            &[axis("model", &["mlp-16x1024"]), axis("batch", &["4096"]), FUSED, TECHNIQUES, ALL_THREADS, SIDES],
        ),
        timed(&[Profile::Full], &[SMALL_MLP, SMALL_BATCH, FUSED, PLAIN, ONE_THREAD, SIDES]),
        uncounted(&[Profile::Full], &[SMALL_MLP, SMALL_BATCH, axis("optimizer", &["default-or-fused"]), PLAIN, ONE_THREAD, SIDES]),
        timed(
            &[Profile::Full],
            &[axis("model", &["mlp-16x4096"]), SMALL_BATCH, FUSED, axis("technique", &["optimizer-step"]), ONE_THREAD, SIDES],
        ),
        timed(&[Profile::Full], &[axis("model", &["mlp-8x4096"]), axis("batch", &["8192"]), FUSED, PLAIN, ALL_THREADS, SIDES]),
        timed(&[Profile::Full], &[axis("model", &["gpt-12x768"]), axis("batch", &["128"]), FUSED, PLAIN, ALL_THREADS, SIDES]),
        timed(&[Profile::Full], &[axis("model", &["resnet-8x64-gn"]), axis("batch", &["256"]), FUSED, PLAIN, ALL_THREADS, SIDES]),
        checked(&[Profile::Smoke], &[axis("model", &["mlp-2x16"]), axis("batch", &["8"]), FUSED, PLAIN, ONE_THREAD, SIDES]),
    ],
    metrics: &[
        LOSS_ERROR,
        GRADIENT_ERROR,
        PARAMETER_ERROR,
        PEAK,
        LIVE_FORWARD,
        LIVE_BACKWARD,
        LIVE_STEP,
        MATCHED_PEAK,
        MATCHED_FORWARD,
        MATCHED_BACKWARD,
        MATCHED_STEP,
        COUNTERS,
        DENOMINATOR,
        NUMBER,
        RANDOM_STATE,
        TIME,
    ],
    checks: &[
        // The same kernels on the same numbers.
        Check { when: "", expect: Relation::Equal { tolerance: 1e-6 } },
    ],
    claims: &[
        Claim {
            id: "agree-values",
            from: "",
            text: "losses, gradients and updates are PyTorch's",
            judged_on: &[Platform::Cpu, Platform::Gpu],
            rule: Rule::All(&[
                same_value(&LOSS_ERROR, WITH_LOSS),
                same_value(&GRADIENT_ERROR, WITH_GRADIENT),
                same_value(&PARAMETER_ERROR, WITH_UPDATE),
            ]),
            meaning: Meaning {
                confirmed: "The lab computes what PyTorch computes: {effect} apart. What it finds out about a technique holds in Python.",
                refuted: "The lab and PyTorch compute different things ({effect}): trust none of its figures before this is mended.",
                depends: "The lab computes what PyTorch computes where {where}.",
                inconclusive: "The lab and PyTorch are {effect} apart.",
            },
        },
        Claim {
            id: "agree-bytes",
            from: "",
            text: "a step takes as many bytes as PyTorch's, to the byte, but for differences stated beforehand with their formulas",
            judged_on: &[Platform::Cpu, Platform::Gpu],
            rule: Rule::All(&[
                same_bytes(&MATCHED_PEAK, SAME_CODE),
                same_bytes(&MATCHED_FORWARD, SAME_LOSS),
                same_bytes(&MATCHED_BACKWARD, SAME_GRADIENT),
                same_bytes(&MATCHED_STEP, SAME_UPDATE),
            ]),
            meaning: Meaning {
                confirmed: "What the lab says of memory holds in Python, at the peak and after each phase ({effect}); the few bytes that \
                            differ are named below the table.",
                refuted: "Bytes are {effect} of PyTorch's, and nobody has said why.",
                depends: "Bytes are PyTorch's where {where}.",
                inconclusive: "Bytes are {effect} of PyTorch's.",
            },
        },
        Claim {
            id: "as-fast-compute",
            from: "",
            text: "where kernels fill the time, a step takes as long as PyTorch's (1.03x at most)",
            judged_on: &[Platform::Cpu, Platform::Gpu],
            rule: against_pytorch(COMPUTE_BOUND, 1.03),
            meaning: Meaning {
                confirmed: "A step takes {effect} of PyTorch's time: the lab's times are those of the kernels that Python runs.",
                refuted: "A step takes {effect} of PyTorch's time: the lab adds something that it should not.",
                depends: "A step takes as long as PyTorch's where {where}.",
                inconclusive: "A step takes {effect} of PyTorch's time, and the noise of this machine hides whether that is within 3 %.",
            },
        },
        Claim {
            id: "as-fast-launch",
            from: "",
            text: "where launching operations fills the time, a step takes three quarters of PyTorch's at most",
            judged_on: &[Platform::Cpu, Platform::Gpu],
            rule: against_pytorch("by=vramlab model=mlp-8x64 optimizer=fused technique=none", 0.75),
            meaning: Meaning {
                confirmed: "A step of small operations takes {effect} of PyTorch's time: what is missing is the interpreter.",
                refuted: "A step of small operations takes {effect} of PyTorch's time, more than three quarters.",
                depends: "It takes three quarters of PyTorch's time where {where}.",
                inconclusive: "A step of small operations takes {effect} of PyTorch's time, about three quarters.",
            },
        },
        Claim {
            id: "as-fast-default",
            from: "",
            text: "there, with fused AdamW against the AdamW that PyTorch takes by default, it takes half at most",
            judged_on: &[Platform::Cpu, Platform::Gpu],
            rule: against_pytorch("by=vramlab optimizer=default-or-fused", 0.5),
            meaning: Meaning {
                confirmed: "It takes {effect} of the time. In Python, `fused=True` gets you part of that for nothing.",
                refuted: "It takes {effect} of the time, more than half.",
                depends: "It takes half of the time where {where}.",
                inconclusive: "It takes {effect} of the time, about half.",
            },
        },
        Claim {
            id: "as-fast-optimizer",
            from: "",
            text: "a fused optimizer's step takes as long as PyTorch's (1.03x at most)",
            judged_on: &[Platform::Cpu, Platform::Gpu],
            rule: against_pytorch("by=vramlab technique=optimizer-step", 1.03),
            meaning: Meaning {
                confirmed: "The fused step takes {effect} of PyTorch's time.",
                refuted: "The fused step takes {effect} of PyTorch's time: the lab adds something that it should not.",
                depends: "The fused step takes as long as PyTorch's where {where}.",
                inconclusive: "The fused step takes {effect} of PyTorch's time, and noise hides whether that is within 3 %.",
            },
        },
    ],
    published: &[],
    plots: &[Plot {
        name: "time",
        caption: "Time of a step against PyTorch's in Python",
        of: "",
        metric: TIME.name,
        kind: PlotKind::Bars { clusters: &["model", "optimizer", THREADS] },
    }],
    threats: &[
        "While bytes are counted, both sides have the lab's counting allocator; while time is taken, PyTorch has its own, as its users have, and \
         the lab counts on.",
        "PyTorch is eager: torch.compile is another program.",
        "A Python that waits for nothing but this loop: data loading, logging and hooks would come on top on either side.",
    ],
};

const SIDES: Axis = axis(BY, &["pytorch", "vramlab"]);
const SMALL_MLP: Axis = axis("model", &["mlp-8x64"]);
const SMALL_BATCH: Axis = axis("batch", &["32"]);
const FUSED: Axis = axis("optimizer", &["fused"]);
const PLAIN: Axis = axis("technique", &["none"]);
const TECHNIQUES: Axis = axis("technique", &["checkpoint", "autocast", "accumulate", "inplace", "ddp", "no-grad"]);
const ONE_THREAD: Axis = axis(THREADS, &["1"]);
const ALL_THREADS: Axis = axis(THREADS, &["all"]);
const THREAD_COUNTS: Axis = axis(THREADS, &["1", "all"]);

const SAME_CODE: Select = "by=vramlab optimizer=sgd|adamw|fused";
const SAME_LOSS: Select = "by=vramlab optimizer=sgd|adamw|fused technique=none|checkpoint|autocast|accumulate|inplace|ddp|no-grad";
const SAME_GRADIENT: Select = "by=vramlab optimizer=sgd|adamw|fused technique=none|checkpoint|autocast|accumulate|inplace|ddp";
const SAME_UPDATE: Select =
    "by=vramlab optimizer=sgd|adamw|fused technique=none|checkpoint|autocast|accumulate|inplace|ddp|optimizer-step";
const WITH_GRADIENT: Select = "by=vramlab technique=none|checkpoint|autocast|accumulate|inplace|ddp";
const WITH_LOSS: Select = "by=vramlab technique=none|checkpoint|autocast|accumulate|inplace|ddp|no-grad";
const WITH_UPDATE: Select = "by=vramlab technique=none|checkpoint|autocast|accumulate|inplace|ddp|optimizer-step";
const COMPUTE_BOUND: Select = "by=vramlab model=mlp-4x1024|gpt-3x256|resnet-2x32-gn|mlp-8x4096|gpt-12x768|resnet-8x64-gn";

const fn checked(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    side_by_side(profiles, axes, &[Pass::Check])
}

const fn counted(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    side_by_side(profiles, axes, &[Pass::Check, Pass::Memory])
}

/// AdamW's default and fused implementations do not need the same bytes, so one against the other says nothing about bytes.
const fn uncounted(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    side_by_side(profiles, axes, &[Pass::Check, Pass::Time])
}

const fn timed(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    side_by_side(profiles, axes, &[Pass::Check, Pass::Memory, Pass::Time])
}

const fn side_by_side(profiles: &'static [Profile], axes: &'static [Axis], passes: &'static [Pass]) -> Grid {
    Grid { name: "side by side", profiles, studied: BY, axes, passes, only_on: &[Platform::Cpu, Platform::Gpu] }
}

const fn same_value(metric: &Metric, of: Select) -> Rule {
    Rule::Value { metric: metric.name, of, confirm: Bound::AtMost(1e-6), refute: Bound::AtLeast(1e-6) }
}

const fn same_bytes(metric: &Metric, of: Select) -> Rule {
    let (confirm, refute) = (Bound::Within(1.0, 1.0), Bound::Outside(1.0, 1.0));
    Rule::Ratio { metric: metric.name, of, confirm, refute, scope: None }
}

const fn against_pytorch(of: Select, most: f64) -> Rule {
    Rule::Ratio { metric: TIME.name, of, confirm: Bound::AtMost(most), refute: Bound::AtLeast(most), scope: None }
}

/// The state of the CPU's random number generator, as a tensor.
const RANDOM_STATE_BYTES: i64 = 5056;

/// What accumulation splits a batch into.
const MICRO_BATCHES: i64 = 4;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Technique {
    None,
    Checkpoint,
    Autocast,
    Accumulate,
    Inplace,
    Ddp,
    NoGrad,
    OptimizerStep,
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    ensure!(!cell.is_twin(), "PyTorch's twin runs this cell");
    let technique = match cell.level("technique")? {
        "none" => Technique::None,
        "checkpoint" => Technique::Checkpoint,
        "autocast" => Technique::Autocast,
        "accumulate" => Technique::Accumulate,
        "inplace" => Technique::Inplace,
        "ddp" => Technique::Ddp,
        "no-grad" => Technique::NoGrad,
        "optimizer-step" => Technique::OptimizerStep,
        other => bail!("'{other}' is no technique"),
    };
    let (algorithm, rate, implementation) = match cell.level("optimizer")? {
        "sgd" => (Algorithm::sgd(), 1e-2, Implementation::default_on(bench.device)),
        "adamw" => (Algorithm::adamw(), 1e-3, Implementation::default_on(bench.device)),
        "fused" | "default-or-fused" => (Algorithm::adamw(), 1e-3, Implementation::Fused),
        other => bail!("'{other}' is no optimizer"),
    };
    let has_moments = !matches!(algorithm, Algorithm::Sgd(_));
    let model = Model::named(cell.level("model")?, bench.device)?;
    let batch = model.batch(cell.number("batch")?);
    let optimizer = Optimizer::new(&model.store, algorithm, rate, implementation)?;
    let ddp = match technique {
        Technique::Ddp => Some(Ddp::of(&model.store, &ProcessGroup::alone(bench.device, 1)?, DdpOptions::default())?),
        _ => None,
    };
    let training = Training { model, batch, optimizer, technique, ddp, has_moments, loss: None };
    if technique == Technique::OptimizerStep {
        training.forward(&training.batch)?.f_backward()?;
    }
    Ok(Box::new(training))
}

struct Training {
    model: Model,
    batch: Batch,
    optimizer: Optimizer,
    technique: Technique,
    ddp: Option<Ddp>,
    /// Whether the optimizer keeps moments and counts steps.
    has_moments: bool,
    /// Of the last step; a program in Python holds it as long.
    loss: Option<Tensor>,
}

impl Training {
    fn logits(&self, inputs: &Tensor) -> Result<Tensor> {
        match self.technique {
            Technique::Checkpoint => {
                let length = (self.model.blocks.len() as f64).sqrt().ceil() as usize;
                let stem = self.model.stem.forward(inputs, true);
                let x = self.model.blocks.chunks(length).try_fold(stem, |x, blocks| segment(blocks, x))?;
                Ok(self.model.head.forward(&x, true))
            }
            Technique::Inplace => self.overwriting(inputs),
            _ => Ok(self.model.forward(inputs, true)),
        }
    }

    /// The MLP with an activation that overwrites its input.
    fn overwriting(&self, inputs: &Tensor) -> Result<Tensor> {
        let variables = self.model.store.variables();
        let linear = |x: &Tensor, path: &str| -> Result<Tensor> {
            let of =
                |name: &str| variables.get(&format!("{path}.{name}")).with_context(|| format!("the model has no {path}.{name}"));
            Ok(x.linear(of("weight")?, Some(of("bias")?)))
        };
        let mut x = inputs.shallow_clone();
        for block in 0..self.model.blocks.len() {
            x = linear(&x, &format!("block.{block}"))?.relu_();
        }
        linear(&x, "head")
    }

    fn forward(&self, batch: &Batch) -> Result<Tensor> {
        let loss = || Ok(self.model.loss(&self.logits(&batch.inputs)?, &batch.targets, Reduction::Mean));
        match (self.technique, &self.ddp) {
            (Technique::Autocast, _) => autocast(batch.inputs.device(), Kind::BFloat16, loss)?,
            (_, Some(ddp)) => ddp.forward(loss),
            _ => loss(),
        }
    }

    /// By how many bytes PyTorch's figure is larger than ours, and why. On a GPU nothing has been stated yet.
    fn stated(&self, metric: &Metric) -> Vec<(&'static Metric, i64)> {
        let parameters: Vec<i64> =
            self.optimizer.parameters().map(|(_, p)| (p.numel() * p.kind().elt_size_in_bytes()) as i64).collect();
        let is_peak = metric.name == PEAK.name;
        let mut stated = Vec::new();
        if self.batch.inputs.device() != Device::Cpu {
            return stated;
        }
        if self.optimizer.implementation() == Implementation::Loop && self.has_moments {
            stated.push((&COUNTERS, 4 * parameters.len() as i64));
            if is_peak {
                // Two temporaries of each parameter, and in Python what is left of the one before.
                let without = parameters.iter().map(|bytes| 2 * bytes).max().unwrap_or(0);
                let pairs = parameters.windows(2).map(|pair| pair[0] + 2 * pair[1]);
                stated.push((&DENOMINATOR, pairs.max().unwrap_or(0).max(without) - without));
            }
        }
        if self.technique == Technique::Accumulate && metric.name == LIVE_FORWARD.name {
            stated.push((&NUMBER, 8));
        }
        if self.technique == Technique::Checkpoint && is_peak {
            stated.push((&RANDOM_STATE, -RANDOM_STATE_BYTES));
        }
        stated
    }

    /// Gives what lives now, and the same as PyTorch's must be.
    fn tell(&self, probe: &mut Probe, metric: &'static Metric) {
        let live = probe.live();
        self.tell_figure(probe, metric, live);
        probe.record(metric.name, live);
    }

    /// As [`Training::tell`] of the peak, which the meter itself gives.
    fn tell_peak(&self, probe: &mut Probe) {
        let peak = probe.memory().map_or(0, |memory| memory.requested_peak);
        self.tell_figure(probe, &PEAK, peak);
    }

    fn tell_figure(&self, probe: &mut Probe, metric: &'static Metric, bytes: i64) {
        let stated = self.stated(metric);
        let total: i64 = stated.iter().map(|(_, bytes)| bytes).sum();
        if let Some(matched) = MATCHED.iter().find(|matched| matched.name.strip_prefix(pairs::MATCHED) == Some(metric.name)) {
            probe.record(matched.name, bytes + total);
        }
        for (reason, bytes) in stated {
            probe.stated(reason, metric, bytes);
        }
    }

    fn zero_grad(&mut self) -> Result<()> {
        match &self.ddp {
            Some(ddp) => ddp.zero_grad(),
            None => self.optimizer.zero_grad(ZeroGrad::ToNone)?,
        }
        self.loss = None;
        Ok(())
    }
}

/// Runs blocks as one checkpointed segment.
fn segment(blocks: &[Box<dyn Block>], x: Tensor) -> Result<Tensor> {
    let own: Vec<Box<dyn Block>> = blocks.iter().map(|block| block.share()).collect();
    let body = move |x: &[Tensor]| Ok(vec![own.iter().fold(x[0].shallow_clone(), |x, block| block.forward(&x, true))]);
    Ok(checkpoint(&[&x], body)?.remove(0))
}

impl Step for Training {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        if self.technique == Technique::OptimizerStep {
            probe.at_rest();
            self.optimizer.step()?;
            self.tell(probe, &LIVE_STEP);
            self.tell_peak(probe);
            return Ok(());
        }
        self.zero_grad()?;
        probe.at_rest();
        if self.technique == Technique::NoGrad {
            self.loss = Some(tch::no_grad(|| self.forward(&self.batch))?);
            self.tell(probe, &LIVE_FORWARD);
            self.tell_peak(probe);
            return Ok(());
        }
        let parts = if self.technique == Technique::Accumulate { MICRO_BATCHES } else { 1 };
        let samples = self.batch.targets.size()[0] / parts;
        for part in 0..parts {
            let batch = self.batch.narrow(part * samples, samples);
            let loss = self.forward(&batch)?;
            let loss = if parts > 1 { loss / parts } else { loss };
            self.loss = Some(loss.shallow_clone());
            self.tell(probe, &LIVE_FORWARD);
            loss.f_backward()?;
        }
        self.tell(probe, &LIVE_BACKWARD);
        self.optimizer.step()?;
        self.tell(probe, &LIVE_STEP);
        self.tell_peak(probe);
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        let gradient = || Quantity { name: "gradient", tensors: self.model.gradients() };
        let parameter = || Quantity { name: "parameter", tensors: self.model.parameters() };
        let loss = || -> Result<Quantity> {
            let loss = self.loss.as_ref().context("no step was run")?;
            Ok(Quantity { name: "loss", tensors: vec![loss.shallow_clone()] })
        };
        Ok(match self.technique {
            Technique::NoGrad => vec![loss()?],
            Technique::OptimizerStep => vec![parameter()],
            _ => vec![gradient(), loss()?, parameter()],
        })
    }

    fn start(&self) -> Vec<(String, Tensor)> {
        let mut start: Vec<(String, Tensor)> = self.model.store.variables().into_iter().collect();
        start.sort_by(|a, b| a.0.cmp(&b.0));
        start.push(("inputs".to_string(), self.batch.inputs.shallow_clone()));
        start.push(("targets".to_string(), self.batch.targets.shallow_clone()));
        start
    }

    fn least_flops(&self) -> f64 {
        match self.technique {
            Technique::OptimizerStep | Technique::NoGrad => 0.0,
            _ => self.model.least_training_flops(self.batch.targets.size()[0]),
        }
    }
}
