//! Gradient accumulation: one batch of B, or k micro-batches of B/k?
//!
//! Guides 000, 001 and 002 promise less memory for the same update. Guide 000 adds the k losses as they are, guide 001 divides each by
//! k. Which is the full batch's gradient depends on how the loss is reduced, on the last micro-batch and on targets that are ignored;
//! the recipe `weight` (sum of the losses over the number of targets that count in the whole batch) is always right.
//!
//! Claims: accumulate-memory, accumulate-gradients, accumulate-normalise.

use anyhow::Result;
use std::process::ExitCode;
use tch::nn::{Adam, Optimizer, OptimizerConfig, Sgd};
use tch::{Reduction, Tensor};
use vramlab::measure::{Bench, Probe, Quantity, Step};
use vramlab::models::{Batch, IGNORED, Model};
use vramlab::protocol::*;

fn main() -> ExitCode {
    vramlab::run(&PROTOCOL, prepare)
}

pub const PROTOCOL: Protocol = Protocol {
    name: "accumulation",
    title: "Gradient accumulation",
    question: "Do k micro-batches of B/k need much less memory than one batch of B, do they give the same update, and what do they cost?",
    hypothesis: "Activations shrink by k and nothing else does: the peak falls where activations dominate, gradients stay as large as the \
                 parameters, and small micro-batches use the device worse.",
    factors: &[
        Factor { name: "model", meaning: "model", levels: &[] },
        Factor { name: "batch", meaning: "samples in one forward pass at k = 1", levels: &[] },
        Factor {
            name: "hold",
            meaning: "what stays the same when k grows",
            levels: &[
                Level { name: "effective-batch", meaning: "the effective batch: each micro-batch has batch/k samples" },
                Level { name: "micro-batch", meaning: "the micro-batch: a step processes k times as many samples" },
            ],
        },
        Factor { name: "k", meaning: "micro-batches in a step", levels: &[] },
        Factor { name: "optimizer", meaning: "optimizer", levels: &[] },
        Factor { name: "reduction", meaning: "how the loss is reduced over its targets", levels: &[] },
        Factor {
            name: "tail",
            meaning: "last micro-batch",
            levels: &[
                Level { name: "even", meaning: "as large as the others" },
                Level { name: "ragged", meaning: "three samples short" },
            ],
        },
        Factor {
            name: "targets",
            meaning: "targets that count",
            levels: &[
                Level { name: "all", meaning: "every target counts" },
                Level { name: "ignored", meaning: "half of the first micro-batch's targets are ignored (-100), as padding is" },
            ],
        },
        Factor {
            name: "recipe",
            meaning: "how the micro-batches' losses are combined",
            levels: &[
                Level { name: "full", meaning: "one batch, nothing to combine" },
                Level { name: "divide", meaning: "each loss divided by k (guide 001)" },
                Level { name: "add", meaning: "each loss as it is (guide 000)" },
                Level { name: "weight", meaning: "each sum of losses divided by the targets that count in the whole batch" },
            ],
        },
    ],
    grids: &[
        // Activations dominate.
        memory(&[Profile::Quick], &[axis("model", &["mlp-8x128"]), axis("batch", &["8192"]), HOLD_BATCH, K], TIMED),
        memory(&[Profile::Quick], &[axis("model", &["gpt-4x128"]), axis("batch", &["32"]), HOLD_BATCH, ONE_OR_FOUR], TIMED),
        memory(&[Profile::Quick], &[axis("model", &["resnet-4x16-gn"]), axis("batch", &["64"]), HOLD_BATCH, ONE_OR_FOUR], COUNTED),
        // Parameters dominate.
        memory(&[Profile::Quick], &[axis("model", &["mlp-4x2048"]), axis("batch", &["64"]), HOLD_BATCH, ONE_OR_FOUR], COUNTED),
        memory(
            &[Profile::Quick],
            &[axis("model", &["mlp-8x128"]), axis("batch", &["512"]), HOLD_MICRO_BATCH, axis("k", &["1", "8"])],
            TIMED,
        ),
        memory(&[Profile::Full], &[axis("model", &["mlp-8x2048"]), axis("batch", &["16384"]), HOLD_BATCH, K], TIMED),
        memory(&[Profile::Full], &[axis("model", &["gpt-12x768"]), axis("batch", &["256"]), HOLD_BATCH, K], TIMED),
        memory(&[Profile::Full], &[axis("model", &["resnet-8x64-gn"]), axis("batch", &["1024"]), HOLD_BATCH, K], TIMED),
        memory(
            &[Profile::Full],
            &[axis("model", &["mlp-8x8192"]), axis("batch", &["64"]), HOLD_BATCH, axis("k", &["1", "4"])],
            TIMED,
        ),
        memory(
            &[Profile::Full],
            &[axis("model", &["mlp-8x2048", "gpt-12x768"]), axis("batch", &["64"]), HOLD_MICRO_BATCH, axis("k", &["1", "8"])],
            TIMED,
        ),
        memory(
            &[Profile::Smoke],
            &[axis("model", &["mlp-2x32"]), axis("batch", &["256"]), HOLD_BATCH, axis("k", &["1", "4"])],
            TIMED,
        ),
        // The same update?
        equivalence(
            &[Profile::Quick, Profile::Full],
            &[
                axis("model", &["mlp-4x32"]),
                OPTIMIZER_SGD,
                axis("reduction", &["mean", "sum"]),
                axis("tail", &["even", "ragged"]),
                axis("targets", &["all", "ignored"]),
                axis("k", &["4"]),
                RECIPES,
            ],
        ),
        equivalence(
            &[Profile::Quick, Profile::Full],
            &[
                axis("model", &["mlp-4x32"]),
                axis("optimizer", &["adam"]),
                REDUCTION_MEAN,
                TAIL_EVEN,
                TARGETS_ALL,
                axis("k", &["4"]),
                RECIPES,
            ],
        ),
        equivalence(
            &[Profile::Quick, Profile::Full],
            &[
                axis("model", &["resnet-2x8-gn", "resnet-2x8-bn", "gpt-2x64"]),
                OPTIMIZER_SGD,
                REDUCTION_MEAN,
                TAIL_EVEN,
                TARGETS_ALL,
                axis("k", &["4"]),
                axis("recipe", &["full", "divide", "add"]),
            ],
        ),
        equivalence(
            &[Profile::Smoke],
            &[
                axis("model", &["mlp-2x32"]),
                OPTIMIZER_SGD,
                REDUCTION_MEAN,
                axis("tail", &["ragged"]),
                TARGETS_ALL,
                axis("k", &["4"]),
                RECIPES,
            ],
        ),
    ],
    metrics: &[
        PEAK,
        STEP_PEAK,
        ACTIVATIONS,
        GRADIENTS,
        Metric { name: "gradient_error", label: "gradient error", unit: "1", pass: Pass::Check },
        Metric { name: "update_error", label: "update error", unit: "1", pass: Pass::Check },
        Metric { label: "time per sample", ..TIME },
    ],
    checks: &[
        Check { when: "hold=micro-batch k=1", expect: Relation::Equal { tolerance: 1e-5 } },
        // More samples, so another gradient.
        Check { when: "hold=micro-batch", expect: Relation::Differs { at_least: 1e-2, at_most: 1e2 } },
        Check { when: "hold=effective-batch", expect: SAME },
        // Each micro-batch is normalised by itself.
        Check { when: "model=resnet-2x8-bn recipe=add", expect: Relation::Differs { at_least: 1.0, at_most: 10.0 } },
        Check { when: "model=resnet-2x8-bn recipe=divide", expect: Relation::Differs { at_least: 1e-3, at_most: 2.0 } },
        Check { when: "recipe=full|weight", expect: SAME },
        Check { when: "recipe=add reduction=sum", expect: SAME },
        Check { when: "recipe=divide reduction=sum", expect: Relation::DividedBy { factor: "k", tolerance: 1e-4 } },
        Check { when: "recipe=divide tail=even targets=all", expect: SAME },
        Check { when: "recipe=divide", expect: Relation::Differs { at_least: 1e-3, at_most: 1.0 } },
        Check { when: "recipe=add tail=even targets=all", expect: Relation::Times { factor: "k", tolerance: 1e-4 } },
        Check { when: "recipe=add", expect: Relation::Differs { at_least: 1.0, at_most: 10.0 } },
    ],
    claims: &[
        Claim {
            id: "accumulate-memory",
            from: "000 001 002",
            text: "k micro-batches of B/k need much less memory than one batch of B",
            judged_on: &[Platform::Cpu, Platform::Gpu, Platform::Dry],
            rule: Rule::Ratio {
                metric: PEAK.name,
                of: "hold=effective-batch k=4",
                confirm: Bound::AtMost(0.60),
                refute: Bound::AtLeast(0.90),
                scope: Some(Share { part: ACTIVATIONS.name, whole: PEAK.name, at_least: 0.5 }),
            },
            meaning: Meaning {
                confirmed: "Use it when activations fill the memory: four micro-batches bring the peak down to {effect} of the full batch's. \
                            Where parameters and optimizer state fill it, it saves next to nothing.",
                refuted: "It does not help here: at k = 4 the peak is still {effect} of the full batch's.",
                depends: "It helps only where {where}; elsewhere look at what fills the memory first.",
                inconclusive: "It helps less than the guides promise: the peak at k = 4 is {effect} of the full batch's.",
            },
        },
        Claim {
            id: "accumulate-gradients",
            from: "001",
            text: "accumulation shrinks the memory for gradients",
            judged_on: &[Platform::Cpu, Platform::Gpu, Platform::Dry],
            rule: Rule::Ratio {
                metric: GRADIENTS.name,
                of: "hold=effective-batch",
                confirm: Bound::AtMost(0.90),
                refute: Bound::Within(0.98, 1.02),
                scope: None,
            },
            meaning: Meaning {
                confirmed: "Gradients take {effect} of what they took.",
                refuted: "Do not expect it to: gradients are as large as the parameters whatever the batch is ({effect}). What shrinks is \
                          the activations.",
                depends: "Gradients shrink only where {where}.",
                inconclusive: "Gradients take {effect} of what they took: neither the same nor clearly less.",
            },
        },
        Claim {
            id: "accumulate-normalise",
            from: "000 001",
            text: "adding k losses as they are (000), or each divided by k (001), gives the full batch's update",
            judged_on: &[Platform::Cpu, Platform::Gpu],
            rule: Rule::Value {
                metric: "gradient_error",
                of: "recipe=divide|add",
                confirm: Bound::AtMost(1e-4),
                refute: Bound::AtLeast(1e-4),
            },
            meaning: Meaning {
                confirmed: "Both recipes give the full batch's gradient.",
                refuted: "Neither recipe gives the full batch's gradient; divide each sum of losses by the number of targets that count in \
                          the whole batch.",
                depends: "Know your loss. The recipes are right where {where}. Dividing the sum of losses by the number of targets that \
                          count in the whole batch is right everywhere but under batch normalisation, which sees other batches whatever \
                          you do. Adam hides a wrong factor (its update error stays small), SGD does not.",
                inconclusive: "The gradients' errors ({effect}) lie at the tolerance.",
            },
        },
    ],
    published: &[Published {
        id: "accumulate-speed",
        source: "Hugging Face, perf_train_gpu_one; ml-engineering",
        figure: "'no effect on speed' (at a fixed effective batch) against '20 to 30 % faster' (at a fixed micro-batch)",
        judged_on: &[Platform::Gpu],
        rule: Some(Rule::All(&[
            published_ratio(&TIME, "hold=effective-batch k=4", 1.0),
            // 20 to 30 % less time, or 1.2 to 1.3 times the samples in a second: the source does not say which.
            Rule::Ratio {
                metric: TIME.name,
                of: "hold=micro-batch k=8",
                confirm: Bound::Within(0.70, 0.83),
                refute: Bound::Outside(0.70, 0.83),
                scope: None,
            },
        ])),
        setup: "Both are time per sample here, of one step on one device: what several machines would save in communication is no part of it.",
    }],
    plots: &[
        Plot {
            name: "peak",
            caption: "Peak memory of a step against the full batch's (k = 1), at the same effective batch",
            of: "hold=effective-batch",
            metric: PEAK.name,
            kind: PlotKind::Bars { clusters: &["model"] },
        },
        Plot {
            name: "time",
            caption: "Time per sample against k = 1",
            of: "",
            metric: TIME.name,
            kind: PlotKind::Bars { clusters: &["hold", "model"] },
        },
        Plot {
            name: "equivalence",
            caption: "Relative error of the gradient against the full batch's, by recipe",
            of: "optimizer=sgd|adam",
            metric: "gradient_error",
            kind: PlotKind::Dots { rows: &["model", "optimizer", "reduction", "tail", "targets"], threshold: 1e-4 },
        },
    ],
    threats: &[
        "Inputs are random and on the device already: loading is another experiment's.",
        "Time per sample at small micro-batches shows how badly this device is filled, and travels to no other.",
        "Attention is libtorch's fused kernel, which keeps less than explicit attention; GPT's activations are that much smaller.",
    ],
};

const HOLD_BATCH: Axis = axis("hold", &["effective-batch"]);
const HOLD_MICRO_BATCH: Axis = axis("hold", &["micro-batch"]);
const ONE_OR_FOUR: Axis = axis("k", &["1", "4"]);
const K: Axis = axis("k", &["1", "2", "4", "8"]);
const RECIPES: Axis = axis("recipe", &["full", "divide", "add", "weight"]);
const OPTIMIZER_SGD: Axis = axis("optimizer", &["sgd"]);
const REDUCTION_MEAN: Axis = axis("reduction", &["mean"]);
const TAIL_EVEN: Axis = axis("tail", &["even"]);
const TARGETS_ALL: Axis = axis("targets", &["all"]);
const COUNTED: &[Pass] = &[Pass::Check, Pass::Memory];
const TIMED: &[Pass] = &[Pass::Check, Pass::Memory, Pass::Time];
const SAME: Relation = Relation::Equal { tolerance: 1e-4 };

const fn memory(profiles: &'static [Profile], axes: &'static [Axis], passes: &'static [Pass]) -> Grid {
    Grid { name: "memory and time", profiles, studied: "k", axes, passes, only_on: &[] }
}

const fn equivalence(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "the same update?", profiles, studied: "recipe", axes, passes: &[Pass::Check], only_on: &[] }
}

/// Samples of the batch in the grids about equivalence; small enough that a step is nothing.
const EQUIVALENCE_BATCH: i64 = 32;

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    let model = Model::named(cell.level("model")?, bench.device)?;
    let k = cell.number("k")?;
    let samples = match (cell.get("batch"), cell.get("hold")) {
        (Some(_), Some("micro-batch")) => k * cell.number("batch")?,
        (Some(_), _) => cell.number("batch")?,
        (None, _) => EQUIVALENCE_BATCH,
    };
    let mut batch = model.batch(samples);
    let micro = if cell.get("recipe") == Some("full") { samples } else { samples / k };
    if cell.get("tail") == Some("ragged") {
        batch = batch.narrow(0, samples - 3);
    }
    if cell.get("targets") == Some("ignored") {
        let _ = batch.targets.narrow(0, 0, samples / 8).fill_(IGNORED);
    }
    let reduction = if cell.get("reduction") == Some("sum") { Reduction::Sum } else { Reduction::Mean };
    let counted = batch.targets.not_equal(IGNORED).sum(tch::Kind::Int64).int64_value(&[]) as f64;
    // What each micro-batch's loss is reduced by and divided by.
    let (reduction, divisor) = match (cell.get("recipe"), reduction) {
        (Some("weight"), Reduction::Mean) => (Reduction::Sum, counted),
        (Some("full" | "add" | "weight"), reduction) => (reduction, 1.0),
        (_, reduction) => (reduction, k as f64),
    };
    let optimizer = match cell.get("optimizer") {
        Some("sgd") => Sgd::default().build(&model.store, 1e-2)?,
        _ => Adam::default().build(&model.store, 1e-3)?,
    };
    let before: Vec<Tensor> = model.parameters().iter().map(Tensor::copy).collect();
    let keep_update = cell.get("recipe").is_some();
    Ok(Box::new(Accumulate {
        model,
        optimizer,
        batch,
        micro,
        reduction,
        divisor,
        before: if keep_update { before } else { vec![] },
    }))
}

struct Accumulate {
    model: Model,
    optimizer: Optimizer,
    batch: Batch,
    /// Samples of a micro-batch; the last may have fewer.
    micro: i64,
    reduction: Reduction,
    divisor: f64,
    /// Parameters before the first step, where the update is compared.
    before: Vec<Tensor>,
}

impl Step for Accumulate {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        self.optimizer.zero_grad();
        let rest = probe.at_rest();
        let samples = self.batch.targets.size()[0];
        for first in (0..samples).step_by(self.micro as usize) {
            let micro = self.batch.narrow(first, self.micro.min(samples - first));
            let loss = probe.forward(|| {
                let logits = self.model.forward(&micro.inputs, true);
                Ok(self.model.loss(&logits, &micro.targets, self.reduction) / self.divisor)
            })?;
            loss.f_backward()?;
        }
        let gradients = probe.live() - rest;
        probe.record(GRADIENTS.name, gradients);
        self.optimizer.step();
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        let mut quantities = vec![Quantity { name: "gradient", tensors: self.model.gradients() }];
        if !self.before.is_empty() {
            let parameters = self.model.parameters();
            let update = parameters.iter().zip(&self.before).map(|(now, before)| now.detach() - before).collect();
            quantities.push(Quantity { name: "update", tensors: update });
        }
        Ok(quantities)
    }

    fn items(&self) -> f64 {
        self.batch.targets.size()[0] as f64
    }

    fn least_flops(&self) -> f64 {
        self.model.least_training_flops(self.batch.targets.size()[0])
    }
}
