//! In-place operations: do they cost memory, as guide 000 says, and is `relu(x).clone()` the better form?
//!
//! The guide fears in-place operations for what autograd may need; so the last grid writes in place to what the backward pass needs, once
//! so that autograd sees it and once behind its back, through `.data`.
//!
//! Claims: inplace-memory, inplace-autograd.

use anyhow::{Result, bail};
use std::process::ExitCode;
use tch::{Kind, Tensor};
use vramlab::measure::{Bench, Probe, Quantity, Step};
use vramlab::protocol::*;

fn main() -> ExitCode {
    vramlab::run(&PROTOCOL, prepare)
}

pub const PROTOCOL: Protocol = Protocol {
    name: "inplace",
    title: "In place, or a clone",
    question: "Do in-place operations use more memory, and is relu(x).clone() the better form?",
    hypothesis: "The reverse: an in-place operation saves the result's memory, a clone costs one more tensor, and inside a network one more \
                 for each layer, because the backward pass keeps both.",
    factors: &[
        Factor {
            name: "workload",
            meaning: "where the operation stands",
            levels: &[
                Level { name: "single", meaning: "one relu on an intermediate result" },
                Level { name: "chain", meaning: "five pointwise operations in a row, relu the last" },
                Level { name: "network", meaning: "relu between the linear layers of an MLP, 8 x 128" },
            ],
        },
        Factor { name: "elements", meaning: "elements of a tensor", levels: &[] },
        Factor {
            name: "mode",
            meaning: "what the operation is part of",
            levels: &[
                Level { name: "inference", meaning: "nothing is recorded" },
                Level { name: "training", meaning: "recorded for a backward pass, which is run" },
            ],
        },
        Factor {
            name: "form",
            meaning: "how the operation is written",
            levels: &[
                Level { name: "plain", meaning: "y = relu(x)" },
                Level { name: "clone", meaning: "y = relu(x).clone(), as guide 000 recommends" },
                Level { name: "inplace", meaning: "relu_(x)" },
            ],
        },
        Factor {
            name: "op",
            meaning: "what was computed before the write",
            levels: &[
                Level { name: "exp", meaning: "exp, whose backward pass needs its result" },
                Level { name: "sin", meaning: "sin, whose backward pass needs its input" },
            ],
        },
        Factor {
            name: "write",
            meaning: "how 1 is added to the result",
            levels: &[
                Level { name: "none", meaning: "y + 1, a new tensor" },
                Level { name: "inplace", meaning: "y.add_(1)" },
                Level { name: "through-data", meaning: "y.data.add_(1), behind autograd's back" },
            ],
        },
    ],
    grids: &[
        memory(
            &[Profile::Quick],
            &[axis("workload", &["single", "chain"]), axis("elements", &["8388608"]), INFERENCE, FORMS],
            TIMED,
        ),
        memory(
            &[Profile::Quick],
            &[axis("workload", &["single", "chain"]), axis("elements", &["8388608"]), TRAINING, FORMS],
            COUNTED,
        ),
        memory(&[Profile::Quick], &[axis("workload", &["network"]), axis("elements", &["1048576"]), TRAINING, FORMS], TIMED),
        memory(&[Profile::Quick], &[axis("workload", &["network"]), axis("elements", &["1048576"]), INFERENCE, FORMS], COUNTED),
        memory(
            &[Profile::Full],
            &[
                axis("workload", &["single", "chain"]),
                axis("elements", &["268435456"]),
                axis("mode", &["inference", "training"]),
                FORMS,
            ],
            TIMED,
        ),
        memory(
            &[Profile::Full],
            &[axis("workload", &["network"]), axis("elements", &["134217728"]), axis("mode", &["training", "inference"]), FORMS],
            TIMED,
        ),
        memory(
            &[Profile::Smoke],
            &[axis("workload", &["network"]), axis("elements", &["32768"]), TRAINING, axis("form", &["plain", "clone"])],
            TIMED,
        ),
        Grid {
            name: "writing to what backward needs",
            profiles: &[Profile::Smoke, Profile::Quick, Profile::Full],
            studied: "write",
            axes: &[axis("op", &["exp", "sin"]), axis("write", &["none", "inplace", "through-data"])],
            passes: &[Pass::Check],
            only_on: &[],
        },
    ],
    metrics: &[
        PEAK,
        STEP_PEAK,
        ACTIVATIONS,
        Metric { name: "result_error", label: "result error", unit: "1", pass: Pass::Check },
        Metric { name: "gradient_error", label: "gradient error", unit: "1", pass: Pass::Check },
        Metric { name: "raised", label: "error raised", unit: "1", pass: Pass::Check },
        TIME,
    ],
    checks: &[
        Check { when: "op=exp write=inplace", expect: Relation::Raises { message: "modified by an inplace operation" } },
        // A wrong gradient and not a word: exp's backward multiplies by what the write left behind.
        Check { when: "op=exp write=through-data", expect: Relation::Differs { at_least: 1e-2, at_most: 1e2 } },
        Check { when: "", expect: Relation::Equal { tolerance: 1e-6 } },
    ],
    claims: &[
        Claim {
            id: "inplace-memory",
            from: "000",
            text: "in-place operations use more memory; relu(x).clone() is the better form",
            judged_on: &[Platform::Cpu, Platform::Gpu, Platform::Dry],
            rule: Rule::Ratio {
                metric: PEAK.name,
                of: "form=clone",
                confirm: Bound::AtMost(0.98),
                refute: Bound::AtLeast(1.02),
                // Where the peak lies in the backward pass of whatever follows, no form of the operation moves it.
                scope: Some(Share { part: ACTIVATIONS.name, whole: PEAK.name, at_least: 0.5 }),
            },
            meaning: Meaning {
                confirmed: "The clone needs {effect} of the plain form's peak.",
                refuted: "Do not add the clone: it raises the peak to {effect} of the plain form's and copies for nothing. The in-place form \
                          is the one that saves, where autograd allows it.",
                depends: "The clone saves only where {where}.",
                inconclusive: "The clone makes no clear difference here ({effect}).",
            },
        },
        Claim {
            id: "inplace-autograd",
            from: "000",
            text: "an in-place write to what the backward pass needs is caught",
            judged_on: &[Platform::Cpu, Platform::Gpu],
            rule: Rule::Value {
                metric: "raised",
                of: "op=exp write=inplace|through-data",
                confirm: Bound::AtLeast(1.0),
                refute: Bound::AtMost(0.0),
            },
            meaning: Meaning {
                confirmed: "In-place operations are safe to try: autograd raises an error where one breaks the backward pass.",
                refuted: "Autograd does not notice: check gradients yourself.",
                depends: "In-place operations are safe to try: autograd raises an error where {where}. Keep away from `.data`: a write \
                          through it is not seen, and the gradient is wrong without a word.",
                inconclusive: "It could not be shown whether the write is caught.",
            },
        },
    ],
    published: &[],
    plots: &[
        Plot {
            name: "peak",
            caption: "Peak memory against the plain form",
            of: "",
            metric: PEAK.name,
            kind: PlotKind::Bars { clusters: &["workload", "mode"] },
        },
        Plot {
            name: "time",
            caption: "Time against the plain form",
            of: "",
            metric: TIME.name,
            kind: PlotKind::Bars { clusters: &["workload", "mode"] },
        },
    ],
    threats: &[
        "In Python a name keeps its tensor until it is bound anew; here the intermediate result lives as long as the operation that reads \
         it, as inside an expression or a module.",
        "Compilers fuse pointwise chains and make the question moot; here every operation runs by itself.",
    ],
};

const FORMS: Axis = axis("form", &["plain", "clone", "inplace"]);
const TRAINING: Axis = axis("mode", &["training"]);
const INFERENCE: Axis = axis("mode", &["inference"]);
const COUNTED: &[Pass] = &[Pass::Check, Pass::Memory];
const TIMED: &[Pass] = &[Pass::Check, Pass::Memory, Pass::Time];

const fn memory(profiles: &'static [Profile], axes: &'static [Axis], passes: &'static [Pass]) -> Grid {
    Grid { name: "memory and time", profiles, studied: "form", axes, passes, only_on: &[] }
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    let options = (Kind::Float, bench.device);
    if let Some(op) = cell.get("op") {
        let x = Tensor::randn([64], options).set_requires_grad(true);
        return Ok(Box::new(Write { x, op: op.to_string(), write: cell.level("write")?.to_string() }));
    }
    let form = match cell.level("form")? {
        "plain" => Form::Plain,
        "clone" => Form::Clone,
        "inplace" => Form::InPlace,
        other => bail!("'{other}' is no form"),
    };
    let elements = cell.number("elements")?;
    let gradient = cell.level("mode")? == "training";
    let leaf = |shape: &[i64], scale: f64| (Tensor::randn(shape, options) * scale).set_requires_grad(gradient);
    let (x, weights) = match cell.level("workload")? {
        "network" => {
            let weights = (0..LAYERS).map(|_| leaf(&[WIDTH, WIDTH], (2.0 / WIDTH as f64).sqrt())).collect();
            (Tensor::randn([elements / WIDTH, WIDTH], options), weights)
        }
        _ => (leaf(&[elements], 1.0), Vec::new()),
    };
    let chain = cell.level("workload")? == "chain";
    Ok(Box::new(Pointwise { x, weights, chain, form, gradient, outcome: Vec::new() }))
}

const LAYERS: usize = 8;
const WIDTH: i64 = 128;

#[derive(Clone, Copy)]
enum Form {
    Plain,
    Clone,
    InPlace,
}

impl Form {
    fn relu(self, mut x: Tensor) -> Tensor {
        match self {
            Form::Plain => x.relu(),
            Form::Clone => x.relu().copy(),
            Form::InPlace => x.relu_(),
        }
    }

    fn add(self, mut x: Tensor, value: f64) -> Tensor {
        match self {
            Form::Plain => x + value,
            Form::Clone => (x + value).copy(),
            Form::InPlace => x.g_add_scalar_(value),
        }
    }

    fn multiply(self, mut x: Tensor, value: f64) -> Tensor {
        match self {
            Form::Plain => x * value,
            Form::Clone => (x * value).copy(),
            Form::InPlace => x.g_mul_scalar_(value),
        }
    }
}

/// Pointwise operations in one of the forms, by themselves or between the layers of a network.
struct Pointwise {
    x: Tensor,
    weights: Vec<Tensor>,
    chain: bool,
    form: Form,
    gradient: bool,
    /// Gradients of the last step, or its result where nothing has a gradient.
    outcome: Vec<Tensor>,
}

impl Pointwise {
    fn compute(&self) -> Tensor {
        if !self.weights.is_empty() {
            return self.weights.iter().fold(self.x.shallow_clone(), |x, w| self.form.relu(x.matmul(w)));
        }
        let mut x = &self.x * 1.5;
        if self.chain {
            x = self.form.add(x, 0.5);
            x = self.form.multiply(x, 0.9);
            x = self.form.add(x, -0.1);
            x = self.form.multiply(x, 1.1);
        }
        self.form.relu(x)
    }
}

impl Step for Pointwise {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        self.outcome.clear();
        probe.at_rest();
        if self.gradient {
            let result = probe.forward(|| Ok(self.compute()))?;
            let loss = result.mean(Kind::Float);
            drop(result);
            let leaves: Vec<&Tensor> = if self.weights.is_empty() { vec![&self.x] } else { self.weights.iter().collect() };
            self.outcome = Tensor::f_run_backward(&[loss], &leaves, false, false)?;
        } else {
            self.outcome = vec![tch::no_grad(|| self.compute())];
        }
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "result", tensors: self.outcome.iter().map(Tensor::shallow_clone).collect() }])
    }
}

/// f(x) + 1, with the sum written in one of three ways.
struct Write {
    x: Tensor,
    op: String,
    write: String,
}

impl Step for Write {
    fn run(&mut self, _: &mut Probe) -> Result<()> {
        self.x.zero_grad();
        let mut y = if self.op == "exp" { self.x.exp() } else { self.x.sin() };
        match self.write.as_str() {
            "inplace" => drop(y.g_add_scalar_(1.0)),
            "through-data" => drop(y.data().g_add_scalar_(1.0)),
            _ => y = y.g_add_scalar(1.0),
        }
        Ok(y.sum(Kind::Float).f_backward()?)
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "gradient", tensors: vec![self.x.grad()] }])
    }
}
