//! Activation checkpointing: keep a segment's input only, and compute the rest again when the backward pass needs it.
//!
//! Guides 002 and 003 promise activation memory for compute. With segments of sqrt(n) blocks the need should grow with the square root
//! of the depth (Chen et al., arXiv 1604.06174), for at most one more forward pass.
//!
//! Claims: checkpoint-memory.

use anyhow::{Result, bail};
use std::process::ExitCode;
use tch::nn::{Optimizer, OptimizerConfig, Sgd};
use tch::{Kind, Reduction, Tensor};
use vramlab::measure::{Bench, Probe, Quantity, Step};
use vramlab::models::{Batch, Block, Model};
use vramlab::protocol::*;
use vramlab::torch::{autocast, checkpoint};

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

pub const PROTOCOL: Protocol = Protocol {
    name: "checkpointing",
    title: "Activation checkpointing",
    question: "How much activation memory does recomputation save, how does the saving grow with depth, and what does it cost in time?",
    hypothesis: "Without checkpointing a step's memory grows linearly with depth; with segments of sqrt(n) blocks as its square root. The \
                 time grows by one forward pass at most, about a third of the step.",
    factors: &[
        Factor { name: "model", meaning: "model", levels: &[] },
        Factor { name: "width", meaning: "features", levels: &[] },
        Factor { name: "batch", meaning: "samples", levels: &[] },
        Factor { name: "depth", meaning: "blocks", levels: &[] },
        Factor {
            name: "policy",
            meaning: "what is checkpointed",
            levels: &[
                Level { name: "none", meaning: "nothing" },
                Level { name: "every-block", meaning: "each block is a segment" },
                Level { name: "sqrt", meaning: "segments of sqrt(depth) blocks, rounded up" },
                Level { name: "every-4", meaning: "segments of 4 blocks" },
                Level { name: "every-16", meaning: "segments of 16 blocks" },
            ],
        },
        Factor {
            name: "case",
            meaning: "what the recomputation must get right",
            levels: &[
                Level { name: "dropout", meaning: "random numbers: a GPT with dropout 0.1" },
                Level { name: "autocast", meaning: "the autocast state: forward under bf16, backward outside" },
                Level { name: "inputs-outputs", meaning: "segments of three inputs (one of integers) and two outputs" },
                Level { name: "no-gradient-input", meaning: "a first segment whose input needs no gradient" },
                Level { name: "nested", meaning: "segments inside segments" },
            ],
        },
        Factor { name: DEVICE_MEMORY, meaning: "memory of the device", levels: &[] },
    ],
    grids: &[
        by_depth(
            &[Profile::Quick],
            &[MLP, axis("width", &["64"]), axis("batch", &["2048"]), OTHER_DEPTHS, QUICK_POLICIES],
            COUNTED,
        ),
        by_depth(&[Profile::Quick], &[MLP, axis("width", &["64"]), axis("batch", &["2048"]), DEPTH_64, QUICK_POLICIES], TIMED),
        by_depth(&[Profile::Quick], &[GPT, axis("width", &["128"]), axis("batch", &["8"]), axis("depth", &["9"]), POLICIES], TIMED),
        by_depth(
            &[Profile::Full],
            &[MLP, axis("width", &["1024"]), axis("batch", &["16384"]), OTHER_DEPTHS, FULL_POLICIES],
            COUNTED,
        ),
        by_depth(&[Profile::Full], &[MLP, axis("width", &["1024"]), axis("batch", &["16384"]), DEPTH_64, FULL_POLICIES], TIMED),
        by_depth(
            &[Profile::Full],
            &[GPT, axis("width", &["1024"]), axis("batch", &["128"]), axis("depth", &["16", "25"]), POLICIES],
            TIMED,
        ),
        by_depth(
            &[Profile::Smoke],
            &[MLP, axis("width", &["32"]), axis("batch", &["256"]), axis("depth", &["16"]), axis("policy", &["none", "sqrt"])],
            TIMED,
        ),
        // Real memory, really exhausted.
        budget(&[Profile::Quick], &[axis(DEVICE_MEMORY, &["48MiB"]), axis("batch", &["2048"]), BUDGET_DEPTHS, NONE_OR_SQRT]),
        budget(&[Profile::Full], &[axis(DEVICE_MEMORY, &["1GiB"]), axis("batch", &["65536"]), BUDGET_DEPTHS, NONE_OR_SQRT]),
        budget(&[Profile::Smoke], &[axis(DEVICE_MEMORY, &["1MiB"]), axis("batch", &["256"]), axis("depth", &["16"]), NONE_OR_SQRT]),
        correctness(&[Profile::Quick, Profile::Full], &[CASES, POLICIES]),
        correctness(&[Profile::Smoke], &[axis("case", &["dropout"]), axis("policy", &["none", "every-block"])]),
    ],
    metrics: &[
        STEP_PEAK,
        PEAK,
        ACTIVATIONS,
        Metric { name: "gradient_error", label: "gradient error", unit: "1", pass: Pass::Check },
        TIME,
    ],
    checks: &[
        // The same kernels on the same numbers; cuBLAS and cuDNN may still choose other kernels for a recomputation.
        Check { when: "", expect: Relation::Equal { tolerance: 1e-6 } },
    ],
    claims: &[Claim {
        id: "checkpoint-memory",
        from: "002 003",
        text: "checkpointing saves activation memory for compute",
        judged_on: &[Platform::Cpu, Platform::Gpu, Platform::Dry],
        rule: Rule::All(&[
            Rule::Ratio {
                metric: STEP_PEAK.name,
                of: "model=mlp depth=64 policy=sqrt",
                confirm: Bound::AtMost(0.50),
                refute: Bound::AtLeast(0.90),
                scope: None,
            },
            Rule::Exponent {
                metric: STEP_PEAK.name,
                along: "depth",
                of: "model=mlp policy=none",
                confirm: Bound::Within(0.9, 1.1),
                refute: Bound::AtMost(0.75),
            },
            Rule::Exponent {
                metric: STEP_PEAK.name,
                along: "depth",
                of: "model=mlp policy=sqrt",
                confirm: Bound::Within(0.35, 0.65),
                refute: Bound::AtLeast(0.75),
            },
            Rule::Ratio {
                metric: TIME.name,
                of: "model=mlp depth=64 policy=sqrt",
                confirm: Bound::AtMost(1.50),
                refute: Bound::AtLeast(1.50),
                scope: None,
            },
        ]),
        meaning: Meaning {
            confirmed: "The best trade where activations fill the memory: at 64 blocks, segments of sqrt(n) bring what a step needs \
                        above rest to {effect}. The deeper the model, the larger the saving; the price is about one more forward pass.",
            refuted: "It does not keep its promise here ({effect}): look at which part fails before you pay for it.",
            depends: "It keeps its promise where {where}.",
            inconclusive: "The saving is there ({effect}), but not every part of the promise could be shown here.",
        },
    }],
    published: &[Published {
        id: "chen-sqrt",
        source: "Chen et al., arXiv 1604.06174",
        figure: "memory grows as the square root of the depth instead of linearly (1000 layers: 48 to 7 GB), at about 30 % more time",
        judged_on: &[Platform::Cpu, Platform::Gpu, Platform::Dry],
        rule: Some(Rule::All(&[
            Rule::Exponent {
                metric: STEP_PEAK.name,
                along: "depth",
                of: "model=mlp policy=none",
                confirm: Bound::Within(0.9, 1.1),
                refute: Bound::Outside(0.9, 1.1),
            },
            Rule::Exponent {
                metric: STEP_PEAK.name,
                along: "depth",
                of: "model=mlp policy=sqrt",
                confirm: Bound::Within(0.4, 0.6),
                refute: Bound::Outside(0.4, 0.6),
            },
            published_ratio(&TIME, "model=mlp depth=64 policy=sqrt", 1.30),
        ])),
        setup: "The growth is compared, on an MLP up to 128 blocks, and the time at 64. The bytes of the 1000-layer ResNet are not: they \
                hold parameters and a planner of memory that nobody uses today.",
    }],
    plots: &[
        Plot {
            name: "depth",
            caption: "What a step needs above rest by depth; a straight line's slope is the growth exponent",
            of: "model=mlp",
            metric: STEP_PEAK.name,
            kind: PlotKind::Lines { x: "depth", series: &["policy"] },
        },
        Plot {
            name: "time",
            caption: "Time of a step against the one without checkpointing",
            of: "",
            metric: TIME.name,
            kind: PlotKind::Bars { clusters: &["model", "depth"] },
        },
        Plot {
            name: "budget",
            caption: "Peak memory on a device of limited memory; where it ran out there is no figure",
            of: "device-memory=48MiB|1GiB",
            metric: PEAK.name,
            kind: PlotKind::Lines { x: "depth", series: &["policy"] },
        },
    ],
    threats: &[
        "Blocks are equal; a model whose blocks differ wants its segments chosen by bytes, not by number.",
        "Checkpointing here is reentrant and saves the random state of each segment (5 kB of CPU memory), as PyTorch's default does.",
        "The last segment is checkpointed like the others; leaving it out would save its recomputation.",
    ],
};

const MLP: Axis = axis("model", &["mlp"]);
const GPT: Axis = axis("model", &["gpt"]);
const OTHER_DEPTHS: Axis = axis("depth", &["8", "16", "32", "128"]);
const DEPTH_64: Axis = axis("depth", &["64"]);
const BUDGET_DEPTHS: Axis = axis("depth", &["16", "32", "64", "128"]);
const POLICIES: Axis = axis("policy", &["none", "every-block", "sqrt"]);
const NONE_OR_SQRT: Axis = axis("policy", &["none", "sqrt"]);
const QUICK_POLICIES: Axis = axis("policy", &["none", "every-block", "sqrt", "every-4"]);
const FULL_POLICIES: Axis = axis("policy", &["none", "every-block", "sqrt", "every-4", "every-16"]);
const CASES: Axis = axis("case", &["dropout", "autocast", "inputs-outputs", "no-gradient-input", "nested"]);
const COUNTED: &[Pass] = &[Pass::Check, Pass::Memory];
const TIMED: &[Pass] = &[Pass::Check, Pass::Memory, Pass::Time];

const fn by_depth(profiles: &'static [Profile], axes: &'static [Axis], passes: &'static [Pass]) -> Grid {
    Grid { name: "by depth", profiles, studied: "policy", axes, passes, only_on: &[] }
}

const fn budget(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "what fits?", profiles, studied: "policy", axes, passes: &[Pass::Memory], only_on: &[] }
}

const fn correctness(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "the same gradients?", profiles, studied: "policy", axes, passes: &[Pass::Check], only_on: &[] }
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    let case = cell.get("case").unwrap_or("");
    let (model, samples) = match case {
        "" => {
            let (kind, width) = (cell.get("model").unwrap_or("mlp"), cell.get("width").unwrap_or("64"));
            (Model::named(&format!("{kind}-{}x{width}", cell.number("depth")?), bench.device)?, cell.number("batch")?)
        }
        "dropout" => (Model::with_dropout("gpt-4x64", bench.device, 0.1)?, 4),
        _ => (Model::named("mlp-9x64", bench.device)?, 32),
    };
    let depth = model.blocks.len();
    let segment = match cell.level("policy")? {
        "none" => None,
        "sqrt" => Some((depth as f64).sqrt().ceil() as usize),
        "every-block" => Some(1),
        policy => match policy.strip_prefix("every-").and_then(|n| n.parse().ok()) {
            Some(n) => Some(n),
            None => bail!("'{policy}' is no policy"),
        },
    };
    let batch = model.batch(samples);
    let optimizer = Sgd::default().build(&model.store, 1e-2)?;
    let kind = if case == "autocast" { Kind::BFloat16 } else { Kind::Float };
    Ok(Box::new(Checkpointed { model, optimizer, batch, segment, nested: case == "nested", pairs: case == "inputs-outputs", kind }))
}

struct Checkpointed {
    model: Model,
    optimizer: Optimizer,
    batch: Batch,
    /// Blocks in a segment; none where nothing is checkpointed.
    segment: Option<usize>,
    nested: bool,
    /// Segments of several inputs and outputs.
    pairs: bool,
    /// What autocast casts to in the forward pass.
    kind: Kind,
}

impl Checkpointed {
    fn loss(&self) -> Result<Tensor> {
        let x = self.model.stem.forward(&self.batch.inputs, true);
        let x = if self.pairs { self.paired_blocks(x)? } else { self.blocks(x)? };
        Ok(self.model.loss(&self.model.head.forward(&x, true), &self.batch.targets, Reduction::Mean))
    }

    fn blocks(&self, mut x: Tensor) -> Result<Tensor> {
        let Some(length) = self.segment else {
            return Ok(self.model.blocks.iter().fold(x, |x, block| block.forward(&x, true)));
        };
        for blocks in self.model.blocks.chunks(length) {
            x = segment(blocks, &x, self.nested)?;
        }
        Ok(x)
    }

    /// Blocks that pass on two tensors and read a third, of integers.
    fn paired_blocks(&self, x: Tensor) -> Result<Tensor> {
        let order = Tensor::arange(x.size()[1], (Kind::Int64, x.device())).flip([0]);
        let mut state = vec![x.shallow_clone(), x * 0.5];
        for blocks in self.model.blocks.chunks(self.segment.unwrap_or(1)) {
            let own: Vec<Box<dyn Block>> = blocks.iter().map(|block| block.share()).collect();
            let body = move |x: &[Tensor]| {
                let (mut a, mut b) = (x[0].shallow_clone(), x[1].shallow_clone());
                for block in &own {
                    (a, b) = (block.forward(&a, true) + b.index_select(1, &x[2]), &b * a.tanh());
                }
                Ok(vec![a, b])
            };
            let inputs = [&state[0], &state[1], &order];
            state = if self.segment.is_some() { checkpoint(&inputs, body)? } else { body(&inputs.map(Tensor::shallow_clone))? };
        }
        Ok(&state[0] + &state[1])
    }
}

/// Runs blocks as one checkpointed segment; nested, each block is a segment of its own inside.
fn segment(blocks: &[Box<dyn Block>], x: &Tensor, nested: bool) -> Result<Tensor> {
    let own: Vec<Box<dyn Block>> = blocks.iter().map(|block| block.share()).collect();
    let mut outputs = checkpoint(&[x], move |x| {
        let mut x = x[0].shallow_clone();
        for block in &own {
            x = if nested { segment(std::slice::from_ref(block), &x, false)? } else { block.forward(&x, true) };
        }
        Ok(vec![x])
    })?;
    Ok(outputs.remove(0))
}

impl Step for Checkpointed {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        self.optimizer.zero_grad();
        probe.at_rest();
        let loss = probe.forward(|| autocast(self.batch.inputs.device(), self.kind, || self.loss())?)?;
        loss.f_backward()?;
        self.optimizer.step();
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "gradient", tensors: self.model.gradients() }])
    }

    fn least_flops(&self) -> f64 {
        if self.kind == Kind::Float { self.model.least_training_flops(self.batch.targets.size()[0]) } else { 0.0 }
    }
}
