//! Can memory be predicted before the run? Guide 002's formula, and the dry device, against the meter.
//!
//! The formula is M = P·D_param + B·A·D_act + O·D_opt. What A, 'the activations', counts is left to the reader; it is read here in the
//! formula's favour, as everything that a forward pass really leaves alive for the backward pass. So what the formula still misses is
//! what it has no term for: gradients, and what lives only for a moment. The dry device runs the same step on PyTorch's own
//! allocator and counts.
//!
//! Claims: formula.

use anyhow::{Context, Result};
use std::process::ExitCode;
use tch::Tensor;
use vramlab::measure::{Bench, Probe, Quantity, Step};
use vramlab::protocol::*;
use vramlab::runner::dry_twin;
use vramlab::torch::Phase;
use vramlab::training::{Configuration, OptimizerKind, Trainer};

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

const FORMULA: Metric = Metric { name: "formula", label: "the formula", unit: "B", pass: Pass::Memory };
const PREDICTED: Metric = Metric { name: "predicted", label: "the dry device", unit: "B", pass: Pass::Memory };
/// Errors are relative to the measured peak: with their sign, negative where too little is predicted, and without.
const FORMULA_SIGNED: Metric = Metric { name: "formula_signed", label: "signed error, formula", unit: "1", pass: Pass::Memory };
const PREDICTED_SIGNED: Metric = Metric { name: "predicted_signed", label: "signed error, dry", unit: "1", pass: Pass::Memory };
const FORMULA_ERROR: Metric = Metric { name: "formula_error", label: "error, formula", unit: "1", pass: Pass::Memory };
const PREDICTED_ERROR: Metric = Metric { name: "predicted_error", label: "error, dry", unit: "1", pass: Pass::Memory };
/// What of the peak the formula leaves out; gradients stand beside it, which it has no term for.
const MISSING: Metric = Metric { name: "missing", label: "formula leaves out", unit: "B", pass: Pass::Memory };
const FORMULA_WRONG: Metric = Metric { name: "formula_wrong", label: "wrong fit calls, formula", unit: "1", pass: Pass::Memory };
const PREDICTED_WRONG: Metric = Metric { name: "predicted_wrong", label: "wrong fit calls, dry", unit: "1", pass: Pass::Memory };

pub const PROTOCOL: Protocol = Protocol {
    name: "memory_model",
    title: "Predicting memory",
    question: "Does the guides' formula tell how much memory a training step will need, and does a dry run?",
    hypothesis: "The formula underestimates wherever gradients or temporaries matter: everywhere that parameters do. A dry run counts what \
                 PyTorch allocates, so it agrees but for kernels that allocate otherwise on another device.",
    factors: &[
        Factor { name: "model", meaning: "model", levels: &[] },
        Factor { name: "batch", meaning: "samples of a step", levels: &[] },
        Factor { name: "optimizer", meaning: "optimizer", levels: &[] },
        Factor { name: "precision", meaning: "precision of the forward pass", levels: &[] },
        Factor { name: "accumulate", meaning: "micro-batches of a step", levels: &[] },
        Factor {
            name: "checkpoint",
            meaning: "what is recomputed",
            levels: &[Level { name: "sqrt", meaning: "segments of sqrt(blocks) blocks" }],
        },
    ],
    grids: &[
        grid(
            &[Profile::Quick],
            &[
                axis("model", &["mlp-8x128", "mlp-4x512", "resnet-4x16-gn", "gpt-4x128"]),
                axis("batch", &["16", "64"]),
                axis("optimizer", &["sgd", "adam"]),
                axis("precision", &["fp32"]),
                axis("accumulate", &["1", "4"]),
                axis("checkpoint", &["none", "sqrt"]),
            ],
        ),
        grid(
            &[Profile::Full],
            &[
                axis("model", &["resnet50", "gpt2", "bert-base", "vit-l16"]),
                axis("batch", &["8", "32"]),
                axis("optimizer", &["sgd", "adamw"]),
                axis("precision", &["fp32", "amp-bf16"]),
                axis("accumulate", &["1", "4"]),
                axis("checkpoint", &["none", "sqrt"]),
            ],
        ),
        grid(
            &[Profile::Smoke],
            &[
                axis("model", &["mlp-2x32"]),
                axis("batch", &["16"]),
                axis("optimizer", &["adam"]),
                axis("precision", &["fp32"]),
                axis("accumulate", &["1"]),
                axis("checkpoint", &["none", "sqrt"]),
            ],
        ),
    ],
    metrics: &[
        PEAK,
        FORMULA,
        MISSING,
        GRADIENTS,
        PREDICTED,
        FORMULA_SIGNED,
        PREDICTED_SIGNED,
        FORMULA_WRONG,
        PREDICTED_WRONG,
        ACTIVATIONS,
        FORMULA_ERROR,
        PREDICTED_ERROR,
    ],
    checks: &[Check { when: "", expect: Relation::Equal { tolerance: 1e-4 } }],
    claims: &[
        Claim {
            id: "formula",
            from: "002",
            text: "M = P·D_param + B·A·D_act + O·D_opt predicts memory before the run",
            judged_on: &[Platform::Cpu, Platform::Gpu],
            rule: Rule::Agreement {
                metric: FORMULA.name,
                reference: PEAK.name,
                of: "",
                within: Bound::Within(0.9, 1.1),
                share: 0.9,
            },
            meaning: Meaning {
                confirmed: "The formula is good enough to plan with ({effect} of the measured peak).",
                refuted: "Do not plan with it: it gives {effect} of the measured peak even where 'activations' is read in its favour. It has no \
                          term for gradients, which is what it leaves out where parameters dominate, and none for what a recomputed segment \
                          or a backward pass needs for a moment, which is the most of it under checkpointing. It is within 10 % where \
                          {where}. `vramlab predict` gives the peak instead.",
                depends: "It is right where {where}.",
                inconclusive: "It could not be shown how good it is.",
            },
        },
        Claim {
            id: "dry-run",
            from: "this lab",
            text: "a dry run predicts the peak of requested bytes within 1 %",
            // It pretends a GPU; a CPU's convolutions need other temporaries.
            judged_on: &[Platform::Gpu],
            rule: Rule::Agreement {
                metric: PREDICTED.name,
                reference: PEAK.name,
                of: "",
                within: Bound::Within(0.99, 1.01),
                share: 0.9,
            },
            meaning: Meaning {
                confirmed: "Plan with it: `vramlab predict` and `vramlab plan` give {effect} of the measured peak.",
                refuted: "It is not good enough here: {effect} of the measured peak. It agrees where {where}; elsewhere this device's kernels \
                          allocate otherwise than the pretended GPU's.",
                depends: "It is right where {where}.",
                inconclusive: "It could not be shown how good it is.",
            },
        },
    ],
    published: &[],
    plots: &[
        Plot {
            name: "formula",
            caption: "The formula's error, relative to the measured peak",
            of: "",
            metric: FORMULA_ERROR.name,
            kind: PlotKind::Dots { rows: &["model", "batch", "optimizer", "accumulate"], threshold: 0.1 },
        },
        Plot {
            name: "dry",
            caption: "The dry device's error, relative to the measured peak",
            of: "",
            metric: PREDICTED_ERROR.name,
            kind: PlotKind::Dots { rows: &["model", "batch", "optimizer", "accumulate"], threshold: 0.01 },
        },
    ],
    threats: &[
        "On a CPU the kernels are others than the pretended GPU's: convolutions, attention and norms may need other temporaries.",
        "Requested bytes are what tensors ask for. What a GPU's allocator reserves, and what context and libraries take, comes on top.",
        "Wrong fit calls are counted over 17 pretended cards from a quarter to four times the measured peak, in steps of a quarter octave.",
    ],
};

const fn grid(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid {
        name: "configurations",
        profiles,
        studied: "checkpoint",
        axes,
        passes: &[Pass::Memory],
        only_on: &[Platform::Cpu, Platform::Gpu],
    }
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    let parse = anyhow::Error::msg;
    let configuration = Configuration {
        optimizer: cell.level("optimizer")?.parse().map_err(parse)?,
        precision: cell.level("precision")?.parse().map_err(parse)?,
        checkpoint: cell.level("checkpoint")?.parse().map_err(parse)?,
        accumulate: cell.number("accumulate")?,
        ..Configuration::new(cell.level("model")?, cell.number("batch")?)
    };
    let trainer = Trainer::load(&configuration, bench.device)?;
    let is_twin = bench.platform == Platform::Dry;
    Ok(Box::new(Modelled { cell: cell.clone(), optimizer: configuration.optimizer, trainer, is_twin }))
}

struct Modelled {
    cell: Cell,
    optimizer: OptimizerKind,
    trainer: Trainer,
    /// Whether this is the prediction that another process asked for.
    is_twin: bool,
}

impl Modelled {
    /// The guide's formula in bytes, for parameters and optimizer state of four bytes.
    fn formula(&self, activations: i64) -> f64 {
        let states = self.optimizer.state_numbers();
        (self.trainer.model().parameter_count() * 4 * (1 + states)) as f64 + activations as f64
    }
}

/// Share of pretended cards around the true need for which a prediction says the wrong thing about fitting.
fn wrong_calls(predicted: f64, needed: f64) -> f64 {
    let cards = (-8..=8).map(|quarters| needed * 2f64.powf(f64::from(quarters) / 4.0));
    let wrong = cards.clone().filter(|card| (predicted <= *card) != (needed <= *card)).count();
    wrong as f64 / cards.count() as f64
}

impl Step for Modelled {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        // An iteration begins by dropping the gradients of the one before.
        let gradients: usize = self.trainer.model().gradients().iter().filter(|g| g.defined()).map(|g| g.numel() * 4).sum();
        let (mut kept, mut before) = (0, probe.live() - gradients as i64);
        self.trainer.iterate(&mut |mark, _| {
            match mark.phase {
                Phase::Forward => kept = kept.max(probe.live() - before),
                // Without gradients of micro-batches before it, which are no activations.
                _ => before = probe.live(),
            }
            Ok(())
        })?;
        probe.record(ACTIVATIONS.name, kept);
        if self.is_twin || !probe.is_reading() {
            return Ok(());
        }
        let needed = probe.memory().context("the meter says nothing")?.requested_peak as f64;
        let samples = dry_twin(&self.cell)?;
        let peak = samples.iter().find(|sample| sample.metric == PEAK.name);
        let predicted = peak.context("the dry device told no peak")?.value;
        let formula = self.formula(kept);
        probe.figure(&FORMULA, formula);
        probe.figure(&MISSING, needed - formula);
        probe.record(GRADIENTS.name, gradients as i64);
        probe.figure(&PREDICTED, predicted);
        for (signed, error, figure) in
            [(&FORMULA_SIGNED, &FORMULA_ERROR, formula), (&PREDICTED_SIGNED, &PREDICTED_ERROR, predicted)]
        {
            let relative = figure / needed - 1.0;
            probe.figure(signed, relative);
            probe.figure(error, relative.abs());
        }
        probe.figure(&FORMULA_WRONG, wrong_calls(formula, needed));
        probe.figure(&PREDICTED_WRONG, wrong_calls(predicted, needed));
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "gradient", tensors: self.trainer.model().gradients().iter().map(Tensor::detach).collect() }])
    }
}
