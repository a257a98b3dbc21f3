//! Figures that others published of what a training step's memory is made of: does this lab count the same?
//!
//! Three sources give bytes that can be counted on any device with PyTorch's kernels for CUDA, a dry one included: what a transformer
//! layer saves for the backward pass (Korthikanti et al., arXiv 2205.05198), what a ViT-L/16 and Adam take (PyTorch's tutorial on
//! stepping inside the backward pass), and what accumulation, checkpointing and fp16 leave of BERT-large's memory (Hugging Face's
//! guide to training on one GPU). Published figures that other experiments are about stand with those.
//!
//! Published: activation-bytes, vit-l16-optimizer, hf-bert-large.

use anyhow::{Result, bail};
use std::process::ExitCode;
use tch::{Device, Kind, Reduction, Tensor, no_grad};
use vramlab::measure::{Bench, Probe, Quantity, Step};
use vramlab::models::{Attention, Batch, Model, Settings};
use vramlab::protocol::*;
use vramlab::torch::attempt;
use vramlab::torch::optimizers::{Algorithm, Implementation, Optimizer, ZeroGrad};
use vramlab::training::{CheckpointPolicy, Configuration, OptimizerKind, Precision, Trainer};

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

const FORMULA: Metric = Metric { name: "formula", label: "the formula", unit: "B", pass: Pass::Memory };
const PARAMETERS: Metric = Metric { name: "parameters", label: "parameters", unit: "B", pass: Pass::Memory };
const STATE: Metric = Metric { name: "optimizer_state", label: "optimizer state", unit: "B", pass: Pass::Memory };
/// What the step's peak lies above parameters, gradients, optimizer state and data.
const TEMPORARIES: Metric = Metric { name: "temporaries", label: "temporaries", unit: "B", pass: Pass::Memory };
const RESERVED: Metric = Metric { name: "reserved_peak", label: "peak reserved", unit: "B", pass: Pass::Memory };

pub const PROTOCOL: Protocol = Protocol {
    name: "published",
    title: "Published figures of memory",
    question: "Do formulas and tables that others published for the memory of a training step come out here, too?",
    hypothesis: "A layer with explicit attention saves what the formula says, because the formula counts the tensors that autograd saves; \
                 today's fused attention saves far less. Parameters, gradients and Adam's state are arithmetic. Ratios of a whole table \
                 depend on what a driver shows beside PyTorch's own memory, and come out roughly.",
    factors: &[
        Factor { name: "model", meaning: "model", levels: &[] },
        Factor { name: "batch", meaning: "samples of a step", levels: &[] },
        Factor { name: "sequence", meaning: "tokens of a sample", levels: &[] },
        Factor {
            name: "attention",
            meaning: "how attention is computed",
            levels: &[
                Level { name: "explicit", meaning: "product, softmax, dropout, product" },
                Level { name: "fused", meaning: "libtorch's fused kernel" },
            ],
        },
        Factor {
            name: "adam",
            meaning: "how Adam steps through the parameters",
            levels: &[
                Level { name: "loop", meaning: "one after the other, as libtorch does" },
                Level { name: "foreach", meaning: "all at once, one operation after the other: PyTorch's default on CUDA" },
                Level { name: "fused", meaning: "all at once in one kernel" },
            ],
        },
        Factor {
            name: "setup",
            meaning: "what is done about memory",
            levels: &[
                Level { name: "plain", meaning: "nothing: the whole batch at once, in fp32" },
                Level { name: "accumulate", meaning: "a sample at a time" },
                Level { name: "accumulate-checkpoint", meaning: "a sample at a time, each layer computed again" },
                Level { name: "fp16", meaning: "autocast to fp16" },
                Level { name: "all", meaning: "all three" },
            ],
        },
    ],
    grids: &[
        layer(
            &[Profile::Quick, Profile::Full],
            &[axis("model", &["gpt2-medium"]), axis("batch", &["4"]), axis("sequence", &["128", "512", "1024"]), ATTENTION],
        ),
        layer(&[Profile::Smoke], &[axis("model", &["gpt-2x64"]), axis("batch", &["2"]), axis("sequence", &["32"]), ATTENTION]),
        parts(&[Profile::Quick, Profile::Full], &[axis("model", &["vit-l16"]), axis("batch", &["1"]), ADAM]),
        parts(&[Profile::Smoke], &[axis("model", &["mlp-2x32"]), axis("batch", &["1"]), ADAM]),
        table(&[Profile::Quick, Profile::Full], &[axis("model", &["bert-large"]), axis("batch", &["4"]), SETUPS]),
        table(
            &[Profile::Smoke],
            &[axis("model", &["gpt-2x64"]), axis("batch", &["4"]), axis("setup", &["plain", "accumulate", "all"])],
        ),
    ],
    metrics: &[ACTIVATIONS, FORMULA, PARAMETERS, GRADIENTS, STATE, TEMPORARIES, PEAK, RESERVED, TIME],
    checks: &[
        // The same layers in fp16, without dropout; the same parameters after a step; and the same training, without dropout, whose
        // forward pass may be in fp16.
        Check { when: "attention=explicit|fused", expect: Relation::Equal { tolerance: 1e-2 } },
        Check { when: "setup=fp16|all", expect: Relation::Equal { tolerance: 5e-2 } },
        Check { when: "", expect: Relation::Equal { tolerance: 1e-3 } },
    ],
    claims: &[],
    published: &[
        Published {
            id: "activation-bytes",
            source: "Korthikanti et al., arXiv 2205.05198",
            figure: "a transformer layer saves s·b·h·(34 + 5·a·s/h) bytes in fp16, with explicit attention and byte masks of dropout",
            judged_on: &[Platform::Gpu, Platform::Dry],
            rule: Some(Rule::Agreement {
                metric: ACTIVATIONS.name,
                reference: FORMULA.name,
                of: "attention=explicit",
                within: Bound::Within(1.0 - REPRODUCES, 1.0 + REPRODUCES),
                share: 1.0,
            }),
            setup: "Counted over the 24 layers of GPT-2 medium (h = 1024, a = 16, b = 4) at three lengths s. The formula leaves the norms' \
                    means and deviations out.",
        },
        Published {
            id: "vit-l16-optimizer",
            source: "PyTorch tutorial 'How to save memory by fusing the optimizer step into the backward pass'",
            figure: "ViT-L/16, Adam, batch 1: parameters 1.2 GB, gradients 1.2 GB, optimizer state 2.4 GB, temporaries 1.2 GB",
            judged_on: &[Platform::Gpu, Platform::Dry],
            rule: Some(Rule::All(&[
                published_value(&PARAMETERS, "model=vit-l16", 1.2e9),
                published_value(&GRADIENTS, "model=vit-l16", 1.2e9),
                published_value(&STATE, "model=vit-l16", 2.4e9),
                published_value(&TEMPORARIES, "model=vit-l16 adam=foreach", 1.2e9),
            ])),
            setup: "The same model and batch. The temporaries are those of PyTorch's default, which steps all parameters at once (foreach).",
        },
        Published {
            id: "hf-bert-large",
            source: "Hugging Face, perf_train_gpu_one (older text)",
            figure: "BERT-large, 512 tokens, Adam, against batch 4 in fp32: accumulation 4 x 1 0.58 of the memory at 0.87 of the speed; with \
                     checkpointing 0.45 at 0.68; fp16 0.93 at 2.10; all three 0.49 at 1.14",
            judged_on: &[Platform::Gpu, Platform::Dry],
            rule: Some(Rule::All(&[
                published_ratio(&RESERVED, "model=bert-large setup=accumulate", 0.58),
                published_ratio(&RESERVED, "model=bert-large setup=accumulate-checkpoint", 0.45),
                published_ratio(&RESERVED, "model=bert-large setup=fp16", 0.93),
                published_ratio(&RESERVED, "model=bert-large setup=all", 0.49),
                published_ratio(&TIME, "model=bert-large setup=accumulate", 1.0 / 0.87),
                published_ratio(&TIME, "model=bert-large setup=accumulate-checkpoint", 1.0 / 0.68),
                published_ratio(&TIME, "model=bert-large setup=fp16", 1.0 / 2.10),
                published_ratio(&TIME, "model=bert-large setup=all", 1.0 / 1.14),
            ])),
            setup: "Theirs is what the driver shows, with the CUDA context; ours is what PyTorch reserves. Attention is explicit, as it was \
                    in that model then. Speed is the inverse of time.",
        },
    ],
    plots: &[
        Plot {
            name: "layer",
            caption: "What 24 transformer layers save for the backward pass, in fp16; the formula is about explicit attention",
            of: "model=gpt2-medium",
            metric: ACTIVATIONS.name,
            kind: PlotKind::Lines { x: "sequence", series: &["attention"] },
        },
        Plot {
            name: "bert",
            caption: "What is left of BERT-large's reserved memory",
            of: "model=bert-large",
            metric: RESERVED.name,
            kind: PlotKind::Bars { clusters: &["model"] },
        },
    ],
    threats: &[
        "Sources name neither every setting nor the version of every kernel; within a tenth of a figure says that it travels, not that it is \
         the same.",
        "On the CPU dropout keeps masks of the values' own type, so there the formula is not about the same tensors.",
    ],
};

const ATTENTION: Axis = axis("attention", &["explicit", "fused"]);
const ADAM: Axis = axis("adam", &["loop", "foreach", "fused"]);
const SETUPS: Axis = axis("setup", &["plain", "accumulate", "accumulate-checkpoint", "fp16", "all"]);

/// Kernels that the published figures are of; their allocations are known without them.
const DEVICES: &[Platform] = &[Platform::Gpu, Platform::Dry];

const fn layer(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "a layer", profiles, studied: "attention", axes, passes: &[Pass::Check, Pass::Memory], only_on: DEVICES }
}

const fn parts(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "parts", profiles, studied: "adam", axes, passes: &[Pass::Check, Pass::Memory], only_on: DEVICES }
}

const fn table(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "a table", profiles, studied: "setup", axes, passes: &[Pass::Check, Pass::Memory, Pass::Time], only_on: DEVICES }
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    if cell.get("attention").is_some() {
        return Layers::prepare(cell, bench);
    }
    if cell.get("adam").is_some() {
        return Parts::prepare(cell, bench);
    }
    let mut configuration =
        Configuration { optimizer: OptimizerKind::Adam, ..Configuration::new(cell.level("model")?, cell.number("batch")?) };
    configuration.settings.attention = Attention::Explicit;
    let (accumulate, checkpoint, fp16) = match cell.get("setup").unwrap_or("plain") {
        "plain" => (false, false, false),
        "accumulate" => (true, false, false),
        "accumulate-checkpoint" => (true, true, false),
        "fp16" => (false, false, true),
        "all" => (true, true, true),
        other => bail!("'{other}' is no setup"),
    };
    if accumulate {
        configuration.accumulate = configuration.batch;
    }
    if checkpoint {
        configuration.checkpoint = CheckpointPolicy::EveryBlock;
    }
    if fp16 {
        configuration.precision = Precision::AmpFp16;
    }
    let trainer = Trainer::load(&configuration, bench.device)?;
    Ok(Box::new(Trained { trainer, device: bench.device, seed: bench.seed }))
}

/// The blocks of a transformer in fp16, forward and backward.
struct Layers {
    model: Model,
    /// What the stem gives to the first block: `[b, s, h]`.
    inputs: Tensor,
    /// Bytes that all blocks save by the formula.
    formula: f64,
}

/// Width of one head in the published GPTs.
const HEAD: i64 = 64;

impl Layers {
    fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
        let settings = Settings {
            sequence: Some(cell.number("sequence")?),
            attention: cell.level("attention")?.parse().map_err(anyhow::Error::msg)?,
            dropout: Some(0.1),
            ..Settings::default()
        };
        let model = Model::with(cell.level("model")?, &settings, bench.device)?;
        // One after the other in a fixed order, which the store's own cast has not: the allocator's figures depend on it.
        for mut parameter in model.parameters() {
            let half = parameter.to_kind(Kind::Half);
            parameter.set_data(&half);
        }
        let batch = model.batch(cell.number("batch")?);
        let inputs = no_grad(|| model.stem.forward(&batch.inputs, false)).set_requires_grad(true);
        let size = inputs.size();
        let [b, s, h] = size[..] else { bail!("a block of this model does not take vectors of tokens") };
        let (tokens, heads) = ((s * b * h) as f64, (h / HEAD) as f64);
        let formula = model.blocks.len() as f64 * tokens * (34.0 + 5.0 * heads * s as f64 / h as f64);
        Ok(Box::new(Layers { model, inputs, formula }))
    }

    fn forward(&self, train: bool) -> Tensor {
        self.model.blocks.iter().fold(self.inputs.shallow_clone(), |x, block| block.forward(&x, train))
    }
}

impl Step for Layers {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        self.model.store.trainable_variables().iter_mut().for_each(Tensor::zero_grad);
        probe.at_rest();
        // The first block's input is not counted and the last block's output is: together each block's input is counted once.
        let outputs = probe.forward(|| Ok(self.forward(true)))?;
        probe.figure(&FORMULA, self.formula);
        outputs.f_mean(None::<Kind>)?.f_backward()?;
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "output", tensors: vec![no_grad(|| self.forward(false))] }])
    }
}

/// A model in training with Adam, whose bytes are told apart.
struct Parts {
    model: Model,
    batch: Batch,
    optimizer: Optimizer,
}

impl Parts {
    fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
        let implementation = match cell.level("adam")? {
            "loop" => Implementation::Loop,
            "foreach" => Implementation::Foreach,
            "fused" => Implementation::Fused,
            other => bail!("'{other}' is no implementation"),
        };
        let model = Model::named(cell.level("model")?, bench.device)?;
        let batch = model.batch(cell.number("batch")?);
        let optimizer = Optimizer::new(&model.store, Algorithm::adam(), 1e-3, implementation)?;
        Ok(Box::new(Parts { model, batch, optimizer }))
    }
}

fn bytes(tensors: &[Tensor]) -> i64 {
    tensors.iter().filter(|t| t.defined()).map(|t| (t.numel() * t.kind().elt_size_in_bytes()) as i64).sum()
}

impl Step for Parts {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        self.optimizer.zero_grad(ZeroGrad::ToNone)?;
        probe.at_rest();
        let (model, batch) = (&self.model, &self.batch);
        let loss = attempt(|| Ok(model.loss(&model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean)))?;
        loss.f_backward()?;
        drop(loss);
        let before_step = probe.live();
        self.optimizer.step()?;
        let (parameters, gradients) = (bytes(&model.parameters()), bytes(&model.gradients()));
        let data = bytes(&[batch.inputs.shallow_clone(), batch.targets.shallow_clone()]);
        probe.record(PARAMETERS.name, parameters);
        probe.record(GRADIENTS.name, gradients);
        probe.record(STATE.name, before_step - parameters - gradients - data);
        if let Some(memory) = probe.memory() {
            probe.record(TEMPORARIES.name, memory.requested_peak - before_step);
        }
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "parameter", tensors: self.model.parameters().iter().map(Tensor::detach).collect() }])
    }
}

/// A model in training with one of the table's setups.
struct Trained {
    trainer: Trainer,
    device: Device,
    seed: i64,
}

impl Step for Trained {
    fn run(&mut self, _: &mut Probe) -> Result<()> {
        self.trainer.iterate(&mut |_, _| Ok(()))
    }

    /// Gradients of a first step without dropout, which would differ from one micro-batch to the next.
    fn outcome(&self) -> Result<Vec<Quantity>> {
        tch::manual_seed(self.seed);
        let mut configuration = self.trainer.configuration().clone();
        configuration.settings.dropout = Some(0.0);
        let mut trainer = Trainer::load(&configuration, self.device)?;
        trainer.iterate(&mut |_, _| Ok(()))?;
        Ok(vec![Quantity { name: "gradient", tensors: trainer.model().gradients().iter().map(Tensor::detach).collect() }])
    }

    fn items(&self) -> f64 {
        self.trainer.configuration().batch as f64
    }
}
