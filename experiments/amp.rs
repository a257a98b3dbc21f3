//! Automatic mixed precision: the forward pass computes in half precision where that is safe, parameters stay fp32.
//!
//! Guide 002 promises nearly half of the memory and much more speed from tensor cores, guide 003 half of the forward pass's memory with
//! weights and gradients in fp32, and both that a `GradScaler` keeps fp16 from losing gradients that are too small or too large.
//! Memory is asked of real models, speed from steps that only launch kernels to steps that only compute, and the scaler of a
//! small task that is really learned.
//!
//! Claims: amp-forward-half, amp-memory-half, amp-weights-fp32, amp-faster, amp-scaler.

use anyhow::{Result, bail, ensure};
use std::process::ExitCode;
use tch::nn::{Adam, Optimizer, OptimizerConfig, Sgd, VarStore};
use tch::{Device, Kind, Reduction, Tensor};
use vramlab::measure::{Bench, Probe, Quantity, Step, distance};
use vramlab::models::{Batch, Model, Settings};
use vramlab::protocol::*;
use vramlab::torch::{Autocast, GradScaler, Phase, ScalerState, allow_tf32, autocast};
use vramlab::training::{Configuration, Precision, Trainer};

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

const PARAMETERS: Metric = Metric { name: "parameters", label: "parameters", unit: "B", pass: Pass::Memory };
const STATE: Metric = Metric { name: "optimizer_state", label: "optimizer state", unit: "B", pass: Pass::Memory };
/// Copies of parameters in half precision, which autocast makes once in each forward pass. The backward pass needs most of them, so they are
/// among the saved activations.
const CASTS: Metric = Metric { name: "casts", label: "cast cache", unit: "B", pass: Pass::Memory };
/// What the peak has beyond parameters, optimizer state, data and saved activations.
const OTHERS: Metric = Metric { name: "others", label: "gradients and temporaries at the peak", unit: "B", pass: Pass::Memory };
/// Mean over samples that were not trained on, computed in fp32.
const LOSS: Metric = Metric { name: "loss", label: "loss after training", unit: "1", pass: Pass::Memory };
/// Of the parameters' gradients, those that are 0 where fp32's are not.
const ZEROS: Metric = Metric { name: "zeros", label: "gradients lost to 0", unit: "1", pass: Pass::Memory };
const NOT_ZERO: Metric = Metric { name: "not_zero", label: "gradients that are not 0 in fp32", unit: "1", pass: Pass::Memory };
const ERROR: Metric = Metric { name: "fp32_error", label: "gradient error against fp32", unit: "1", pass: Pass::Memory };
const SKIPPED: Metric = Metric { name: "skipped", label: "steps skipped", unit: "1", pass: Pass::Memory };
const LOWEST: Metric = Metric { name: "lowest_scale", label: "lowest scale", unit: "1", pass: Pass::Memory };
const LAST: Metric = Metric { name: "last_scale", label: "last scale", unit: "1", pass: Pass::Memory };
/// The last scale over the one before the overflow.
const RECOVERED: Metric = Metric { name: "recovered", label: "scale recovered", unit: "1", pass: Pass::Memory };
const RUINED: Metric = Metric { name: "ruined", label: "parameters not finite", unit: "1", pass: Pass::Memory };

pub const PROTOCOL: Protocol = Protocol {
    name: "amp",
    title: "Automatic mixed precision",
    question: "How much memory does autocast save, how much faster does it compute and where, does it learn as fp32 does, and what does \
               the GradScaler protect from?",
    hypothesis: "Activations of matrix products halve; what autocast keeps in fp32 (norms, softmax, the loss), parameters, gradients and \
                 optimizer state do not, and copies of the parameters in half precision come on top: the whole peak falls by \
                 less than half. Tensor cores make compute-bound steps much faster and launch-bound ones slower, by the casts. bf16 has \
                 fp32's range and needs no scaler; fp16 loses small gradients without one.",
    factors: &[
        Factor { name: "model", meaning: "model", levels: &[Level { name: "recipe", meaning: "3 linear layers of 4096" }] },
        Factor { name: "batch", meaning: "samples of a step", levels: &[] },
        Factor {
            name: "bound",
            meaning: "what limits the step",
            levels: &[
                Level { name: "launch", meaning: "many small kernels" },
                Level { name: "compute", meaning: "matrix products" },
                Level { name: "recipe", meaning: "PyTorch's AMP recipe: 3 linear layers of 4096, batch 512, SGD" },
            ],
        },
        Factor {
            name: "case",
            meaning: "what is difficult for fp16",
            levels: &[
                Level { name: "converged", meaning: "gradients of a model that has learned its task are small" },
                Level {
                    name: "small-loss",
                    meaning: "so are those of a loss with a weight of 1e-4, as an auxiliary loss may have",
                },
                Level { name: "bad-batch", meaning: "one batch in the middle of training whose activations overflow" },
                Level { name: "high-start", meaning: "a scale that is 16777216 to begin with" },
            ],
        },
        Factor { name: "steps", meaning: "training steps", levels: &[] },
        Factor {
            name: "precision",
            meaning: "in what the forward pass computes",
            levels: &[
                Level { name: "tf32", meaning: "fp32 whose products are rounded to TF32 on tensor cores" },
                Level { name: "amp-bf16", meaning: "autocast to bfloat16" },
                Level { name: "amp-fp16", meaning: "autocast to fp16, with a GradScaler" },
            ],
        },
        Factor {
            name: "scaling",
            meaning: "of the loss, under autocast to fp16",
            levels: &[Level { name: "scaler", meaning: "GradScaler" }],
        },
    ],
    grids: &[
        memory(&[Profile::Quick], &[axis("model", &["mlp-8x256"]), axis("batch", &["64", "4096"]), FP32_BF16]),
        memory(&[Profile::Quick], &[axis("model", &["gpt-4x128"]), axis("batch", &["2", "32"]), FP32_BF16]),
        memory(&[Profile::Full], &[axis("model", &["mlp-8x1024"]), axis("batch", &["1024", "16384"]), PRECISIONS]),
        memory(&[Profile::Full], &[axis("model", &["gpt2"]), axis("batch", &["1", "4", "16"]), PRECISIONS]),
        memory(&[Profile::Full], &[axis("model", &["bert-large", "vit-l16"]), axis("batch", &["8"]), PRECISIONS]),
        memory(&[Profile::Full], &[axis("model", &["resnet50"]), axis("batch", &["32", "128"]), PRECISIONS]),
        time(&[Profile::Quick], &[], &[axis("model", &["mlp-8x64"]), axis("batch", &["16"]), LAUNCH, FP32_BF16]),
        time(&[Profile::Quick], &[], &[axis("model", &["gpt-4x256"]), axis("batch", &["16"]), COMPUTE, FP32_BF16]),
        time(&[Profile::Full], GPU, &[axis("model", &["mlp-8x128", "gpt-4x128"]), axis("batch", &["4"]), LAUNCH, ALL]),
        time(&[Profile::Full], GPU, &[axis("model", &["mlp-8x4096"]), axis("batch", &["8192"]), COMPUTE, ALL]),
        time(&[Profile::Full], GPU, &[axis("model", &["gpt2-medium"]), axis("batch", &["16"]), COMPUTE, ALL]),
        time(&[Profile::Full], GPU, &[axis("model", &["resnet50"]), axis("batch", &["128"]), COMPUTE, ALL]),
        time(&[Profile::Full], GPU, &[axis("model", &["recipe"]), axis("batch", &["512"]), axis("bound", &["recipe"]), ALL]),
        Grid {
            name: "memory",
            profiles: &[Profile::Smoke],
            studied: "precision",
            axes: &[axis("model", &["mlp-2x32"]), axis("batch", &["64"]), FP32_BF16],
            passes: &[Pass::Check, Pass::Memory, Pass::Time],
            only_on: &[],
        },
        real_steps(
            &[Profile::Quick, Profile::Full],
            "does it learn?",
            "precision",
            &[axis("steps", &["8", "32", "128"]), PRECISIONS],
        ),
        real_steps(
            &[Profile::Quick, Profile::Full],
            "what the scaler protects from",
            "scaling",
            &[axis("case", &["converged", "small-loss", "bad-batch", "high-start"]), axis("scaling", &["none", "scaler"])],
        ),
    ],
    metrics: &[
        PEAK,
        PARAMETERS,
        GRADIENTS,
        STATE,
        ACTIVATIONS,
        CASTS,
        OTHERS,
        LOSS,
        ZEROS,
        NOT_ZERO,
        ERROR,
        SKIPPED,
        LOWEST,
        LAST,
        RECOVERED,
        RUINED,
        TIME,
    ],
    checks: &[
        // Batch norm divides by small differences of rounded numbers.
        Check { when: "model=resnet50", expect: Relation::Equal { tolerance: 0.5 } },
        // Eight bits of bf16, added up over a model.
        Check { when: "", expect: Relation::Equal { tolerance: 0.1 } },
    ],
    claims: &[
        Claim {
            id: "amp-forward-half",
            from: "003",
            text: "half precision halves the memory of the forward pass",
            judged_on: &[Platform::Gpu, Platform::Dry],
            rule: Rule::Ratio {
                metric: ACTIVATIONS.name,
                of: "precision=amp-bf16|amp-fp16",
                confirm: Bound::Within(0.45, 0.60),
                refute: Bound::AtLeast(0.60),
                scope: None,
            },
            meaning: Meaning {
                confirmed: "Count on it: what the forward pass keeps falls to {effect} of fp32's.",
                refuted: "Do not plan with half: {effect} of fp32's activations stay, because autocast runs norms, softmax and the loss in \
                          fp32 and keeps half-precision copies of the parameters.",
                depends: "It halves where {where}. Elsewhere parameters' copies, or operations that autocast keeps in fp32, weigh too much.",
                inconclusive: "What the forward pass keeps is {effect} of fp32's.",
            },
        },
        Claim {
            id: "amp-memory-half",
            from: "002",
            text: "mixed precision saves nearly half of the memory",
            judged_on: &[Platform::Gpu, Platform::Dry],
            rule: Rule::Ratio {
                metric: PEAK.name,
                of: "precision=amp-bf16|amp-fp16",
                confirm: Bound::AtMost(0.60),
                refute: Bound::AtLeast(0.60),
                scope: None,
            },
            meaning: Meaning {
                confirmed: "The peak falls to {effect}: activations are nearly all of it.",
                refuted: "Expect less: the peak falls to {effect} only. Parameters, gradients and optimizer state stay in fp32, and their \
                          copies in half precision come on top; where activations are few it can even cost memory.",
                depends: "It saves nearly half where {where}: where activations fill the memory. Parameters, gradients and optimizer state \
                          stay in fp32.",
                inconclusive: "The peak is {effect} of fp32's.",
            },
        },
        Claim {
            id: "amp-weights-fp32",
            from: "003",
            text: "weights and gradients stay in fp32",
            judged_on: &[Platform::Cpu, Platform::Gpu, Platform::Dry],
            rule: Rule::All(&[fp32_bytes(PARAMETERS.name), fp32_bytes(GRADIENTS.name)]),
            meaning: Meaning {
                confirmed: "They do, to the byte. The cast cache, copies of the parameters in half precision, comes on top while a forward \
                            and backward pass run: half the parameters' bytes.",
                refuted: "They do not here: {effect}.",
                depends: "They do where {where}.",
                inconclusive: "It could not be shown.",
            },
        },
        Claim {
            id: "amp-faster",
            from: "002",
            text: "tensor cores make it much faster",
            judged_on: &[Platform::Gpu],
            rule: Rule::Ratio {
                metric: TIME.name,
                of: "bound=compute precision=amp-bf16|amp-fp16",
                // At least 1.50x as fast.
                confirm: Bound::AtMost(1.0 / 1.5),
                refute: Bound::AtLeast(1.0 / 1.5),
                scope: None,
            },
            meaning: Meaning {
                confirmed: "Where matrix products fill the step it takes {effect} of fp32's time. Small models, which launch more than they \
                            compute, gain nothing: the casts are launches, too.",
                refuted: "Not on this device: {effect} of fp32's time even where matrix products fill the step.",
                depends: "It is where {where}.",
                inconclusive: "A step takes {effect} of fp32's time, too near to the threshold to tell.",
            },
        },
        Claim {
            id: "amp-scaler",
            from: "002",
            text: "GradScaler prevents underflow and overflow",
            judged_on: &[Platform::Cpu, Platform::Gpu],
            rule: Rule::All(&[
                Rule::Ratio {
                    metric: ZEROS.name,
                    of: "case=converged|small-loss scaling=scaler",
                    confirm: Bound::AtMost(0.10),
                    refute: Bound::AtLeast(0.90),
                    // There is something to prevent.
                    scope: Some(Share { part: ZEROS.name, whole: NOT_ZERO.name, at_least: 0.01 }),
                },
                Rule::Value {
                    metric: SKIPPED.name,
                    of: "case=bad-batch|high-start scaling=scaler",
                    confirm: Bound::AtLeast(1.0),
                    refute: Bound::AtMost(0.0),
                },
                Rule::Value {
                    metric: RUINED.name,
                    of: "case=bad-batch|high-start scaling=scaler",
                    confirm: Bound::AtMost(0.0),
                    refute: Bound::AtLeast(1e-9),
                },
                Rule::Value {
                    metric: RECOVERED.name,
                    of: "case=bad-batch scaling=scaler",
                    confirm: Bound::AtLeast(1.0),
                    refute: Bound::AtMost(0.99),
                },
            ]),
            meaning: Meaning {
                confirmed: "With fp16, always use it: small gradients survive, a step that overflows is left out instead of ruining the \
                            parameters, and the scale finds its way back. bf16 has fp32's range and needs none.",
                refuted: "One of its promises does not hold here ({effect}): see which.",
                depends: "It does where {where}.",
                inconclusive: "Not every part could be shown: {effect}.",
            },
        },
    ],
    published: &[Published {
        id: "amp-recipe",
        source: "PyTorch AMP recipe",
        figure: "3 linear layers of 4096, batch 512, SGD: 2 to 3x on tensor cores",
        judged_on: &[Platform::Gpu],
        rule: Some(Rule::Ratio {
            metric: TIME.name,
            of: "bound=recipe precision=amp-fp16",
            confirm: Bound::Within(1.0 / 3.0, 1.0 / 2.0),
            refute: Bound::Outside(1.0 / 3.0, 1.0 / 2.0),
            scope: None,
        }),
        setup: "fp16 with a GradScaler, as in the recipe; libtorch's SGD steps through the parameters one by one.",
    }],
    plots: &[
        Plot {
            name: "activations",
            caption: "What the forward pass keeps, against fp32",
            of: "precision=fp32|amp-bf16|amp-fp16",
            metric: ACTIVATIONS.name,
            kind: PlotKind::Bars { clusters: &["model", "batch"] },
        },
        Plot {
            name: "peak",
            caption: "The whole peak against fp32: parameters, gradients and optimizer state do not shrink",
            of: "precision=fp32|amp-bf16|amp-fp16",
            metric: PEAK.name,
            kind: PlotKind::Bars { clusters: &["model", "batch"] },
        },
        Plot {
            name: "time",
            caption: "Time of a step against fp32, from launch-bound to compute-bound",
            of: "",
            metric: TIME.name,
            kind: PlotKind::Bars { clusters: &["bound", "model"] },
        },
        Plot {
            name: "learning",
            caption: "Loss on samples that were not trained on, after so many steps",
            of: "",
            metric: LOSS.name,
            kind: PlotKind::Lines { x: "steps", series: &["precision"] },
        },
    ],
    threats: &[
        "Dropout is off, so that precision is all that tells two cells apart; a mask costs each precision the same byte an element.",
        "A CPU has no tensor cores, and most have no fast fp16: its times are shown and not judged, and fp16 is left out of them.",
        "The task that is learned is small (32 features, 10 classes). What diverges in large models, diverges there in other ways.",
        "The scaler's cases are made: a converged model, a batch that overflows, a start too high. How often training meets them is not \
         measured here.",
        "Quick's sizes fit a CPU's time, so the share of activations there is not that of a large model.",
    ],
};

const GPU: &[Platform] = &[Platform::Gpu];
const FP32_BF16: Axis = axis("precision", &["fp32", "amp-bf16"]);
const PRECISIONS: Axis = axis("precision", &["fp32", "amp-bf16", "amp-fp16"]);
const ALL: Axis = axis("precision", &["fp32", "tf32", "amp-bf16", "amp-fp16"]);
const LAUNCH: Axis = axis("bound", &["launch"]);
const COMPUTE: Axis = axis("bound", &["compute"]);

const fn memory(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "memory", profiles, studied: "precision", axes, passes: &[Pass::Check, Pass::Memory], only_on: &[] }
}

const fn time(profiles: &'static [Profile], only_on: &'static [Platform], axes: &'static [Axis]) -> Grid {
    Grid { name: "time", profiles, studied: "precision", axes, passes: &[Pass::Check, Pass::Time], only_on }
}

const fn real_steps(profiles: &'static [Profile], name: &'static str, studied: &'static str, axes: &'static [Axis]) -> Grid {
    let passes = &[Pass::Check, Pass::Memory];
    Grid { name, profiles, studied, axes, passes, only_on: &[Platform::Cpu, Platform::Gpu] }
}

const fn fp32_bytes(metric: &'static str) -> Rule {
    let of = "precision=amp-bf16|amp-fp16";
    Rule::Ratio { metric, of, confirm: Bound::Within(1.0, 1.0), refute: Bound::AtMost(0.99), scope: None }
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    if cell.get("case").is_some() || cell.get("steps").is_some() {
        return Ok(Box::new(Learning::new(cell, bench.device)?));
    }
    let name = cell.level("precision")?;
    let precision = match name {
        "tf32" => Precision::Fp32,
        name => name.parse().map_err(anyhow::Error::msg)?,
    };
    // PyTorch's default lets convolutions use TF32; fp32 here means fp32.
    allow_tf32(name == "tf32")?;
    let (model, batch) = (cell.level("model")?, cell.number("batch")?);
    if model == "recipe" {
        return Ok(Box::new(Recipe::new(batch, precision, bench.device)?));
    }
    let settings = Settings { dropout: takes_dropout(model).then_some(0.0), ..Settings::default() };
    let optimizer = vramlab::training::OptimizerKind::AdamW;
    let configuration = Configuration { settings, optimizer, precision, ..Configuration::new(model, batch) };
    Ok(Box::new(Trained { trainer: Trainer::load(&configuration, bench.device)?, exact: name == "fp32" }))
}

fn takes_dropout(model: &str) -> bool {
    !model.starts_with("resnet")
}

/// Steps of a model on made-up data.
struct Trained {
    trainer: Trainer,
    exact: bool,
}

fn bytes(tensors: &[Tensor]) -> i64 {
    tensors.iter().filter(|t| t.defined()).map(|t| (t.numel() * t.kind().elt_size_in_bytes()) as i64).sum()
}

impl Trained {
    fn bytes(&mut self, probe: &mut Probe) -> Result<()> {
        let model = self.trainer.model();
        let (parameters, buffers) = (bytes(&model.parameters()), bytes(&model.store.variables().into_values().collect::<Vec<_>>()));
        let gradients = bytes(&model.gradients());
        let data = [&self.trainer.batch().inputs, &self.trainer.batch().targets].map(Tensor::shallow_clone);
        // An iteration begins by dropping the gradients of the one before.
        let rest = probe.live() - gradients;
        let mut activations = 0;
        self.trainer.iterate(&mut |mark, _| {
            if mark.phase == Phase::Forward {
                activations = probe.live() - rest;
            }
            Ok(())
        })?;
        let peak = probe.memory().map_or(0, |memory| memory.requested_peak);
        probe.record(ACTIVATIONS.name, activations);
        probe.record(PARAMETERS.name, parameters);
        probe.record(GRADIENTS.name, bytes(&self.trainer.model().gradients()));
        probe.record(STATE.name, rest - buffers - bytes(&data));
        probe.record(OTHERS.name, peak - rest - activations);
        let casts = self.casts(probe)?;
        probe.record(CASTS.name, casts);
        Ok(())
    }

    /// What a region of autocast holds by itself at its end: without gradients nothing else keeps the parameters' copies.
    fn casts(&self, probe: &mut Probe) -> Result<i64> {
        let kind = self.trainer.configuration().precision.kind();
        if kind == Kind::Float {
            return Ok(0);
        }
        let (model, inputs) = (self.trainer.model(), &self.trainer.batch().inputs);
        let region = Autocast::on(inputs.device(), kind)?;
        // Buffers of batch norms stay as they are.
        drop(tch::no_grad(|| model.forward(inputs, false)));
        let inside = probe.live();
        drop(region);
        Ok(inside - probe.live())
    }
}

impl Step for Trained {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        if probe.is_reading() { self.bytes(probe) } else { self.trainer.iterate(&mut |_, _| Ok(())) }
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "gradient", tensors: self.trainer.model().gradients() }])
    }

    fn least_flops(&self) -> f64 {
        if self.exact { self.trainer.model().least_training_flops(self.trainer.configuration().batch) } else { 0.0 }
    }
}

/// PyTorch's AMP recipe: three linear layers of 4096 with ReLU between them, mean squared error, SGD.
struct Recipe {
    weights: Vec<(Tensor, Tensor)>,
    optimizer: Optimizer,
    scaler: GradScaler,
    batch: Batch,
    kind: Kind,
}

impl Recipe {
    const WIDTH: i64 = 4096;

    fn new(samples: i64, precision: Precision, device: Device) -> Result<Recipe> {
        let store = VarStore::new(device);
        let layer = |i: i64| {
            let path = store.root() / i;
            let start = tch::nn::init::DEFAULT_KAIMING_UNIFORM;
            (path.var("weight", &[Self::WIDTH, Self::WIDTH], start), path.zeros("bias", &[Self::WIDTH]))
        };
        let weights = (0..3).map(layer).collect();
        let scaler = if precision == Precision::AmpFp16 { GradScaler::default() } else { GradScaler::disabled() };
        let data = || Tensor::randn([samples, Self::WIDTH], (Kind::Float, device));
        let batch = Batch { inputs: data(), targets: data() };
        Ok(Recipe { weights, optimizer: Sgd::default().build(&store, 1e-3)?, scaler, batch, kind: precision.kind() })
    }

    fn loss(&self) -> Tensor {
        let mut x = self.batch.inputs.shallow_clone();
        for (i, (weight, bias)) in self.weights.iter().enumerate() {
            x = x.linear(weight, Some(bias));
            if i + 1 < self.weights.len() {
                x = x.relu();
            }
        }
        x.mse_loss(&self.batch.targets, Reduction::Mean)
    }
}

impl Step for Recipe {
    fn run(&mut self, _: &mut Probe) -> Result<()> {
        let loss = autocast(self.batch.inputs.device(), self.kind, || self.loss())?;
        self.scaler.scale(&loss)?.f_backward()?;
        self.scaler.step(&mut self.optimizer)?;
        self.scaler.update()?;
        // As the recipe does: after the step, to none.
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        let tensors = self.weights.iter().flat_map(|(weight, bias)| [weight.grad(), bias.grad()]).collect();
        Ok(vec![Quantity { name: "gradient", tensors }])
    }
}

/// How a loss is scaled for fp16.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scaling {
    None,
    Start(f64),
}

/// A task that is learned from made-up samples: which of ten directions a vector points to most.
struct Learning {
    precision: Precision,
    case: Case,
    scaling: Scaling,
    model: Model,
    /// Parameters to begin with.
    start: Vec<Tensor>,
    optimizer: Optimizer,
    training: Batch,
    held_out: Batch,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Case {
    /// Trains for so many steps.
    Steps(i64),
    Converged,
    SmallLoss,
    BadBatch,
    HighStart,
}

impl Learning {
    const MODEL: &str = "mlp-3x32";
    const FEATURES: i64 = 32;
    const CLASSES: i64 = 10;
    const SAMPLES: i64 = 2048;
    const BATCH: i64 = 128;
    const RATE: f64 = 5e-3;
    /// The steps in fp32 that `converged` begins after, those of the other cases, and where the bad batch comes.
    const TO_CONVERGE: i64 = 1500;
    const STEPS: i64 = 60;
    const BAD: i64 = 25;
    /// Where a scale is to grow again within so few steps; PyTorch's is 2000.
    const GROWTH_INTERVAL: i64 = 10;
    /// What `small-loss` multiplies the loss by.
    const WEIGHT: f64 = 1e-4;

    fn new(cell: &Cell, device: Device) -> Result<Learning> {
        let case = match cell.get("case") {
            None => Case::Steps(cell.number("steps")?),
            Some("converged") => Case::Converged,
            Some("small-loss") => Case::SmallLoss,
            Some("bad-batch") => Case::BadBatch,
            Some("high-start") => Case::HighStart,
            Some(case) => bail!("'{case}' is no case"),
        };
        let precision = match cell.get("precision") {
            Some(name) => name.parse().map_err(anyhow::Error::msg)?,
            None => Precision::AmpFp16,
        };
        let scaling = match (cell.get("scaling"), precision, case) {
            (Some("none"), _, _) | (None, Precision::Fp32 | Precision::AmpBf16, _) => Scaling::None,
            (_, _, Case::HighStart) => Scaling::Start(2f64.powi(24)),
            // Low enough that the bad batch is the only one to overflow.
            (_, _, Case::BadBatch) => Scaling::Start(1024.0),
            _ => Scaling::Start(ScalerState::default().scale),
        };
        allow_tf32(false)?;
        let model = Model::named(Self::MODEL, device)?;
        let start = model.parameters().iter().map(Tensor::copy).collect();
        let teacher = Tensor::randn([Self::FEATURES, Self::CLASSES], (Kind::Float, device));
        let samples = |count: i64| {
            let inputs = Tensor::randn([count, Self::FEATURES], (Kind::Float, device));
            let targets = inputs.matmul(&teacher).argmax(-1, false);
            Batch { inputs, targets }
        };
        let (training, held_out) = (samples(Self::SAMPLES), samples(512));
        let optimizer = Adam::default().build(&model.store, Self::RATE)?;
        Ok(Learning { precision, case, scaling, model, start, optimizer, training, held_out })
    }

    fn scaler(&self) -> Result<GradScaler> {
        match self.scaling {
            Scaling::None => Ok(GradScaler::disabled()),
            Scaling::Start(scale) => {
                let usual = ScalerState::default();
                let grows_soon = matches!(self.case, Case::BadBatch | Case::HighStart);
                let growth_interval = if grows_soon { Self::GROWTH_INTERVAL } else { usual.growth_interval };
                GradScaler::new(ScalerState { scale, growth_interval, ..usual })
            }
        }
    }

    /// Everything as it was before the first step.
    fn begin(&mut self) -> Result<()> {
        tch::no_grad(|| {
            for (mut parameter, start) in self.model.parameters().into_iter().zip(&self.start) {
                parameter.copy_(start);
            }
        });
        self.optimizer = Adam::default().build(&self.model.store, Self::RATE)?;
        Ok(())
    }

    /// The samples of a step, in turn.
    fn batch(&self, step: i64) -> Batch {
        let batch = self.training.narrow(step * Self::BATCH % Self::SAMPLES, Self::BATCH);
        match self.case == Case::BadBatch && step == Self::BAD {
            // More than fp16 can hold.
            true => Batch { inputs: batch.inputs * 1e5, targets: batch.targets },
            false => batch,
        }
    }

    fn backward(&mut self, batch: &Batch, kind: Kind, scaler: &mut GradScaler, weight: f64) -> Result<()> {
        self.optimizer.zero_grad();
        let loss = autocast(batch.inputs.device(), kind, || {
            self.model.loss(&self.model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean)
        })?;
        Ok(scaler.scale(&(loss * weight))?.f_backward()?)
    }

    /// Trains from the start; gives the scale before each step, and after the last, and the number of steps that were left out.
    fn train(&mut self, steps: i64, kind: Kind, scaler: &mut GradScaler) -> Result<(Vec<f64>, i64)> {
        self.begin()?;
        let (mut scales, mut skipped) = (vec![scaler.get_scale()?], 0);
        for step in 0..steps {
            self.backward(&self.batch(step), kind, scaler, 1.0)?;
            skipped += i64::from(scaler.step(&mut self.optimizer)? == Some(false));
            scaler.update()?;
            scales.push(scaler.get_scale()?);
        }
        Ok((scales, skipped))
    }

    fn study(&mut self, probe: &mut Probe) -> Result<()> {
        let kind = self.precision.kind();
        let mut scaler = self.scaler()?;
        match self.case {
            Case::Converged => return self.small_gradients(probe, kind, &mut scaler, (Self::TO_CONVERGE, 1.0)),
            Case::SmallLoss => return self.small_gradients(probe, kind, &mut scaler, (0, Self::WEIGHT)),
            _ => {}
        }
        let steps = if let Case::Steps(steps) = self.case { steps } else { Self::STEPS };
        let (scales, skipped) = self.train(steps, kind, &mut scaler)?;
        if let Some(loss) = Some(self.loss()).filter(|loss| loss.is_finite()) {
            probe.figure(&LOSS, loss);
        }
        if !scaler.is_enabled() && !matches!(self.case, Case::Steps(_)) {
            probe.figure(&RUINED, self.ruined());
            return Ok(());
        }
        if scaler.is_enabled() {
            probe.figure(&SKIPPED, skipped as f64);
            probe.figure(&LOWEST, scales.iter().copied().fold(f64::INFINITY, f64::min));
            probe.figure(&LAST, scales[scales.len() - 1]);
            probe.figure(&RUINED, self.ruined());
        }
        if self.case == Case::BadBatch {
            probe.figure(&RECOVERED, scales[scales.len() - 1] / scales[Self::BAD as usize]);
        }
        Ok(())
    }

    /// Gradients of all samples against those in fp32, after so many steps in fp32 and with a weight on the loss.
    fn small_gradients(
        &mut self,
        probe: &mut Probe,
        kind: Kind,
        scaler: &mut GradScaler,
        (steps, weight): (i64, f64),
    ) -> Result<()> {
        self.train(steps, Kind::Float, &mut GradScaler::disabled())?;
        probe.figure(&LOSS, self.loss());
        let all = self.training.narrow(0, Self::SAMPLES);
        self.backward(&all, Kind::Float, &mut GradScaler::disabled(), weight)?;
        let exact: Vec<Tensor> = self.model.gradients().iter().map(Tensor::copy).collect();
        let mut skipped = 0;
        loop {
            self.backward(&all, kind, scaler, weight)?;
            scaler.unscale(&self.optimizer)?;
            scaler.update()?;
            let gradients = self.model.gradients();
            if gradients.iter().all(|g| g.isfinite().all().int64_value(&[]) != 0) {
                break;
            }
            skipped += 1;
            ensure!(skipped < 64 && scaler.is_enabled(), "small gradients overflow");
        }
        let gradients = self.model.gradients();
        let (mut lost, mut there) = (0, 0);
        for (gradient, exact) in gradients.iter().zip(&exact) {
            let nonzero = exact.ne(0.0);
            lost += gradient.eq(0.0).logical_and(&nonzero).sum(Kind::Int64).int64_value(&[]);
            there += nonzero.sum(Kind::Int64).int64_value(&[]);
        }
        probe.figure(&ZEROS, lost as f64);
        probe.figure(&NOT_ZERO, there as f64);
        probe.figure(&ERROR, distance(&gradients, &exact, 1.0)?);
        if scaler.is_enabled() {
            probe.figure(&SKIPPED, f64::from(skipped));
            probe.figure(&LAST, scaler.get_scale()?);
        }
        Ok(())
    }

    fn loss(&self) -> f64 {
        let batch = &self.held_out;
        let loss = tch::no_grad(|| self.model.loss(&self.model.forward(&batch.inputs, false), &batch.targets, Reduction::Mean));
        loss.double_value(&[])
    }

    /// Share of parameters that are not finite.
    fn ruined(&self) -> f64 {
        let parameters = self.model.parameters();
        let finite: i64 = parameters.iter().map(|p| p.isfinite().sum(Kind::Int64).int64_value(&[])).sum();
        1.0 - finite as f64 / self.model.parameter_count() as f64
    }
}

impl Step for Learning {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        if probe.is_reading() {
            return self.study(probe);
        }
        // For the check: the gradients of the first step.
        self.begin()?;
        let mut scaler = match self.scaling {
            Scaling::None => GradScaler::disabled(),
            Scaling::Start(_) => GradScaler::new(ScalerState { scale: 1024.0, ..ScalerState::default() })?,
        };
        let batch = self.batch(0);
        self.backward(&batch, self.precision.kind(), &mut scaler, 1.0)?;
        scaler.unscale(&self.optimizer)
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "gradient", tensors: self.model.gradients() }])
    }
}
