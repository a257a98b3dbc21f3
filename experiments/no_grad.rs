//! Inference without gradients: does `no_grad` keep no activations, and what does inference mode add to it?
//!
//! Guide 003 recommends `torch.no_grad()` for inference, since nothing of the forward pass is needed again. `eval()` alone does not do
//! it: every level here runs the model as `eval()` has it, so that outputs are comparable, and the baseline records all the same.
//!
//! Claims: no-grad.

use anyhow::{Result, bail};
use std::process::ExitCode;
use tch::Tensor;
use vramlab::measure::{Bench, Probe, Quantity, Step};
use vramlab::models::Model;
use vramlab::protocol::*;
use vramlab::torch::inference_mode;

fn main() -> ExitCode {
    vramlab::run(&PROTOCOL, prepare)
}

/// What of a forward pass lives when it is done, its input included, over the bytes of input and output.
const KEPT: Metric = Metric { name: "kept", label: "live after forward / (input + output)", unit: "1", pass: Pass::Memory };

pub const PROTOCOL: Protocol = Protocol {
    name: "no_grad",
    title: "Inference without gradients",
    question: "Does inference under no_grad keep no activations, how does its peak grow with depth, and is inference mode better still?",
    hypothesis: "A recorded forward pass keeps what each layer needs for its backward pass, so its memory grows with depth. Under no_grad \
                 each intermediate result goes when the next is there: only input and output are left, and the peak is that of the largest \
                 layer, whatever the depth. Inference mode needs the same memory and saves some microseconds for each operation.",
    factors: &[
        Factor { name: "model", meaning: "model", levels: &[] },
        Factor { name: "width", meaning: "features or channels", levels: &[] },
        Factor { name: "batch", meaning: "samples", levels: &[] },
        Factor { name: "depth", meaning: "blocks", levels: &[] },
        Factor {
            name: "mode",
            meaning: "how the forward pass is run",
            levels: &[
                Level { name: "grad", meaning: "recorded, as after eval() alone" },
                Level { name: "no-grad", meaning: "under no_grad" },
                Level { name: "inference", meaning: "in inference mode" },
            ],
        },
    ],
    grids: &[
        by_depth(
            &[Profile::Quick],
            &[MLP, axis("width", &["256"]), axis("batch", &["4096"]), axis("depth", &["2", "4"]), MODES],
            COUNTED,
        ),
        by_depth(&[Profile::Quick], &[MLP, axis("width", &["256"]), axis("batch", &["4096"]), DEPTH, MODES], TIMED),
        by_depth(&[Profile::Quick], &[GPT, axis("width", &["128"]), axis("batch", &["16"]), axis("depth", &["2"]), MODES], COUNTED),
        by_depth(&[Profile::Quick], &[GPT, axis("width", &["128"]), axis("batch", &["16"]), DEPTH, MODES], COUNTED),
        by_depth(
            &[Profile::Quick],
            &[RESNET, axis("width", &["16"]), axis("batch", &["32"]), axis("depth", &["2"]), MODES],
            COUNTED,
        ),
        by_depth(&[Profile::Quick], &[RESNET, axis("width", &["16"]), axis("batch", &["32"]), DEPTH, MODES], COUNTED),
        by_depth(
            &[Profile::Full],
            &[MLP, axis("width", &["2048"]), axis("batch", &["8192"]), axis("depth", &["8", "16", "32", "64"]), MODES],
            TIMED,
        ),
        by_depth(
            &[Profile::Full],
            &[GPT, axis("width", &["1024"]), axis("batch", &["64"]), axis("depth", &["6", "12", "24", "48"]), MODES],
            TIMED,
        ),
        by_depth(
            &[Profile::Full],
            &[RESNET, axis("width", &["64"]), axis("batch", &["128"]), axis("depth", &["8", "16", "32", "64"]), MODES],
            TIMED,
        ),
        // Where operations are short, what each one costs beside its kernel counts.
        Grid {
            name: "short operations",
            profiles: &[Profile::Full],
            studied: "mode",
            axes: &[MLP, axis("width", &["32"]), axis("batch", &["32"]), axis("depth", &["64"]), MODES],
            passes: TIMED,
            only_on: &[],
        },
        by_depth(
            &[Profile::Smoke],
            &[MLP, axis("width", &["32"]), axis("batch", &["256"]), axis("depth", &["4"]), axis("mode", &["grad", "no-grad"])],
            TIMED,
        ),
    ],
    metrics: &[
        KEPT,
        STEP_PEAK,
        ACTIVATIONS,
        PEAK,
        Metric { name: "output_error", label: "output error", unit: "1", pass: Pass::Check },
        TIME,
    ],
    checks: &[
        // The same kernels on the same numbers.
        Check { when: "", expect: Relation::Equal { tolerance: 1e-6 } },
    ],
    claims: &[Claim {
        id: "no-grad",
        from: "003",
        text: "inference under no_grad keeps no activations",
        judged_on: &[Platform::Cpu, Platform::Gpu, Platform::Dry],
        rule: Rule::All(&[
            Rule::Value { metric: KEPT.name, of: "mode=no-grad", confirm: Bound::AtMost(1.01), refute: Bound::AtLeast(1.01) },
            Rule::Exponent {
                metric: STEP_PEAK.name,
                along: "depth",
                of: "mode=no-grad",
                confirm: Bound::AtMost(0.1),
                refute: Bound::AtLeast(0.5),
            },
        ]),
        meaning: Meaning {
            confirmed: "Run inference under no_grad, or in inference mode: nothing but input and output is left ({effect}), and a deeper \
                        model needs no more than a shallow one beside its parameters. eval() alone does not do that.",
            refuted: "Something of the forward pass stays all the same ({effect}): look for what holds it.",
            depends: "Nothing but input and output is left only where {where}.",
            inconclusive: "It keeps less ({effect}), but not every part of the promise could be shown here.",
        },
    }],
    published: &[],
    plots: &[
        Plot {
            name: "depth",
            caption: "What a forward pass needs above rest, by depth",
            of: "mode=grad|no-grad width=16|64|128|256|1024|2048",
            metric: STEP_PEAK.name,
            kind: PlotKind::Lines { x: "depth", series: &["model", "mode"] },
        },
        Plot {
            name: "kept",
            caption: "What lives after the forward pass, against input and output alone",
            of: "width=16|64|128|256|1024|2048",
            metric: KEPT.name,
            kind: PlotKind::Dots { rows: &["model", "depth"], threshold: 1.01 },
        },
        Plot {
            name: "time",
            caption: "Time of a forward pass against the recorded one",
            of: "",
            metric: TIME.name,
            kind: PlotKind::Bars { clusters: &["model", "depth"] },
        },
    ],
    threats: &[
        "Python's `for` loops keep the last output until the next is bound to its name; here the output goes when the step ends.",
        "Large tensors on the CPU are mapped afresh at each allocation, so a forward pass that frees early reuses memory that is warm: \
         there no_grad saves time for this reason, too.",
    ],
};

const MLP: Axis = axis("model", &["mlp"]);
const GPT: Axis = axis("model", &["gpt"]);
const RESNET: Axis = axis("model", &["resnet"]);
const DEPTH: Axis = axis("depth", &["8"]);
const MODES: Axis = axis("mode", &["grad", "no-grad", "inference"]);
const COUNTED: &[Pass] = &[Pass::Check, Pass::Memory];
const TIMED: &[Pass] = &[Pass::Check, Pass::Memory, Pass::Time];

const fn by_depth(profiles: &'static [Profile], axes: &'static [Axis], passes: &'static [Pass]) -> Grid {
    Grid { name: "by depth", profiles, studied: "mode", axes, passes, only_on: &[] }
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    let kind = cell.level("model")?;
    let norm = if kind == "resnet" { "-bn" } else { "" };
    let name = format!("{kind}-{}x{}{norm}", cell.number("depth")?, cell.number("width")?);
    let model = Model::named(&name, bench.device)?;
    let inputs = model.batch(cell.number("batch")?).inputs;
    let mode = match cell.level("mode")? {
        "grad" => Mode::Grad,
        "no-grad" => Mode::NoGrad,
        "inference" => Mode::Inference,
        other => bail!("'{other}' is no mode"),
    };
    Ok(Box::new(Forward { model, inputs, mode, output: None }))
}

#[derive(Clone, Copy)]
enum Mode {
    Grad,
    NoGrad,
    Inference,
}

struct Forward {
    model: Model,
    inputs: Tensor,
    mode: Mode,
    output: Option<Tensor>,
}

impl Step for Forward {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        self.output = None;
        let rest = probe.at_rest();
        let (model, inputs) = (&self.model, &self.inputs);
        let output = probe.forward(|| {
            Ok(match self.mode {
                Mode::Grad => model.forward(inputs, false),
                Mode::NoGrad => tch::no_grad(|| model.forward(inputs, false)),
                Mode::Inference => inference_mode(|| model.forward(inputs, false))?,
            })
        })?;
        let added = probe.live() - rest;
        probe.figure(&KEPT, (added + bytes(inputs)) as f64 / (bytes(inputs) + bytes(&output)) as f64);
        self.output = Some(output);
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        let Some(output) = &self.output else { bail!("no forward pass was run") };
        Ok(vec![Quantity { name: "output", tensors: vec![output.detach()] }])
    }
}

fn bytes(tensor: &Tensor) -> i64 {
    (tensor.numel() * tensor.kind().elt_size_in_bytes()) as i64
}
