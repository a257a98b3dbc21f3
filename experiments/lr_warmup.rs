//! Learning-rate warm-up: does a large batch under mixed precision need it?
//!
//! Guide 002 recommends warm-up for the combination of a large batch and mixed precision. What it should prevent is divergence, so a tiny
//! task that really converges is trained from many starts, at rates from those at which every start learns to those at which none
//! does, and the runs that learn nothing are counted. A run starts from its own parameters and sees the samples in its own order.
//!
//! In fp32 and bf16 all starts are trained at once, as one batched product for each layer. They share no number, so that one which
//! overflows leaves the others alone. Under fp16 each start is trained by itself: a `GradScaler` leaves a step out for all that it scales.
//!
//! Claims: warmup.

use anyhow::{Result, bail, ensure};
use std::ops::Range;
use std::process::ExitCode;
use tch::{Device, Kind, Reduction, Tensor};
use vramlab::measure::{Bench, Probe, Quantity, Step};
use vramlab::protocol::*;
use vramlab::stats::{median, wilson_interval};
use vramlab::torch::{GradScaler, Scalable, allow_tf32, autocast};
use vramlab::training::Precision;

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

const STARTS: Metric = Metric { name: "starts", label: "starts", unit: "1", pass: Pass::Memory };
const DIVERGED: Metric = Metric { name: "diverged", label: "diverged", unit: "1", pass: Pass::Memory };
const RATE: Metric = Metric { name: "rate", label: "divergence rate", unit: "1", pass: Pass::Memory };
/// The rate's 95 % interval, by Wilson.
const RATE_LOW: Metric = Metric { name: "rate_low", label: "rate at least", unit: "1", pass: Pass::Memory };
const RATE_HIGH: Metric = Metric { name: "rate_high", label: "rate at most", unit: "1", pass: Pass::Memory };
const LEARNED: Metric = Metric { name: "learned", label: "share of starts that learn", unit: "1", pass: Pass::Memory };
/// Median over the starts that learn of the mean over all samples, computed in fp32.
const LOSS: Metric = Metric { name: "loss", label: "loss after training", unit: "1", pass: Pass::Memory };
const FIRST_LOSS: Metric = Metric { name: "first_loss", label: "loss before", unit: "1", pass: Pass::Memory };

pub const PROTOCOL: Protocol = Protocol {
    name: "lr_warmup",
    title: "Learning-rate warm-up",
    question: "Does warm-up keep a large batch under mixed precision from diverging, and is it the batch or the precision that needs it?",
    hypothesis: "A run diverges where the rate is too large for the curvature at its start, and a ramp lets it move to where curvature is \
                 less. So warm-up should help near the largest rate that works, with any precision and any batch, and more \
                 with Adam, whose first steps all have full length.",
    factors: &[
        Factor { name: "optimizer", meaning: "optimizer", levels: &[Level { name: "momentum", meaning: "SGD with momentum 0.9" }] },
        Factor { name: "batch", meaning: "samples of a step, of 1024", levels: &[] },
        Factor {
            name: "precision",
            meaning: "in what the forward pass computes",
            levels: &[
                Level { name: "amp-bf16", meaning: "autocast to bfloat16" },
                Level { name: "amp-fp16", meaning: "autocast to fp16, with a GradScaler" },
            ],
        },
        Factor { name: "rate", meaning: "learning rate", levels: &[] },
        Factor {
            name: "warmup",
            meaning: "steps over which the rate grows to its value, of 48",
            levels: &[Level { name: "0", meaning: "none" }],
        },
    ],
    grids: &[
        rates(&[Profile::Quick], &[], &[MOMENTUM, LARGE, FP32_BF16, MOMENTUM_RATES, WARM_UP]),
        rates(&[Profile::Quick], &[], &[ADAM, LARGE, FP32_BF16, ADAM_RATES, WARM_UP]),
        rates(&[Profile::Quick], &[], &[MOMENTUM, SMALL, axis("precision", &["amp-bf16"]), axis("rate", &["0.4"]), WARM_UP]),
        rates(&[Profile::Full], &[], &[MOMENTUM, BATCHES, FP32_BF16, ALL_MOMENTUM_RATES, WARM_UPS]),
        rates(&[Profile::Full], &[], &[ADAM, BATCHES, FP32_BF16, ALL_ADAM_RATES, WARM_UPS]),
        rates(&[Profile::Full], &[Platform::Gpu], &[MOMENTUM, LARGE, FP16, ALL_MOMENTUM_RATES, WARM_UP]),
        rates(&[Profile::Full], &[Platform::Gpu], &[ADAM, LARGE, FP16, ALL_ADAM_RATES, WARM_UP]),
        rates(&[Profile::Smoke], &[], &[MOMENTUM, SMALL, axis("precision", &["amp-bf16"]), axis("rate", &["0.4"]), WARM_UP]),
        Grid {
            name: "the same task?",
            profiles: &[Profile::Quick, Profile::Full, Profile::Smoke],
            studied: "precision",
            axes: &[axis("optimizer", &["momentum", "adam"]), axis("batch", &["32"]), FP32_BF16],
            passes: &[Pass::Check],
            only_on: NOT_DRY,
        },
    ],
    metrics: &[STARTS, DIVERGED, RATE, RATE_LOW, RATE_HIGH, LEARNED, LOSS, FIRST_LOSS],
    checks: &[Check { when: "", expect: Relation::Equal { tolerance: 0.05 } }],
    claims: &[Claim {
        id: "warmup",
        from: "002",
        text: "a large batch with mixed precision wants warm-up",
        judged_on: &[Platform::Cpu, Platform::Gpu],
        rule: Rule::Ratio {
            metric: DIVERGED.name,
            of: "batch=256 precision=amp-bf16|amp-fp16",
            confirm: Bound::AtMost(0.5),
            refute: Bound::AtLeast(0.9),
            // With 32 starts, half of them against at most half as many is beyond chance (p = 0.03).
            scope: Some(Share { part: DIVERGED.name, whole: STARTS.name, at_least: 0.5 }),
        },
        meaning: Meaning {
            confirmed: "Use it: where half of the runs or more diverge without, warm-up leaves {effect} of them.",
            refuted: "It does not rescue a rate that is too large: where half of the runs or more diverge without warm-up, {effect} of them \
                      still do with it. fp32 beside it tells whether precision has anything to do with it. Lower the rate instead.",
            depends: "It rescues runs where {where}, not elsewhere: look at the optimizer and at how far beyond the largest rate that works \
                      you are.",
            inconclusive: "Warm-up leaves {effect} of the diverging runs, which is too little or too uncertain to recommend it.",
        },
    }],
    published: &[],
    plots: &[
        Plot {
            name: "learned",
            caption: "Share of the starts that learn, by learning rate, with the large batch; a line ends where none does",
            of: "batch=256 warmup=0|10",
            metric: LEARNED.name,
            kind: PlotKind::Lines { x: "rate", series: &["optimizer", "precision", "warmup"] },
        },
        Plot {
            name: "loss",
            caption: "Loss after training of the starts that learn, with the large batch",
            of: "batch=256 warmup=0|10",
            metric: LOSS.name,
            kind: PlotKind::Lines { x: "rate", series: &["optimizer", "precision", "warmup"] },
        },
    ],
    threats: &[
        "The task is tiny (20 features, 10 classes, three layers, 48 steps): it shows whether warm-up moves the largest rate that works, not \
         how a large model behaves over a long run.",
        "The ramp is linear, and the rate is constant after it, without decay.",
        "A run counts as diverged if its loss is not finite or stays above 90 % of what it was at the start; a run that would recover later \
         counts as diverged, too.",
    ],
};

const NOT_DRY: &[Platform] = &[Platform::Cpu, Platform::Gpu];
const MOMENTUM: Axis = axis("optimizer", &["momentum"]);
const ADAM: Axis = axis("optimizer", &["adam"]);
const LARGE: Axis = axis("batch", &["256"]);
const SMALL: Axis = axis("batch", &["32"]);
const BATCHES: Axis = axis("batch", &["32", "256"]);
const FP32_BF16: Axis = axis("precision", &["fp32", "amp-bf16"]);
const FP16: Axis = axis("precision", &["amp-fp16"]);
const MOMENTUM_RATES: Axis = axis("rate", &["0.8", "1.6", "2.4"]);
const ADAM_RATES: Axis = axis("rate", &["0.03", "0.1", "0.3"]);
const ALL_MOMENTUM_RATES: Axis = axis("rate", &["0.1", "0.2", "0.4", "0.8", "1.6", "2.4", "3.2"]);
const ALL_ADAM_RATES: Axis = axis("rate", &["0.01", "0.03", "0.1", "0.2", "0.3", "1"]);
const WARM_UP: Axis = axis("warmup", &["0", "10"]);
const WARM_UPS: Axis = axis("warmup", &["0", "10", "24"]);

const fn rates(profiles: &'static [Profile], only_on: &'static [Platform], axes: &'static [Axis]) -> Grid {
    // Values decide everything here, and a dry device has none.
    let only_on = if only_on.is_empty() { NOT_DRY } else { only_on };
    Grid { name: "divergence", profiles, studied: "warmup", axes, passes: &[Pass::Memory], only_on }
}

const MEMBERS: i64 = 32;
const STEPS: i64 = 48;
const SAMPLES: i64 = 1024;
const FEATURES: i64 = 20;
const WIDTH: i64 = 32;
const CLASSES: i64 = 10;

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    allow_tf32(false)?;
    let algorithm = match cell.level("optimizer")? {
        "momentum" => Algorithm::Momentum,
        "adam" => Algorithm::Adam,
        other => bail!("'{other}' is no optimizer of this experiment"),
    };
    let rate = match cell.get("rate") {
        Some(rate) => rate.parse()?,
        None => 1e-2,
    };
    let warm_up = if cell.get("warmup").is_some() { cell.number("warmup")? } else { 0 };
    let precision = cell.level("precision")?.parse().map_err(anyhow::Error::msg)?;
    let schedule = Schedule { algorithm, rate, warm_up };
    Ok(Box::new(Sweep::new(schedule, precision, cell.number("batch")?, bench.device)))
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Algorithm {
    Momentum,
    Adam,
}

#[derive(Debug, Clone, Copy)]
struct Schedule {
    algorithm: Algorithm,
    rate: f64,
    /// Steps.
    warm_up: i64,
}

impl Schedule {
    /// The rate of a step, which counts from 0.
    fn at(&self, step: i64) -> f64 {
        if step < self.warm_up { self.rate * (step + 1) as f64 / self.warm_up as f64 } else { self.rate }
    }
}

/// Networks of three layers with ReLU between them, each tensor with the member as its first dimension; and the optimizer over them.
struct Networks {
    /// Weight `[members, inputs, outputs]` and bias `[members, 1, outputs]` of each layer.
    parameters: Vec<Tensor>,
    /// First and second moment of each.
    moments: Vec<(Tensor, Tensor)>,
    algorithm: Algorithm,
    rate: f64,
    steps: i32,
}

impl Networks {
    fn new(start: &[Tensor], members: &Range<i64>, algorithm: Algorithm) -> Networks {
        let own = |t: &Tensor| t.narrow(0, members.start, members.end - members.start).copy();
        let parameters: Vec<Tensor> = start.iter().map(|t| own(t).set_requires_grad(true)).collect();
        let moments = start.iter().map(|t| (own(t).zeros_like(), own(t).zeros_like())).collect();
        Networks { parameters, moments, algorithm, rate: 0.0, steps: 0 }
    }

    /// Logits `[members, samples, classes]` of samples `[members, samples, features]`.
    fn forward(&self, x: &Tensor) -> Tensor {
        let [w1, b1, w2, b2, w3, b3] = &self.parameters[..] else { unreachable!("three layers have six parameters") };
        let x = x.bmm(w1) + b1;
        let x = x.relu().bmm(w2) + b2;
        x.relu().bmm(w3) + b3
    }

    /// Mean loss of each member `[members]`, for targets `[members, samples]`.
    fn losses(&self, x: &Tensor, targets: &Tensor) -> Tensor {
        let logits = self.forward(x).to_kind(Kind::Float).transpose(1, 2);
        logits.cross_entropy_loss::<Tensor>(targets, None, Reduction::None, -100, 0.0).mean_dim(1, false, None::<Kind>)
    }
}

impl Scalable for Networks {
    fn parameters(&self) -> Vec<Tensor> {
        self.parameters.iter().map(Tensor::shallow_clone).collect()
    }

    /// PyTorch's SGD with momentum 0.9 and its Adam, over all members at once.
    fn step(&mut self) -> Result<()> {
        self.steps += 1;
        let (steps, rate) = (self.steps, self.rate);
        tch::no_grad(|| -> Result<()> {
            for (parameter, (first, second)) in self.parameters.iter_mut().zip(&mut self.moments) {
                let gradient = parameter.grad();
                let change = match self.algorithm {
                    Algorithm::Momentum => {
                        *first = &*first * 0.9 + gradient;
                        &*first * rate
                    }
                    Algorithm::Adam => {
                        *first = &*first * 0.9 + &gradient * 0.1;
                        *second = &*second * 0.999 + gradient.square() * 0.001;
                        let (mean, square) = (&*first / (1.0 - 0.9f64.powi(steps)), &*second / (1.0 - 0.999f64.powi(steps)));
                        mean * rate / (square.sqrt() + 1e-8)
                    }
                };
                let _ = parameter.f_sub_(&change)?;
            }
            Ok(())
        })
    }
}

/// One schedule, tried from many starts.
struct Sweep {
    schedule: Schedule,
    precision: Precision,
    batch: i64,
    inputs: Tensor,
    targets: Tensor,
    start: Vec<Tensor>,
    /// Samples of each step `[members, steps, batch]`.
    order: Tensor,
    /// Gradients of the first step, for the check.
    gradients: Vec<Tensor>,
}

impl Sweep {
    fn new(schedule: Schedule, precision: Precision, batch: i64, device: Device) -> Sweep {
        let float = (Kind::Float, device);
        let inputs = Tensor::randn([SAMPLES, FEATURES], float);
        // What is to be learned: the largest of ten outputs of a network.
        let (first, second) = (Tensor::randn([FEATURES, 16], float), Tensor::randn([16, CLASSES], float));
        let targets = inputs.matmul(&first).tanh().matmul(&second).argmax(-1, false);
        let layer = |inputs: i64, outputs: i64| {
            let bound = 1.0 / (inputs as f64).sqrt();
            let weight = (Tensor::rand([MEMBERS, inputs, outputs], float) * 2.0 - 1.0) * bound;
            [weight, Tensor::zeros([MEMBERS, 1, outputs], float)]
        };
        let start = [layer(FEATURES, WIDTH), layer(WIDTH, WIDTH), layer(WIDTH, CLASSES)].into_iter().flatten().collect();
        // Each step draws its samples without replacement.
        let draws = Tensor::rand([MEMBERS, STEPS, SAMPLES], float).argsort(-1, false);
        let order = draws.narrow(2, 0, batch).contiguous();
        Sweep { schedule, precision, batch, inputs, targets, start, order, gradients: Vec::new() }
    }

    /// Trains some members for so many steps; gives the networks and each member's loss over all samples, before and after.
    fn train(&self, members: Range<i64>, steps: i64) -> Result<(Networks, [Vec<f64>; 2])> {
        let count = members.end - members.start;
        let mut networks = Networks::new(&self.start, &members, self.schedule.algorithm);
        let mut scaler = if self.precision == Precision::AmpFp16 { GradScaler::default() } else { GradScaler::disabled() };
        let before = self.all_losses(&networks, count)?;
        for step in 0..steps {
            let chosen = self.order.narrow(0, members.start, count).select(1, step).reshape([-1]);
            let x = self.inputs.index_select(0, &chosen).reshape([count, self.batch, FEATURES]);
            let targets = self.targets.index_select(0, &chosen).reshape([count, self.batch]);
            for parameter in &mut networks.parameters {
                parameter.zero_grad();
            }
            let losses = autocast(x.device(), self.precision.kind(), || networks.losses(&x, &targets))?;
            // A sum, so that each member gets the gradient of its own mean.
            scaler.scale(&losses.sum(Kind::Float))?.f_backward()?;
            networks.rate = self.schedule.at(step);
            scaler.step(&mut networks)?;
            scaler.update()?;
        }
        let after = self.all_losses(&networks, count)?;
        Ok((networks, [before, after]))
    }

    fn all_losses(&self, networks: &Networks, count: i64) -> Result<Vec<f64>> {
        let x = self.inputs.unsqueeze(0).expand([count, SAMPLES, FEATURES], false);
        let targets = self.targets.unsqueeze(0).expand([count, SAMPLES], false);
        Ok(Vec::<f64>::try_from(tch::no_grad(|| networks.losses(&x, &targets)).to_kind(Kind::Double))?)
    }

    fn study(&self, probe: &mut Probe) -> Result<()> {
        let groups: Vec<Range<i64>> = match self.precision {
            Precision::AmpFp16 => (0..MEMBERS).map(|member| member..member + 1).collect(),
            _ => std::iter::once(0..MEMBERS).collect(),
        };
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for members in groups {
            let (_, [first, last]) = self.train(members, STEPS)?;
            before.extend(first);
            after.extend(last);
        }
        let (starts, learned) = (before.len(), learned(&before, &after));
        let diverged = starts - learned.len();
        let rate = wilson_interval(u32::try_from(diverged)?, u32::try_from(starts)?);
        probe.figure(&STARTS, starts as f64);
        probe.figure(&DIVERGED, diverged as f64);
        probe.figure(&RATE, rate.estimate);
        probe.figure(&RATE_LOW, rate.low);
        probe.figure(&RATE_HIGH, rate.high);
        probe.figure(&LEARNED, 1.0 - rate.estimate);
        probe.figure(&FIRST_LOSS, median(&before));
        if !learned.is_empty() {
            probe.figure(&LOSS, median(&learned));
        }
        Ok(())
    }
}

/// The losses after training of the starts that learned something.
fn learned(before: &[f64], after: &[f64]) -> Vec<f64> {
    before.iter().zip(after).filter(|(before, after)| **after < 0.9 * **before).map(|(_, after)| *after).collect()
}

impl Step for Sweep {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        if probe.is_reading() {
            return self.study(probe);
        }
        let (networks, _) = self.train(0..2, 1)?;
        self.gradients = networks.parameters.iter().map(Tensor::grad).collect();
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        ensure!(!self.gradients.is_empty(), "the step was not run");
        let tensors = self.gradients.iter().map(Tensor::shallow_clone).collect();
        Ok(vec![Quantity { name: "gradient", tensors }])
    }
}
