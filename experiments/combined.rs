//! Techniques together: what mixed precision, checkpointing and accumulation give when they are combined, against what each gives alone.
//!
//! Guide 002 says that mixed precision and checkpointing together save the most. A full factorial design over both, accumulation and the
//! optimizer answers that, and more: what the sum of the single savings would have promised, whether savings multiply or get into one
//! another's way, which combinations are worth their price, and which batch fits a fixed budget, how fast.
//!
//! Claims: amp-and-checkpoint.

use anyhow::{Context, Result, bail};
use std::process::ExitCode;
use tch::{Device, Tensor};
use vramlab::measure::{Bench, Probe, Quantity, Step};
use vramlab::models::Settings;
use vramlab::protocol::*;
use vramlab::torch::allow_tf32;
use vramlab::training::{CheckpointPolicy, Configuration, Precision, Trainer};

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

const TIME_PER_SAMPLE: Metric = Metric { name: TIME.name, label: "time per sample", unit: "s", pass: Pass::Time };
/// Micro-batches, each as often as it is computed.
const FORWARDS: Metric = Metric { name: "forwards", label: "forward passes of a step", unit: "1", pass: Pass::Memory };
/// The plain peak less what each technique saves alone.
const PROMISED: Metric = Metric { name: "promised", label: "single savings added", unit: "B", pass: Pass::Memory };
/// The plain peak times what each technique leaves of it alone.
const MULTIPLIED: Metric = Metric { name: "multiplied", label: "single ratios multiplied", unit: "B", pass: Pass::Memory };
/// The peak over the single ratios multiplied: above 1 the techniques save the same bytes twice, below 1 they help one another.
const INTERACTION: Metric = Metric { name: "interaction", label: "interaction", unit: "1", pass: Pass::Memory };
const OF_BETTER: Metric = Metric { name: "of_better", label: "peak over the best single one's", unit: "1", pass: Pass::Memory };

pub const PROTOCOL: Protocol = Protocol {
    name: "combined",
    title: "Techniques combined",
    question: "What do mixed precision, checkpointing and accumulation save together, against what each saves alone, and at what price?",
    hypothesis: "Each works on the activations, so what one has saved the next cannot save again: together they save more than each alone and \
                 less than their sum. What is left in the end is parameters, gradients and optimizer state, which none of them \
                 touches.",
    factors: &[
        Factor { name: "model", meaning: "model", levels: &[] },
        Factor { name: "batch", meaning: "samples of a step", levels: &[] },
        Factor { name: "optimizer", meaning: "optimizer", levels: &[] },
        Factor { name: DEVICE_MEMORY, meaning: "memory of the device", levels: &[] },
        Factor {
            name: "with",
            meaning: "what is done about memory",
            levels: &[
                Level { name: "amp", meaning: "autocast to bfloat16" },
                Level { name: "checkpoint", meaning: "segments of sqrt(blocks) blocks" },
                Level { name: "accumulate", meaning: "4 micro-batches of a quarter of the samples" },
            ],
        },
    ],
    grids: &[
        factorial(
            &[Profile::Quick],
            &[axis("model", &["gpt-4x128"]), axis("batch", &["16"]), axis("optimizer", &["adamw"]), ALL],
            TIMED,
        ),
        factorial(
            &[Profile::Quick],
            &[axis("model", &["gpt-4x128"]), axis("batch", &["16"]), axis("optimizer", &["sgd"]), FEW],
            COUNTED,
        ),
        factorial(
            &[Profile::Quick],
            &[axis("model", &["resnet-9x16-gn"]), axis("batch", &["32"]), axis("optimizer", &["adamw"]), FEW],
            COUNTED,
        ),
        factorial(&[Profile::Full], &[axis("model", &["gpt2"]), axis("batch", &["8"]), OPTIMIZERS, ALL], TIMED),
        factorial(&[Profile::Full], &[axis("model", &["resnet50"]), axis("batch", &["64"]), OPTIMIZERS, ALL], TIMED),
        factorial(
            &[Profile::Smoke],
            &[axis("model", &["mlp-4x32"]), axis("batch", &["64"]), axis("optimizer", &["sgd"]), FEW],
            COUNTED,
        ),
        Grid {
            name: "what fits, and how fast?",
            profiles: &[Profile::Full],
            studied: "with",
            axes: &[
                axis(DEVICE_MEMORY, &["12GiB"]),
                axis("model", &["gpt2"]),
                axis("batch", &["4", "8", "16", "32", "64"]),
                axis("with", &["none", "amp", "checkpoint", "accumulate", "amp+checkpoint", "amp+checkpoint+accumulate"]),
            ],
            passes: &[Pass::Memory, Pass::Time],
            only_on: &[],
        },
    ],
    metrics: &[PEAK, PROMISED, MULTIPLIED, INTERACTION, OF_BETTER, FORWARDS, TIME_PER_SAMPLE],
    checks: &[
        // Batch norm sees each micro-batch by itself, so its gradients are those of other samples.
        Check {
            when: "model=resnet50 with=accumulate|amp+accumulate|checkpoint+accumulate|amp+checkpoint+accumulate",
            expect: Relation::Differs { at_least: 0.0, at_most: 2.0 },
        },
        Check { when: "model=resnet50", expect: Relation::Equal { tolerance: 0.5 } },
        // Eight bits of bf16, added up over a model.
        Check { when: "", expect: Relation::Equal { tolerance: 0.1 } },
    ],
    claims: &[Claim {
        id: "amp-and-checkpoint",
        from: "002",
        text: "mixed precision and checkpointing together save the most",
        judged_on: &[Platform::Gpu, Platform::Dry],
        rule: Rule::Value {
            metric: OF_BETTER.name,
            of: "optimizer=sgd|adamw with=amp+checkpoint",
            confirm: Bound::AtMost(0.90),
            refute: Bound::AtLeast(0.90),
        },
        meaning: Meaning {
            confirmed: "Use both where memory is short: together they bring the peak to {effect} of the better one's.",
            refuted: "The second one is hardly worth its price: together the peak is still {effect} of the better one's, because what is left \
                      is parameters, gradients, optimizer state and what one segment needs.",
            depends: "Both together pay where {where}; elsewhere what is left after the better one is not activations.",
            inconclusive: "Together the peak is {effect} of the better one's.",
        },
    }],
    published: &[],
    plots: &[
        Plot {
            name: "pareto-gpt",
            caption: "Peak memory against what it costs, for a GPT: left and low is better",
            of: "model=gpt2|gpt-4x128 optimizer=adamw",
            metric: PEAK.name,
            kind: PlotKind::Pareto { against: &[TIME.name, FORWARDS.name], looks: &[] },
        },
        Plot {
            name: "pareto-resnet",
            caption: "Peak memory against what it costs, for a ResNet: left and low is better",
            of: "model=resnet50|resnet-9x16-gn optimizer=adamw",
            metric: PEAK.name,
            kind: PlotKind::Pareto { against: &[TIME.name, FORWARDS.name], looks: &[] },
        },
        Plot {
            name: "peak",
            caption: "What each technique and each combination leaves of the plain step's peak",
            of: "optimizer=sgd|adamw",
            metric: PEAK.name,
            kind: PlotKind::Bars { clusters: &["model", "optimizer"] },
        },
        Plot {
            name: "effects",
            caption: "What each does to the peak, averaged over all combinations of the others; of two: above 1x they save the same bytes, below \
                      they help one another",
            of: "optimizer=sgd|adamw",
            metric: PEAK.name,
            kind: PlotKind::Effects { factors: &["with", "optimizer"] },
        },
        Plot {
            name: "effects-time",
            caption: "What each does to the time per sample, averaged over all combinations of the others; of two: above 1x they get into one \
                      another's way",
            of: "optimizer=sgd|adamw",
            metric: TIME.name,
            kind: PlotKind::Effects { factors: &["with", "optimizer"] },
        },
        Plot {
            name: "budget",
            caption: "Peak memory by batch on a card of 12 GiB; where it ran out there is a cross",
            of: "device-memory=12GiB",
            metric: PEAK.name,
            kind: PlotKind::Lines { x: "batch", series: &["with"] },
        },
        Plot {
            name: "throughput",
            caption: "Time per sample by batch on a card of 12 GiB: the lowest point of each line is its best throughput within the budget",
            of: "device-memory=12GiB",
            metric: TIME.name,
            kind: PlotKind::Lines { x: "batch", series: &["with"] },
        },
    ],
    threats: &[
        "Dropout is off, so that gradients can be compared across precisions.",
        "Each technique has one setting: bf16, segments of sqrt(blocks), 4 micro-batches. Others trade otherwise; `vramlab plan` tries more.",
        "Without a device that computes, the price is the number of forward passes, which says nothing of how long each takes.",
    ],
};

const OPTIMIZERS: Axis = axis("optimizer", &["sgd", "adamw"]);
const ALL: Axis = axis(
    "with",
    &[
        "none",
        "amp",
        "checkpoint",
        "accumulate",
        "amp+checkpoint",
        "amp+accumulate",
        "checkpoint+accumulate",
        "amp+checkpoint+accumulate",
    ],
);
const FEW: Axis = axis("with", &["none", "amp", "checkpoint", "amp+checkpoint"]);
const COUNTED: &[Pass] = &[Pass::Check, Pass::Memory];
const TIMED: &[Pass] = &[Pass::Check, Pass::Memory, Pass::Time];
const MICRO_BATCHES: i64 = 4;

const fn factorial(profiles: &'static [Profile], axes: &'static [Axis], passes: &'static [Pass]) -> Grid {
    Grid { name: "factorial", profiles, studied: "with", axes, passes, only_on: &[] }
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    allow_tf32(false)?;
    let techniques: Vec<&'static str> = match cell.level("with")? {
        "none" => Vec::new(),
        with => with.split('+').map(known).collect::<Result<_>>()?,
    };
    let model = cell.level("model")?;
    let settings = Settings { dropout: (!model.starts_with("resnet")).then_some(0.0), ..Settings::default() };
    let optimizer = cell.get("optimizer").unwrap_or("adamw").parse().map_err(anyhow::Error::msg)?;
    let plain = Configuration { settings, optimizer, ..Configuration::new(model, cell.number("batch")?) };
    let trainer = Trainer::load(&with(&plain, &techniques), bench.device)?;
    // On a limited device the plain step may not fit, so there nothing is put beside it.
    let compares = techniques.len() > 1 && cell.get(DEVICE_MEMORY).is_none();
    Ok(Box::new(Combined { plain, techniques, trainer, compares, device: bench.device }))
}

fn known(technique: &str) -> Result<&'static str> {
    let all = ["amp", "checkpoint", "accumulate"];
    all.into_iter().find(|name| *name == technique).with_context(|| format!("'{technique}' is no technique"))
}

fn with(plain: &Configuration, techniques: &[&str]) -> Configuration {
    let uses = |name: &str| techniques.contains(&name);
    Configuration {
        precision: if uses("amp") { Precision::AmpBf16 } else { Precision::Fp32 },
        checkpoint: if uses("checkpoint") { CheckpointPolicy::Sqrt } else { CheckpointPolicy::None },
        accumulate: if uses("accumulate") { MICRO_BATCHES } else { 1 },
        ..plain.clone()
    }
}

struct Combined {
    plain: Configuration,
    techniques: Vec<&'static str>,
    trainer: Trainer,
    /// Whether the plain step and each single technique are counted beside it.
    compares: bool,
    device: Device,
}

impl Combined {
    /// Peak of a third step, as the memory pass counts one, of another configuration in this process.
    fn peak_of(&self, techniques: &[&str], probe: &mut Probe) -> Result<f64> {
        let before = probe.live();
        let mut trainer = Trainer::load(&with(&self.plain, techniques), self.device)?;
        for _ in 0..2 {
            trainer.iterate(&mut |_, _| Ok(()))?;
        }
        probe.reset_peaks();
        trainer.iterate(&mut |_, _| Ok(()))?;
        let Some(memory) = probe.memory() else { bail!("the meter says nothing") };
        Ok((memory.requested_peak - before) as f64)
    }

    fn beside(&self, probe: &mut Probe) -> Result<(f64, Vec<f64>)> {
        let plain = self.peak_of(&[], probe)?;
        let singles = self.techniques.iter().map(|technique| self.peak_of(&[*technique], probe)).collect::<Result<_>>()?;
        Ok((plain, singles))
    }
}

impl Step for Combined {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        let beside = if self.compares && probe.is_reading() { Some(self.beside(probe)?) } else { None };
        probe.reset_peaks();
        self.trainer.iterate(&mut |_, _| Ok(()))?;
        let configuration = self.trainer.configuration();
        let recomputed = u32::from(configuration.checkpoint != CheckpointPolicy::None);
        probe.figure(&FORWARDS, (configuration.accumulate * i64::from(1 + recomputed)) as f64);
        if let (Some((plain, singles)), Some(memory)) = (beside, probe.memory()) {
            let peak = memory.requested_peak as f64;
            let promised = plain - singles.iter().map(|single| plain - single).sum::<f64>();
            let multiplied = singles.iter().fold(plain, |left, single| left * single / plain);
            probe.figure(&PROMISED, promised);
            probe.figure(&MULTIPLIED, multiplied);
            probe.figure(&INTERACTION, peak / multiplied);
            probe.figure(&OF_BETTER, peak / singles.iter().copied().fold(f64::INFINITY, f64::min));
        }
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "gradient", tensors: self.trainer.model().gradients().iter().map(Tensor::detach).collect() }])
    }

    fn items(&self) -> f64 {
        self.plain.batch as f64
    }

    fn least_flops(&self) -> f64 {
        match self.trainer.configuration().precision {
            Precision::Fp32 => self.trainer.model().least_training_flops(self.plain.batch),
            _ => 0.0,
        }
    }
}
