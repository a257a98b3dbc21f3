//! Transfer learning: what does it save to train only the last part of a model, and what must be done for that?
//!
//! Guide 002 says that its techniques serve transfer learning and large models as well. A frozen backbone needs no gradients and no
//! optimizer state, and autograd need not keep its activations: unless it is only left out of the optimizer.
//!
//! Claims: scale.

use anyhow::{Result, bail};
use std::collections::HashSet;
use std::process::ExitCode;
use tch::{Reduction, Tensor};
use vramlab::measure::{Bench, Probe, Quantity, Step};
use vramlab::models::{Batch, Block, Model};
use vramlab::protocol::*;
use vramlab::torch::optimizers::{Algorithm, Implementation, Optimizer, ZeroGrad, named_parameters};

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

const STATE: Metric = Metric { name: "state", label: "optimizer state", unit: "B", pass: Pass::Memory };
/// Of all parameters, those that the optimizer moves.
const SHARE: Metric = Metric { name: "trained_share", label: "share trained", unit: "1", pass: Pass::Memory };

pub const PROTOCOL: Protocol = Protocol {
    name: "transfer_learning",
    title: "Transfer learning",
    question: "How much memory and time does it save to train only the last part of a model, and does it matter how the rest is frozen?",
    hypothesis: "A frozen backbone costs a forward pass, a third of the step's time, and its parameters: no gradients, no state, no saved \
                 activations. Running it under no_grad saves nothing more, because autograd records nothing where nothing needs a gradient. \
                 Leaving it out of the optimizer saves the state alone.",
    factors: &[
        Factor { name: "model", meaning: "model", levels: &[] },
        Factor { name: "batch", meaning: "samples", levels: &[] },
        Factor {
            name: "part",
            meaning: "the part that is trained in any case",
            levels: &[
                Level { name: "head", meaning: "the classifier" },
                Level { name: "last-block", meaning: "the last block and the classifier" },
            ],
        },
        Factor {
            name: "rest",
            meaning: "what is done with the rest of the model",
            levels: &[
                Level { name: "trained", meaning: "trained as well" },
                Level { name: "frozen", meaning: "its parameters need no gradient" },
                Level { name: "frozen-no-grad", meaning: "frozen, and run under no_grad" },
                Level { name: "left-out", meaning: "not given to the optimizer, and nothing else" },
            ],
        },
    ],
    grids: &[
        grid(&[Profile::Quick], &[RESNET, axis("batch", &["16"]), HEAD, RESTS], TIMED),
        grid(&[Profile::Quick], &[RESNET, axis("batch", &["16"]), LAST_BLOCK, RESTS], COUNTED),
        grid(&[Profile::Quick], &[GPT, axis("batch", &["8"]), HEAD, RESTS], TIMED),
        grid(&[Profile::Quick], &[GPT, axis("batch", &["8"]), LAST_BLOCK, axis("rest", &["trained", "frozen"])], COUNTED),
        grid(&[Profile::Full], &[axis("model", &["resnet50"]), axis("batch", &["128"]), PARTS, RESTS], TIMED),
        grid(&[Profile::Full], &[axis("model", &["bert-base"]), axis("batch", &["16"]), PARTS, RESTS], TIMED),
        grid(
            &[Profile::Smoke],
            &[axis("model", &["gpt-2x32"]), axis("batch", &["8"]), HEAD, axis("rest", &["trained", "frozen"])],
            TIMED,
        ),
    ],
    metrics: &[
        PEAK,
        STEP_PEAK,
        ACTIVATIONS,
        GRADIENTS,
        STATE,
        SHARE,
        Metric { name: "gradient_error", label: "gradient error", unit: "1", pass: Pass::Check },
        TIME,
    ],
    // Of the part that is trained in any case; the same kernels on the same numbers.
    checks: &[Check { when: "", expect: Relation::Equal { tolerance: 1e-5 } }],
    claims: &[Claim {
        id: "scale",
        from: "002",
        text: "transfer learning scales: with a frozen backbone a step needs much less memory and time than full training",
        judged_on: &[Platform::Cpu, Platform::Gpu, Platform::Dry],
        rule: Rule::All(&[
            Rule::Ratio {
                metric: PEAK.name,
                of: "rest=frozen|frozen-no-grad",
                confirm: Bound::AtMost(0.60),
                refute: Bound::AtLeast(0.90),
                scope: None,
            },
            Rule::Ratio {
                metric: TIME.name,
                of: "rest=frozen|frozen-no-grad",
                confirm: Bound::AtMost(0.60),
                refute: Bound::AtLeast(0.90),
                scope: None,
            },
        ]),
        meaning: Meaning {
            confirmed: "Freeze what you do not train ({effect} of full training), by requires_grad = false; no_grad around it adds nothing. Only \
                        leaving it out of the optimizer does not do: gradients and activations stay.",
            refuted: "Freezing saves too little here ({effect} of full training).",
            depends: "Freezing pays where {where} ({effect} of full training).",
            inconclusive: "Freezing saves ({effect} of full training), but not everywhere by as much as was asked.",
        },
    }],
    published: &[],
    plots: &[
        Plot {
            name: "peak",
            caption: "Peak memory of a training step against training the whole model",
            of: "",
            metric: PEAK.name,
            kind: PlotKind::Bars { clusters: &["model", "part"] },
        },
        Plot {
            name: "time",
            caption: "Time of a training step against training the whole model",
            of: "",
            metric: TIME.name,
            kind: PlotKind::Bars { clusters: &["model", "part"] },
        },
    ],
    threats: &[
        "Frozen layers run as in training: their batch norm still normalises by the batch and dropout still drops, so that gradients can be \
         compared with full training. Who sets them to evaluation saves a little more.",
        "Where the backbone is frozen for good its outputs could be computed once and kept, which saves the forward pass as well.",
        "Adam in PyTorch's default implementation: a loop on the CPU, foreach on a GPU.",
    ],
};

const RESNET: Axis = axis("model", &["resnet-6x16-bn"]);
const GPT: Axis = axis("model", &["gpt-6x128"]);
const HEAD: Axis = axis("part", &["head"]);
const LAST_BLOCK: Axis = axis("part", &["last-block"]);
const PARTS: Axis = axis("part", &["head", "last-block"]);
const RESTS: Axis = axis("rest", &["trained", "frozen", "frozen-no-grad", "left-out"]);
const COUNTED: &[Pass] = &[Pass::Check, Pass::Memory];
const TIMED: &[Pass] = &[Pass::Check, Pass::Memory, Pass::Time];

const fn grid(profiles: &'static [Profile], axes: &'static [Axis], passes: &'static [Pass]) -> Grid {
    Grid { name: "memory and time", profiles, studied: "rest", axes, passes, only_on: &[] }
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    let model = Model::named(cell.level("model")?, bench.device)?;
    let batch = model.batch(cell.number("batch")?);
    let cut = match cell.level("part")? {
        "head" => model.blocks.len(),
        "last-block" => model.blocks.len() - 1,
        other => bail!("'{other}' is no part"),
    };
    let rest = match cell.level("rest")? {
        "trained" => Rest::Trained,
        "frozen" => Rest::Frozen,
        "frozen-no-grad" => Rest::FrozenNoGrad,
        "left-out" => Rest::LeftOut,
        other => bail!("'{other}' is nothing to do with the rest"),
    };
    let part = parameters_after(&model, cut)?;
    let all = named_parameters(&model.store);
    let (of_part, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|(name, _)| part.contains(name));
    let kept: Vec<Tensor> = of_part.iter().map(|(_, parameter)| parameter.shallow_clone()).collect();
    let trained = match rest {
        Rest::Trained => of_part.into_iter().chain(others).collect(),
        Rest::LeftOut => of_part,
        Rest::Frozen | Rest::FrozenNoGrad => {
            others.into_iter().for_each(|(_, parameter)| drop(parameter.set_requires_grad(false)));
            of_part
        }
    };
    let optimizer = Optimizer::over(trained, Algorithm::adam(), 1e-4, Implementation::default_on(bench.device))?;
    Ok(Box::new(Transfer { model, optimizer, batch, cut, kept, no_grad: rest == Rest::FrozenNoGrad }))
}

#[derive(Clone, Copy, PartialEq)]
enum Rest {
    Trained,
    Frozen,
    FrozenNoGrad,
    LeftOut,
}

/// Names of the parameters that get a gradient where everything before block `cut` is cut off.
fn parameters_after(model: &Model, cut: usize) -> Result<HashSet<String>> {
    let batch = model.batch(2);
    let features = tch::no_grad(|| backbone(model, &batch.inputs, cut));
    loss(model, &features, cut, &batch.targets).f_backward()?;
    let mut found = HashSet::new();
    for (name, mut parameter) in named_parameters(&model.store) {
        if parameter.grad().defined() {
            found.insert(name);
            parameter.zero_grad();
        }
    }
    Ok(found)
}

/// The stem and the blocks before `cut`.
fn backbone(model: &Model, inputs: &Tensor, cut: usize) -> Tensor {
    run(&model.blocks[..cut], model.stem.forward(inputs, true))
}

/// The blocks from `cut` on, and the head.
fn loss(model: &Model, features: &Tensor, cut: usize, targets: &Tensor) -> Tensor {
    let x = run(&model.blocks[cut..], features.shallow_clone());
    model.loss(&model.head.forward(&x, true), targets, Reduction::Mean)
}

fn run(blocks: &[Box<dyn Block>], x: Tensor) -> Tensor {
    blocks.iter().fold(x, |x, block| block.forward(&x, true))
}

/// A training step of which a part of the model takes part.
struct Transfer {
    model: Model,
    optimizer: Optimizer,
    batch: Batch,
    /// Blocks before this one are the backbone.
    cut: usize,
    /// Parameters that are trained in any case.
    kept: Vec<Tensor>,
    no_grad: bool,
}

impl Step for Transfer {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        self.optimizer.zero_grad(ZeroGrad::ToNone)?;
        probe.at_rest();
        let loss = probe.forward(|| {
            let backbone = || backbone(&self.model, &self.batch.inputs, self.cut);
            let features = if self.no_grad { tch::no_grad(backbone) } else { backbone() };
            Ok(loss(&self.model, &features, self.cut, &self.batch.targets))
        })?;
        loss.f_backward()?;
        drop(loss);
        if probe.is_reading() {
            let parameters = self.model.store.trainable_variables();
            probe.record(GRADIENTS.name, parameters.iter().map(|p| bytes(&p.grad())).sum());
            let trained: i64 = self.optimizer.parameters().map(|(_, p)| bytes(p)).sum();
            probe.figure(&SHARE, trained as f64 / parameters.iter().map(bytes).sum::<i64>() as f64);
        }
        self.optimizer.step()?;
        if probe.is_reading() {
            probe.record(STATE.name, self.optimizer.state_bytes(self.batch.inputs.device())?);
        }
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "gradient", tensors: self.kept.iter().map(Tensor::grad).collect() }])
    }
}

/// Of a tensor; an undefined one has none.
fn bytes(tensor: &Tensor) -> i64 {
    if tensor.defined() { (tensor.numel() * tensor.kind().elt_size_in_bytes()) as i64 } else { 0 }
}
