//! What lives in memory as a training step goes on: after load, forward, backward and step, and in the next iteration.
//!
//! Guide 003 tells it in five statements: the model; then model + activations; then model + gradients, twice the model; then also the
//! optimizer's moments; and from the second iteration on a peak of everything together. Each allocation is followed here by what it turns
//! out to be for, so each statement is put against the bytes it names. The batch itself, which the guide does not count, is left out
//! of every ratio and stands beside them. What the step leaves behind is judged by `optimizer_state`.
//!
//! Claims: step-load, step-forward, step-backward, step-peak.

use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::process::ExitCode;
use tch::Tensor;
use vramlab::measure::{Bench, Probe, Quantity, Step};
use vramlab::protocol::*;
use vramlab::torch::{Category, Mark, Phase, Recorder, Recording, Stage, Timeline};
use vramlab::training::{Configuration, Trainer};

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

const MODEL: Metric = bytes("model", "model");
const DATA: Metric = bytes("data", "one batch");
const KEPT: Metric = bytes("activations", "activations");
const STATE: Metric = bytes("optimizer_state", "optimizer state");
const TEMPORARIES: Metric = bytes("temporaries", "temporaries at the later peak");
const AFTER_LOAD: Metric = bytes("after_load", "after load");
const AFTER_FORWARD: Metric = bytes("after_forward", "after forward");
const AFTER_BACKWARD: Metric = bytes("after_backward", "after backward");
const AFTER_STEP: Metric = bytes("after_step", "after step");
const FIRST_PEAK: Metric = bytes("first_peak", "peak, iteration 1");
const NEXT_PEAK: Metric = bytes("next_peak", "peak, later");
const LOADED: Metric = ratio("loaded", "after load / model");
const FORWARDED: Metric = ratio("forwarded", "after forward / (model + activations)");
const BACKWARDED: Metric = ratio("backwarded", "after backward / model");
const PEAKED: Metric = ratio("peaked", "later peak / sum of all four");

const fn bytes(name: &'static str, label: &'static str) -> Metric {
    Metric { name, label, unit: "B", pass: Pass::Memory }
}

const fn ratio(name: &'static str, label: &'static str) -> Metric {
    Metric { name, label, unit: "x", pass: Pass::Memory }
}

/// The curves of the picture, bottom to top: what stays lies below what comes and goes.
const LAYERS: &[Metric] = &[
    bytes("curve.parameters", "parameters"),
    bytes("curve.optimizer_state", "optimizer state"),
    bytes("curve.data", "data"),
    bytes("curve.gradients", "gradients"),
    bytes("curve.activations", "activations"),
    bytes("curve.temporaries", "temporaries"),
];
const LAYER_CATEGORIES: [Category; 6] = [
    Category::Parameters,
    Category::OptimizerState,
    Category::Data,
    Category::Gradients,
    Category::Activations,
    Category::Temporaries,
];
/// Where a phase of the picture begins, by its position among the phases; one behind the last, where the step ends.
const BOUNDARY: &str = "curve.phase";
/// Prefix of the activations' bytes by the operation that made them.
const SAVED: &str = "saved.";
const DRAWN_PHASES: [(Phase, usize); 3] = [(Phase::Forward, 70), (Phase::Backward, 70), (Phase::Step, 40)];

pub const PROTOCOL: Protocol = Protocol {
    name: "step_timeline",
    title: "Memory through a training step",
    question: "What lives in memory after each phase of a training step, and what makes the peak?",
    hypothesis: "After load, forward and the first backward pass lives what the guide says. The peak is the sum of everything only where \
                 gradients are kept: a backward pass frees activations while it makes gradients, so where they were dropped both never \
                 live in full at once.",
    factors: &[
        Factor { name: "model", meaning: "model", levels: &[] },
        Factor { name: "batch", meaning: "samples of a step", levels: &[] },
        Factor {
            name: "optimizer",
            meaning: "optimizer, as libtorch's C++ has it",
            levels: &[Level { name: "momentum", meaning: "SGD with momentum 0.9" }],
        },
        Factor {
            name: "zero-grad",
            meaning: "what happens to the last iteration's gradients",
            levels: &[
                Level { name: "none", meaning: "dropped before the forward pass, PyTorch's default since 2.0" },
                Level { name: "zero", meaning: "kept, and filled with zeros: set_to_none=False" },
            ],
        },
    ],
    grids: &[
        grid(&[Profile::Quick], &[axis("model", &["mlp-8x128"]), axis("batch", &["1024"]), ADAMW, ZERO_GRAD], CHECKED),
        grid(&[Profile::Quick], &[axis("model", &["mlp-8x128"]), axis("batch", &["1024"]), OTHERS, ZERO_GRAD], COUNTED),
        grid(&[Profile::Quick], &[axis("model", &["resnet-4x16-bn"]), axis("batch", &["8"]), ADAMW, ZERO_GRAD], CHECKED),
        grid(&[Profile::Quick], &[axis("model", &["resnet-4x16-bn"]), axis("batch", &["8"]), OTHERS, ZERO_GRAD], COUNTED),
        grid(&[Profile::Quick], &[axis("model", &["gpt-4x128"]), axis("batch", &["4"]), ADAMW, ZERO_GRAD], CHECKED),
        grid(&[Profile::Quick], &[axis("model", &["gpt-4x128"]), axis("batch", &["4"]), OTHERS, ZERO_GRAD], COUNTED),
        grid(&[Profile::Full], &[axis("model", &["mlp-8x1024"]), axis("batch", &["8192"]), OPTIMIZERS, ZERO_GRAD], CHECKED),
        grid(&[Profile::Full], &[axis("model", &["resnet50"]), axis("batch", &["32"]), OPTIMIZERS, ZERO_GRAD], CHECKED),
        grid(&[Profile::Full], &[axis("model", &["gpt2"]), axis("batch", &["4"]), OPTIMIZERS, ZERO_GRAD], CHECKED),
        grid(&[Profile::Smoke], &[axis("model", &["mlp-2x32"]), axis("batch", &["64"]), ADAMW, ZERO_GRAD], CHECKED),
    ],
    metrics: &[
        MODEL,
        DATA,
        KEPT,
        GRADIENTS,
        STATE,
        TEMPORARIES,
        AFTER_LOAD,
        AFTER_FORWARD,
        AFTER_BACKWARD,
        AFTER_STEP,
        FIRST_PEAK,
        NEXT_PEAK,
        LOADED,
        FORWARDED,
        BACKWARDED,
        PEAKED,
    ],
    checks: &[
        // The same kernels on the same numbers: what becomes of old gradients changes no result.
        Check { when: "", expect: Relation::Equal { tolerance: 1e-6 } },
    ],
    claims: &[
        Claim {
            id: "step-load",
            from: "003",
            text: "after load there is the model",
            judged_on: EVERYWHERE,
            rule: value(&LOADED, 0.99, 1.01),
            meaning: Meaning {
                confirmed: "What tensors take after loading is the model and nothing else: {effect} its parameters and buffers. A GPU \
                            shows more, because CUDA's context is not made of tensors.",
                refuted: "More or less than the model lives after loading: {effect} its parameters and buffers.",
                depends: "Only the model lives where {where}; else {effect} its bytes.",
                inconclusive: "It could not be shown what lives after loading.",
            },
        },
        Claim {
            id: "step-forward",
            from: "003",
            text: "after forward there are the model and the activations",
            judged_on: EVERYWHERE,
            rule: value(&FORWARDED, 0.95, 1.05),
            meaning: Meaning {
                confirmed: "Nothing else of weight lives after the first forward pass ({effect} the two together), so what you save on \
                            activations (batch, checkpointing, precision) you save in full.",
                refuted: "Something else lives after the first forward pass: there is {effect} the bytes of model and activations.",
                depends: "It holds where {where}; else there is {effect} the bytes of model and activations.",
                inconclusive: "It could not be shown what lives after the forward pass.",
            },
        },
        Claim {
            id: "step-backward",
            from: "003",
            text: "after backward there are the model and the gradients, twice the model",
            judged_on: EVERYWHERE,
            rule: value(&BACKWARDED, 1.95, 2.05),
            meaning: Meaning {
                confirmed: "After the first backward pass {effect} the model's bytes live: gradients of fp32 are as large as the model, and the \
                            activations are gone, as long as nothing holds on to the loss or the outputs.",
                refuted: "After the first backward pass {effect} the model's bytes live, not twice the model.",
                depends: "It holds where {where}; else {effect} its bytes live.",
                inconclusive: "It could not be shown what lives after the backward pass.",
            },
        },
        Claim {
            id: "step-peak",
            from: "003",
            text: "from the second iteration on, the peak is model + activations + gradients + moments",
            judged_on: EVERYWHERE,
            rule: value(&PEAKED, 0.95, 1.05),
            meaning: Meaning {
                confirmed: "Plan with the sum of the four: the peak is {effect} that.",
                refuted: "Do not plan with the sum of the four: the peak is {effect} that. Temporaries of the backward pass, which the guide \
                          does not name, push it up; gradients that were dropped come only as activations go, and keep it down.",
                depends: "The sum of the four is the peak where {where}; over all cells the peak is {effect} that. Temporaries of the \
                          backward pass, which the guide does not name, push it up; gradients that were dropped before the forward \
                          pass come only as activations go, and keep it down.",
                inconclusive: "It could not be shown what makes the peak ({effect} the sum).",
            },
        },
    ],
    plots: &[
        Plot {
            name: "phases",
            caption: "Live bytes through the second iteration with AdamW, by what they are for; gradients dropped (none) or filled with \
                      zeros (zero)",
            of: "optimizer=adamw",
            metric: NEXT_PEAK.name,
            kind: area(&["model", "zero-grad"]),
        },
        Plot {
            name: "optimizers",
            caption: "Live bytes through the second iteration of a GPT, by optimizer",
            of: "model=gpt-4x128|gpt2 zero-grad=none",
            metric: NEXT_PEAK.name,
            kind: area(&["optimizer"]),
        },
        Plot {
            name: "saved",
            caption: "What a forward pass leaves alive for the backward pass, by the operation that made it",
            of: "optimizer=adamw zero-grad=none",
            metric: KEPT.name,
            kind: PlotKind::Shares { rows: &["model", "batch"], prefix: SAVED },
        },
    ],
    published: &[],
    threats: &[
        "Bytes are what tensors ask for. The allocator rounds them up and caches, and the CUDA context and libraries come on top.",
        "The loss is dropped when the backward pass is done. A Python loop that keeps `loss` and `output` until the next iteration keeps \
         their bytes, though not what the graph had saved.",
        "Whole iterations run before the recorded ones, so what libraries allocate once, as cuBLAS's workspaces, is not in the figures.",
        "The optimizers are libtorch's C++ loops, which work on one parameter after the other; PyTorch's Python ones may hold temporaries \
         of all parameters at once.",
    ],
};

const OPTIMIZERS: Axis = axis("optimizer", &["sgd", "momentum", "rmsprop", "adam", "adamw"]);
const ADAMW: Axis = axis("optimizer", &["adamw"]);
const OTHERS: Axis = axis("optimizer", &["sgd", "momentum", "rmsprop", "adam"]);
const ZERO_GRAD: Axis = axis("zero-grad", &["none", "zero"]);
const CHECKED: &[Pass] = &[Pass::Check, Pass::Memory];
const COUNTED: &[Pass] = &[Pass::Memory];
const EVERYWHERE: &[Platform] = &[Platform::Cpu, Platform::Gpu, Platform::Dry];

const fn grid(profiles: &'static [Profile], axes: &'static [Axis], passes: &'static [Pass]) -> Grid {
    Grid { name: "by phase", profiles, studied: "zero-grad", axes, passes, only_on: &[] }
}

const fn value(metric: &'static Metric, low: f64, high: f64) -> Rule {
    Rule::Value { metric: metric.name, of: "", confirm: Bound::Within(low, high), refute: Bound::Outside(low, high) }
}

const fn area(panels: &'static [&'static str]) -> PlotKind {
    PlotKind::Area { panels, layers: LAYERS, boundary: BOUNDARY, phases: &["forward", "backward", "step"] }
}

/// Iterations that a cell runs. The second is the first that has optimizer state from its beginning; the third shows that it goes on so.
const ITERATIONS: u32 = 3;

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    let configuration = Configuration {
        optimizer: cell.level("optimizer")?.parse().map_err(anyhow::Error::msg)?,
        ..Configuration::new(cell.level("model")?, cell.number("batch")?)
    };
    let keep_gradients = match cell.level("zero-grad")? {
        "none" => false,
        "zero" => true,
        other => bail!("'{other}' is no way to zero gradients"),
    };
    configuration.validate()?;
    let drawn = PROTOCOL.plots.iter().any(|plot| selects(plot.of, cell));
    Ok(Box::new(Phases { configuration, keep_gradients, drawn, bench: *bench, trainer: None }))
}

/// A training from its load on.
struct Phases {
    configuration: Configuration,
    keep_gradients: bool,
    /// Whether a picture shows this cell.
    drawn: bool,
    bench: Bench,
    trainer: Option<Trainer>,
}

impl Phases {
    fn train(&mut self, mut recorder: Option<&mut Recorder>) -> Result<()> {
        let mut ended = |mark: Mark, trainer: &Trainer| match recorder.as_deref_mut() {
            Some(recorder) => trainer.tell(mark, recorder),
            None => Ok(()),
        };
        // Each run begins with the same parameters and data.
        tch::manual_seed(self.bench.seed);
        let trainer = self.trainer.insert(Trainer::load(&self.configuration, self.bench.device)?);
        if self.keep_gradients {
            trainer.keep_gradients();
        }
        ended(Mark::LOADED, trainer)?;
        for _ in 0..ITERATIONS {
            trainer.iterate(&mut ended)?;
        }
        Ok(())
    }

    fn tell(&self, timeline: &Timeline, probe: &mut Probe) -> Result<()> {
        let stages = timeline.stages();
        let stage = |iteration: u32, phase: Phase| -> Result<&Stage> {
            let found = stages.iter().find(|s| (s.iteration, s.phase) == (iteration, phase));
            found.with_context(|| format!("{phase} of iteration {iteration} was not recorded"))
        };
        let trainer = self.trainer.as_ref().context("nothing was trained")?;
        // From shapes, not from the recording.
        let of = |tensors: &[Tensor]| tensors.iter().map(|t| t.numel() * t.kind().elt_size_in_bytes()).sum::<usize>() as f64;
        let model = of(&trainer.model().store.variables().into_values().collect::<Vec<_>>());
        let data = of(&[trainer.batch().inputs.shallow_clone(), trainer.batch().targets.shallow_clone()]);
        let without_data = |bytes: i64| bytes as f64 - data;
        let after = |iteration, phase| Ok::<_, anyhow::Error>(without_data(stage(iteration, phase)?.live));
        let peak = |iterations: RangeInclusive<u32>| -> Result<&Stage> {
            let stages = stages.iter().filter(|s| iterations.contains(&s.iteration));
            stages.max_by_key(|s| s.peak).context("no iteration was recorded")
        };
        let (first, later) = (peak(1..=1)?, peak(2..=ITERATIONS)?);
        let (forward, backward, step) = (stage(2, Phase::Forward)?, stage(2, Phase::Backward)?, stage(2, Phase::Step)?);
        let kept = stage(1, Phase::Forward)?.at_end.activations as f64;
        let (gradients, state) = (backward.at_end.gradients as f64, step.at_end.optimizer_state as f64);
        let everything = model + forward.at_end.activations as f64 + gradients + state;
        for (metric, value) in [
            (&MODEL, model),
            (&DATA, data),
            (&KEPT, kept),
            (&GRADIENTS, gradients),
            (&STATE, state),
            (&AFTER_LOAD, after(0, Phase::Load)?),
            (&AFTER_FORWARD, after(1, Phase::Forward)?),
            (&AFTER_BACKWARD, after(1, Phase::Backward)?),
            (&AFTER_STEP, after(1, Phase::Step)?),
            (&FIRST_PEAK, without_data(first.peak)),
            (&NEXT_PEAK, without_data(later.peak)),
            (&TEMPORARIES, later.at_peak.temporaries as f64),
            (&LOADED, after(0, Phase::Load)? / model),
            (&FORWARDED, after(1, Phase::Forward)? / (model + kept)),
            (&BACKWARDED, after(1, Phase::Backward)? / model),
            (&PEAKED, without_data(later.peak) / everything),
        ] {
            probe.figure(metric, value);
        }
        details(&stages, probe);
        saved(timeline, probe);
        if self.drawn {
            draw(timeline, probe)?;
        }
        Ok(())
    }
}

/// The phases of the first two iterations with their live and peak bytes, and what they are for.
fn details(stages: &[Stage], probe: &mut Probe) {
    for stage in stages.iter().filter(|stage| stage.iteration <= 2) {
        let place = format!("{}.{}", stage.iteration, stage.phase);
        probe.detail(format!("{place}.live"), "B", 0, stage.live as f64);
        probe.detail(format!("{place}.peak"), "B", 0, stage.peak as f64);
        for (when, categories) in [("live", &stage.at_end), ("peak", &stage.at_peak)] {
            for (name, bytes) in categories.named().into_iter().filter(|(_, bytes)| *bytes != 0) {
                probe.detail(format!("{place}.{when}.{}", name.replace(' ', "_")), "B", 0, bytes as f64);
            }
        }
    }
}

/// What the first forward pass leaves alive, by the operation that made it.
fn saved(timeline: &Timeline, probe: &mut Probe) {
    let Some(end) = timeline.events_of(1, Phase::Forward).and_then(|events| events.end.checked_sub(1)) else { return };
    let mut saved: BTreeMap<&str, i64> = BTreeMap::new();
    for made in timeline.living_after(end).filter(|made| made.category == Category::Activations) {
        *saved.entry(made.operation.map_or("no operation", |name| name.trim_start_matches("aten::"))).or_default() += made.bytes;
    }
    for (operation, bytes) in saved {
        probe.detail(format!("{SAVED}{operation}"), "B", 0, bytes as f64);
    }
}

/// The second iteration as curves: of each category the points where it changes, and where phases begin.
fn draw(timeline: &Timeline, probe: &mut Probe) -> Result<()> {
    let mut position = 0;
    let mut last = [None; LAYERS.len()];
    for (n, (phase, points)) in DRAWN_PHASES.iter().enumerate() {
        let events = timeline.events_of(2, *phase).with_context(|| format!("{phase} of iteration 2 was not recorded"))?;
        probe.detail(BOUNDARY.to_string(), "1", position, n as f64);
        for mut live in timeline.outline(events, *points) {
            for ((layer, category), last) in LAYERS.iter().zip(LAYER_CATEGORIES).zip(&mut last) {
                let bytes = *category.of(&mut live);
                if last.replace(bytes) != Some(bytes) {
                    probe.detail(layer.name.to_string(), "B", position, bytes as f64);
                }
            }
            position += 1;
        }
    }
    probe.detail(BOUNDARY.to_string(), "1", position, DRAWN_PHASES.len() as f64);
    Ok(())
}

impl Step for Phases {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        self.trainer = None;
        let Some(meter) = probe.meter() else { return self.train(None) };
        let base = meter.memory()?.requested;
        let mut recorder = Recorder::begin(meter, Recording { operations: true, ..Recording::default() })?;
        self.train(Some(&mut recorder))?;
        let timeline = recorder.end();
        let (counted, metered) = (timeline.peak().map_or(0, |peak| peak.live.total()), meter.memory()?.requested_peak - base);
        ensure!(counted == metered, "the allocations add up to a peak of {counted} bytes, and the meter says {metered}");
        self.tell(&timeline, probe)
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        let trainer = self.trainer.as_ref().context("nothing was trained")?;
        Ok(vec![Quantity { name: "parameter", tensors: trainer.model().parameters().iter().map(Tensor::detach).collect() }])
    }
}
