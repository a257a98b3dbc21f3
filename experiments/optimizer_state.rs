//! What an optimizer keeps and needs: state for each parameter, temporaries of its step, and the time that the step takes.
//!
//! Guide 003 says that Adam's state is twice the model and RMSProp's once; and a tutorial of PyTorch's, that a step needs
//! temporaries as large as the model, in one implementation. All three are here: libtorch's loop over the parameters, foreach,
//! which is PyTorch's default on a GPU, and the fused kernels. Only the optimizer's step is measured, with gradients that stay the
//! same.
//!
//! Claims: step-optimizer. Published: vit-l16-temporaries.

use anyhow::{Context, Result, bail};
use std::process::ExitCode;
use tch::{Device, Kind, Tensor};
use vramlab::measure::{Bench, Probe, Quantity, Step};
use vramlab::models::Model;
use vramlab::protocol::*;
use vramlab::torch::optimizers::{Algorithm, Implementation, Optimizer, named_parameters};

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

const STATE: Metric = Metric { name: "state", label: "optimizer state", unit: "B", pass: Pass::Memory };
const CLAIMED: Metric = Metric { name: "claimed", label: "what the guide says", unit: "B", pass: Pass::Memory };
const STATE_RATIO: Metric = Metric { name: "state_ratio", label: "state over model", unit: "1", pass: Pass::Memory };
/// Peak of the step above what lives before it, over the model.
const TEMPORARY_RATIO: Metric = Metric { name: "temporary_ratio", label: "temporaries over model", unit: "1", pass: Pass::Memory };
/// What a step must read and write at least: each parameter, its gradient and its state once.
const TRAFFIC: Metric = Metric { name: "traffic", label: "bytes to move", unit: "B", pass: Pass::Memory };

pub const PROTOCOL: Protocol = Protocol {
    name: "optimizer_state",
    title: "Optimizer state and its step",
    question: "How much memory does an optimizer keep and need for its step, and how fast is the step in a loop, foreach or fused?",
    hypothesis: "State is as many numbers for each parameter as the algorithm says, in each implementation. A step's temporaries are as \
                 large as the model with foreach, as the largest tensor in a loop, and none when fused. The fused step is nearest to what \
                 the memory's bandwidth allows; the loop pays for every tensor, so it is slowest where tensors are small and many.",
    factors: &[
        Factor { name: "model", meaning: "model", levels: &[] },
        Factor { name: "parameters", meaning: "numbers to train", levels: &[] },
        Factor { name: "tensors", meaning: "tensors of equal size that hold them", levels: &[] },
        Factor {
            name: "optimizer",
            meaning: "optimizer, with PyTorch's defaults",
            levels: &[
                Level { name: "momentum", meaning: "SGD with momentum 0.9" },
                Level { name: "rmsprop", meaning: "RMSProp; PyTorch has no fused one" },
            ],
        },
        Factor {
            name: "implementation",
            meaning: "how the step goes through the tensors",
            levels: &[
                Level { name: "loop", meaning: "one tensor after another, libtorch's own" },
                Level { name: "foreach", meaning: "one operation after another, over all tensors: PyTorch's default on a GPU" },
                Level { name: "fused", meaning: "one kernel over all tensors" },
                Level {
                    name: "copy",
                    meaning: "no optimizer: copies the bytes that the step must move, which is the memory's own limit",
                },
            ],
        },
    ],
    grids: &[
        bytes(&[Profile::Quick], &[SMALL, ALGORITHMS, IMPLEMENTATIONS]),
        bytes(&[Profile::Quick], &[SMALL, RMSPROP, NOT_FUSED]),
        bytes(&[Profile::Full], &[LARGE, ALGORITHMS, IMPLEMENTATIONS]),
        bytes(&[Profile::Full], &[LARGE, RMSPROP, NOT_FUSED]),
        bytes(&[Profile::Smoke], &[axis("model", &["mlp-2x32"]), axis("optimizer", &["adam"]), IMPLEMENTATIONS]),
        time(&[Profile::Quick], &[axis("parameters", &["4194304"]), axis("tensors", &["8", "1024"]), ADAMW, OR_COPY]),
        time(&[Profile::Full], &[axis("parameters", &["1048576", "268435456"]), axis("tensors", &["8", "4096"]), ADAMW, OR_COPY]),
        time(
            &[Profile::Full],
            &[axis("parameters", &["268435456"]), axis("tensors", &["256"]), axis("optimizer", &["sgd", "momentum"]), OR_COPY],
        ),
        time(
            &[Profile::Smoke],
            &[axis("parameters", &["65536"]), axis("tensors", &["16"]), ADAMW, axis(STUDIED, &["loop", "copy"])],
        ),
    ],
    metrics: &[
        STATE,
        STATE_RATIO,
        STEP_PEAK,
        TEMPORARY_RATIO,
        CLAIMED,
        TRAFFIC,
        Metric { name: "update_error", label: "update error", unit: "1", pass: Pass::Check },
        TIME,
    ],
    checks: &[
        // A copy moves no parameter: its update is zero, and apart from the real one by the whole of that.
        Check { when: "implementation=copy", expect: Relation::Differs { at_least: 0.999, at_most: 1.001 } },
        // The same sums in another order; the update is the difference of parameters that are larger than it.
        Check { when: "", expect: Relation::Equal { tolerance: 2e-5 } },
    ],
    claims: &[Claim {
        id: "step-optimizer",
        from: "003",
        text: "an optimizer's state: Adam keeps twice the model, RMSProp once",
        judged_on: &[Platform::Cpu, Platform::Gpu, Platform::Dry],
        rule: Rule::Agreement {
            metric: STATE.name,
            reference: CLAIMED.name,
            of: "optimizer=adam|rmsprop",
            within: Bound::Within(0.95, 1.05),
            share: 1.0,
        },
        meaning: Meaning {
            confirmed: "Plan with it: the state is {effect} of what the guide says, in every implementation. AdamW keeps \
                            what Adam does, momentum what RMSProp does, and plain SGD nothing.",
            refuted: "Do not plan with it: the state is {effect} of what the guide says.",
            depends: "Plan with it where {where}.",
            inconclusive: "The state is {effect} of what the guide says.",
        },
    }],
    published: &[Published {
        id: "vit-l16-temporaries",
        source: "PyTorch tutorial, optimizer step fused into the backward pass",
        figure: "ViT-L/16 with Adam: parameters 1.2 GB, state 2.4 GB, and in the step 1.2 GB of temporaries, for foreach only",
        judged_on: &[Platform::Gpu, Platform::Dry],
        rule: Some(Rule::All(&[
            published_value(&STATE, "model=vit-l16 optimizer=adam", 2.4e9),
            published_value(&STEP_PEAK, "model=vit-l16 optimizer=adam implementation=foreach", 1.2e9),
            // Next to nothing: a tenth of what foreach needs.
            Rule::Value {
                metric: STEP_PEAK.name,
                of: "model=vit-l16 optimizer=adam implementation=loop|fused",
                confirm: Bound::AtMost(0.12e9),
                refute: Bound::AtLeast(0.12e9),
            },
        ])),
        setup: "The same model in fp32; here only the optimizer's step runs, with gradients in place.",
    }],
    plots: &[
        Plot {
            name: "state",
            caption: "What the optimizer keeps, over the model's size: at the line as much as the model",
            of: "",
            metric: STATE_RATIO.name,
            kind: PlotKind::Dots { rows: &["optimizer", "model"], threshold: 1.0 },
        },
        Plot {
            name: "temporaries",
            caption: "What the optimizer's step needs while it runs, over the model's size: at the line as much as the model",
            of: "",
            metric: TEMPORARY_RATIO.name,
            kind: PlotKind::Dots { rows: &["optimizer", "model"], threshold: 1.0 },
        },
        Plot {
            name: "time",
            caption: "Time of the optimizer's step against the loop; 'copy' is what the memory's bandwidth allows",
            of: "",
            metric: TIME.name,
            kind: PlotKind::Bars { clusters: &["optimizer", "parameters", "tensors"] },
        },
    ],
    threats: &[
        "Rust calls libtorch without an interpreter. In Python the loop pays more for each tensor, and so do foreach and fused for gathering \
         their lists.",
        "The copy runs over a few large buffers however many tensors there are: it is a limit of the memory, not of launches.",
        "There is no fused RMSProp in PyTorch, so none is shown.",
        "The model is parameters and buffers in fp32. Parameters of 16 bits with state of 32 would double the ratios.",
    ],
};

const STUDIED: &str = "implementation";
const SMALL: Axis = axis("model", &["gpt-4x256"]);
const LARGE: Axis = axis("model", &["resnet50", "gpt2", "vit-l16"]);
const ALGORITHMS: Axis = axis("optimizer", &["sgd", "momentum", "adam", "adamw"]);
const RMSPROP: Axis = axis("optimizer", &["rmsprop"]);
const ADAMW: Axis = axis("optimizer", &["adamw"]);
const IMPLEMENTATIONS: Axis = axis(STUDIED, &["loop", "foreach", "fused"]);
const NOT_FUSED: Axis = axis(STUDIED, &["loop", "foreach"]);
const OR_COPY: Axis = axis(STUDIED, &["loop", "foreach", "fused", "copy"]);

const fn bytes(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "bytes", profiles, studied: STUDIED, axes, passes: &[Pass::Check, Pass::Memory], only_on: &[] }
}

const fn time(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "time", profiles, studied: STUDIED, axes, passes: &[Pass::Check, Pass::Memory, Pass::Time], only_on: &[] }
}

const RATE: f64 = 1e-3;
/// Steps before the one that is measured, so that there is a past to remember.
const STEPS_BEFORE: usize = 3;

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    let (parameters, model_bytes) = match cell.get("model") {
        Some(name) => {
            let model = Model::named(name, bench.device)?;
            (named_parameters(&model.store), model.store.variables().values().map(bytes_of).sum())
        }
        None => {
            let (numbers, tensors) = (cell.number("parameters")?, cell.number("tensors")?);
            let parameters = equal_tensors(numbers, tensors, bench.device);
            (parameters, numbers * 4)
        }
    };
    let work = match cell.level("optimizer")? {
        "sgd" => Work { algorithm: Algorithm::sgd(), kept: 0, claimed: None },
        "momentum" => Work { algorithm: Algorithm::momentum(0.9), kept: 1, claimed: None },
        "rmsprop" => Work { algorithm: Algorithm::rmsprop(), kept: 1, claimed: Some(1) },
        "adam" => Work { algorithm: Algorithm::adam(), kept: 2, claimed: Some(2) },
        "adamw" => Work { algorithm: Algorithm::adamw(), kept: 2, claimed: None },
        other => bail!("'{other}' is no optimizer"),
    };
    for (_, parameter) in &parameters {
        // The gradient of sum(p * g) is g.
        (parameter * parameter.detach().randn_like()).sum(Kind::Float).f_backward()?;
    }
    let start = parameters.iter().map(|(_, parameter)| parameter.detach().copy()).collect();
    let implementation = match cell.level(STUDIED)? {
        "copy" => return Ok(Box::new(Copying::new(&parameters, work, bench.device))),
        level => Implementation::ALL.into_iter().find(|i| i.to_string() == level).with_context(|| format!("no '{level}'"))?,
    };
    let mut stepping = Stepping { optimizer: None, parameters, start, work, implementation, model_bytes };
    for _ in 0..STEPS_BEFORE {
        stepping.optimizer()?.step()?;
    }
    Ok(Box::new(stepping))
}

fn bytes_of(tensor: &Tensor) -> i64 {
    (tensor.numel() * tensor.kind().elt_size_in_bytes()) as i64
}

fn equal_tensors(numbers: i64, tensors: i64, device: Device) -> Vec<(String, Tensor)> {
    let tensor = |i| {
        let values = Tensor::randn([numbers / tensors], (Kind::Float, device)) * 0.02;
        (format!("tensor.{i}"), values.set_requires_grad(true))
    };
    (0..tensors).map(tensor).collect()
}

struct Work {
    algorithm: Algorithm,
    /// Numbers of state for each parameter.
    kept: i64,
    /// State over model as guide 003 says, where it does.
    claimed: Option<i64>,
}

impl Work {
    /// Numbers that a step must read and write for each parameter: the parameter, its gradient and its state in, all but the
    /// gradient out.
    fn moved(&self) -> i64 {
        2 * (1 + self.kept) + 1
    }
}

/// An optimizer's step.
struct Stepping {
    /// None before the first step.
    optimizer: Option<Optimizer>,
    parameters: Vec<(String, Tensor)>,
    start: Vec<Tensor>,
    work: Work,
    implementation: Implementation,
    model_bytes: i64,
}

impl Stepping {
    fn optimizer(&mut self) -> Result<&mut Optimizer> {
        if self.optimizer.is_none() {
            let own = self.parameters.iter().map(|(name, parameter)| (name.clone(), parameter.shallow_clone())).collect();
            self.optimizer = Some(Optimizer::over(own, self.work.algorithm, RATE, self.implementation)?);
        }
        self.optimizer.as_mut().context("there is no optimizer")
    }

    fn numbers(&self) -> i64 {
        self.parameters.iter().map(|(_, parameter)| parameter.numel() as i64).sum()
    }
}

impl Step for Stepping {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        let rest = probe.at_rest();
        self.optimizer()?.step()?;
        let Some(after) = probe.memory() else { return Ok(()) };
        // What goes with the optimizer is its state. The next step would begin anew, and there is none after the one that is
        // counted.
        self.optimizer = None;
        let state = after.requested - probe.live();
        let over_model = |bytes: i64| bytes as f64 / self.model_bytes as f64;
        probe.record(STATE.name, state);
        probe.figure(&STATE_RATIO, over_model(state));
        probe.figure(&TEMPORARY_RATIO, over_model(after.requested_peak - rest));
        probe.record(TRAFFIC.name, 4 * self.work.moved() * self.numbers());
        if let Some(times) = self.work.claimed {
            probe.record(CLAIMED.name, times * self.model_bytes);
        }
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "update", tensors: updates(&self.parameters, &self.start) }])
    }
}

fn updates(parameters: &[(String, Tensor)], start: &[Tensor]) -> Vec<Tensor> {
    parameters.iter().zip(start).map(|((_, parameter), start)| parameter.detach() - start).collect()
}

/// Copies between as many buffers as the step has tensors for each parameter, until as many bytes have moved.
struct Copying {
    buffers: Vec<Tensor>,
    shapes: Vec<Vec<i64>>,
    work: Work,
}

impl Copying {
    fn new(parameters: &[(String, Tensor)], work: Work, device: Device) -> Copying {
        let numbers = parameters.iter().map(|(_, parameter)| parameter.numel() as i64).sum();
        let buffers = (0..2 + work.kept).map(|_| Tensor::zeros([numbers], (Kind::Float, device))).collect();
        Copying { buffers, shapes: parameters.iter().map(|(_, parameter)| parameter.size()).collect(), work }
    }
}

impl Step for Copying {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        probe.at_rest();
        let (count, moved) = (self.buffers.len(), self.work.moved());
        // A copy reads a number and writes one.
        for i in 0..moved as usize / 2 {
            let (from, mut to) = (self.buffers[i % count].shallow_clone(), self.buffers[(i + 1) % count].shallow_clone());
            to.f_copy_(&from)?;
        }
        let numbers = self.buffers[0].size()[0];
        if moved % 2 == 1 {
            let half = |i: usize| self.buffers[i].narrow(0, 0, numbers / 2);
            half(0).f_copy_(&half(count - 1))?;
        }
        probe.record(TRAFFIC.name, 4 * moved * numbers);
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        // No parameter moves.
        let tensors = self.shapes.iter().map(|shape| Tensor::zeros(shape, (Kind::Float, self.buffers[0].device()))).collect();
        Ok(vec![Quantity { name: "update", tensors }])
    }
}
