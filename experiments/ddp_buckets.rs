//! Distributed data parallel training: the buckets that gradients are gathered in. How large are they, and when do they appear?
//!
//! Guide 003 says that DDP takes a second model's size, at model load, because a bucket on each GPU gathers the gradients of the others.
//! Here PyTorch's own reducer runs on one process, told that it is alone, so that its bytes are counted exactly: at each moment of the
//! first three iterations, training with it is put against the same training without it. `gradient_as_bucket_view` makes gradients views
//! of the buckets, and so should save one copy of them (pytorch#41954 reports it for RoBERTa-base and a ResNet).
//!
//! With several processes, `torchrun --no-python --nproc-per-node N vramlab ddp` shows the same moments over Gloo or NCCL.
//!
//! Claims: ddp-buckets, ddp-view-default. Published figure: ddp-view.

use anyhow::{Result, bail, ensure};
use std::ops::ControlFlow;
use std::process::ExitCode;
use tch::nn::{AdamW, Optimizer, OptimizerConfig, Sgd};
use tch::{Reduction, Tensor};
use vramlab::measure::{Bench, Probe, Quantity, Step};
use vramlab::models::{Batch, Model};
use vramlab::protocol::*;
use vramlab::torch::ddp::{Ddp, DdpOptions};
use vramlab::torch::distributed::ProcessGroup;

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

/// What a training run holds beyond the same run without DDP, over the bytes of its gradients.
const EXTRA: Metric = Metric { name: "extra", label: "extra bytes over gradient bytes", unit: "1", pass: Pass::Memory };
/// Bytes that live at the cell's moment.
const LIVE: Metric = Metric { name: "live", label: "live memory", unit: "B", pass: Pass::Memory };
/// By what views lower the peak of a step, over the bytes of the gradients.
const SAVED: Metric = Metric { name: "saved", label: "peak saved over gradient bytes", unit: "1", pass: Pass::Memory };

pub const PROTOCOL: Protocol = Protocol {
    name: "ddp_buckets",
    title: "DDP's gradient buckets",
    question: "How much memory do DDP's gradient buckets take, when do they appear, and what does gradient_as_bucket_view give back?",
    hypothesis: "Buckets hold each gradient once, so they take the gradients' size whatever their cap is, from the moment DDP is built. As \
                 views, gradients move into the buckets in the backward pass and the extra copy is gone; until then the buckets are there \
                 and gradients are not, so a peak at the end of the forward pass stays where it is.",
    factors: &[
        Factor { name: "model", meaning: "model", levels: &[] },
        Factor { name: "batch", meaning: "samples", levels: &[] },
        Factor { name: "cap", meaning: "largest bucket in MiB (bucket_cap_mb)", levels: &[] },
        Factor {
            name: "moment",
            meaning: "when bytes are counted",
            levels: &[
                Level { name: "load", meaning: "the model is there and DDP is built" },
                Level { name: "1-forward", meaning: "after the first forward pass" },
                Level { name: "1-backward", meaning: "after the first backward pass" },
                Level {
                    name: "2-rebuilt",
                    meaning: "gradients are dropped and buckets built anew, as the second forward pass begins",
                },
                Level { name: "3-forward", meaning: "after the third forward pass" },
                Level { name: "3-backward", meaning: "after the third backward pass" },
            ],
        },
        Factor {
            name: "zero-grad",
            meaning: "what zero_grad leaves",
            levels: &[
                Level { name: "none", meaning: "no gradients (set_to_none, PyTorch's default since 2.0)" },
                Level { name: "zeros", meaning: "gradients of zeros, as in 2020" },
            ],
        },
        Factor {
            name: "ddp",
            meaning: "how gradients are reduced",
            levels: &[
                Level { name: "none", meaning: "not at all: training without DDP" },
                Level { name: "copies", meaning: "gradients are copied into buckets and back" },
                Level { name: "views", meaning: "gradients are views of buckets (gradient_as_bucket_view)" },
            ],
        },
    ],
    grids: &[
        moments(&[Profile::Quick], &[axis("model", &["gpt-4x128"]), axis("batch", &["4"]), CAP_25, MOMENTS, WAYS]),
        moments(&[Profile::Quick], &[axis("model", &["resnet-2x64-gn"]), axis("batch", &["4"]), CAP_25, LOAD_AND_STEADY, WAYS]),
        moments(&[Profile::Quick], &[axis("model", &["mlp-16x512"]), axis("batch", &["4"]), OTHER_CAPS, STEADY, WAYS]),
        moments(&[Profile::Full], &[axis("model", &["gpt2"]), axis("batch", &["4"]), CAP_25, MOMENTS, WAYS]),
        moments(
            &[Profile::Full],
            &[axis("model", &["resnet50", "mlp-8x4096"]), axis("batch", &["32"]), CAP_25, LOAD_AND_STEADY, WAYS],
        ),
        moments(&[Profile::Full], &[axis("model", &["mlp-8x4096"]), axis("batch", &["32"]), OTHER_CAPS, STEADY, WAYS]),
        moments(
            &[Profile::Smoke],
            &[axis("model", &["mlp-4x64"]), axis("batch", &["8"]), CAP_25, axis("moment", &["3-backward"]), WAYS],
        ),
        // Where activations are most of the peak, and where parameters are.
        peaks(&[Profile::Quick], &[axis("model", &["gpt-4x128"]), axis("batch", &["4"]), CAP_25, ZERO_GRAD, AS_WHAT]),
        peaks(&[Profile::Quick], &[axis("model", &["mlp-16x512"]), axis("batch", &["32"]), CAP_25, ZERO_GRAD, AS_WHAT]),
        peaks(&[Profile::Full], &[axis("model", &["bert-base"]), axis("batch", &["8"]), CAP_25, ZERO_GRAD, AS_WHAT]),
        peaks(&[Profile::Full], &[axis("model", &["resnet50", "mlp-8x4096"]), axis("batch", &["32"]), CAP_25, ZERO_GRAD, AS_WHAT]),
        price(&[Profile::Quick], &[axis("model", &["gpt-4x128"]), axis("batch", &["4"]), CAP_25, WAYS], TIMED),
        price(&[Profile::Quick], &[axis("model", &["mlp-8x512"]), axis("batch", &["4"]), OTHER_CAPS, WAYS], CHECKED),
        price(&[Profile::Full], &[axis("model", &["gpt2"]), axis("batch", &["4"]), CAPS, WAYS], TIMED),
        price(&[Profile::Full], &[axis("model", &["resnet50", "mlp-8x4096"]), axis("batch", &["32"]), CAP_25, WAYS], TIMED),
        price(
            &[Profile::Smoke],
            &[axis("model", &["mlp-4x64"]), axis("batch", &["8"]), CAP_25, axis("ddp", &["none", "copies"])],
            TIMED,
        ),
    ],
    metrics: &[
        EXTRA,
        LIVE,
        PEAK,
        SAVED,
        Metric { name: "gradient_error", label: "gradient error", unit: "1", pass: Pass::Check },
        TIME,
    ],
    checks: &[
        // Alone, every gradient is multiplied by 1 and copied. cuBLAS and cuDNN may still choose other kernels in another process.
        Check { when: "", expect: Relation::Equal { tolerance: 1e-6 } },
    ],
    claims: &[
        Claim {
            id: "ddp-buckets",
            from: "003",
            text: "DDP takes a second model's size, at model load, for gradient buckets",
            judged_on: &[Platform::Cpu, Platform::Gpu, Platform::Dry],
            rule: Rule::All(&[
                // When: already at load, before there is any gradient.
                Rule::Value { metric: EXTRA.name, of: "moment=load ddp=copies|views", confirm: ONE_COPY, refute: NOT_ONE },
                // And for good: still there when the gradients are.
                Rule::Value { metric: EXTRA.name, of: "moment=3-backward ddp=copies|views", confirm: ONE_COPY, refute: NOT_ONE },
            ]),
            meaning: Meaning {
                confirmed: "Plan for one more copy of the gradients ({effect}) on every GPU, from the moment DDP is built.",
                refuted: "Do not plan for a second copy: it is not there ({effect}).",
                depends: "As the guide says, a second model's size is taken as soon as DDP is built, before there is any gradient. But once \
                          gradients are there, it is an extra copy only where {where} ({effect}): with gradient_as_bucket_view they move \
                          into the buckets in the first backward pass. The bucket cap changes nothing of it.",
                inconclusive: "What the buckets take here fits neither answer ({effect}).",
            },
        },
        Claim {
            id: "ddp-view-default",
            from: "this lab",
            text: "with PyTorch's defaults, where zero_grad drops gradients, gradient_as_bucket_view lowers a step's peak by one copy of them",
            judged_on: &[Platform::Cpu, Platform::Gpu, Platform::Dry],
            rule: Rule::Value { metric: SAVED.name, of: "zero-grad=none ddp=views", confirm: ONE_COPY, refute: NOT_ONE },
            meaning: Meaning {
                confirmed: "Turn gradient_as_bucket_view on: the peak is lower by a whole copy of the gradients ({effect}).",
                refuted: "Turn gradient_as_bucket_view on, and expect little of it ({effect}): when activations are at their peak, zero_grad \
                          has dropped the gradients, and the buckets are there in any case.",
                depends: "Turn gradient_as_bucket_view on, but expect a whole copy of the gradients from it ({effect}) only where {where}. \
                          Where activations make the peak, zero_grad has dropped the gradients by then, and the buckets are there in any \
                          case.",
                inconclusive: "The peak is lower, and not by a whole copy of the gradients ({effect}).",
            },
        },
    ],
    published: &[Published {
        id: "ddp-view",
        source: "pytorch#41954",
        figure: "gradient_as_bucket_view lowers the peak by the gradients' size: 8250 to 7183 MB for RoBERTa-base ('~1GB parameters'), 3089 to \
                 2988 MB for a ResNet of 97 MB",
        judged_on: &[Platform::Cpu, Platform::Gpu, Platform::Dry],
        rule: Some(Rule::All(&[
            published_value(&SAVED, "zero-grad=zeros ddp=views", (3089.0 - 2988.0) / 97.0),
            published_ratio(&PEAK, "model=resnet50 zero-grad=zeros ddp=views", 2988.0 / 3089.0),
        ])),
        setup: "Published in 2020, when zero_grad filled gradients with zeros, as it does here where zero-grad = zeros. ResNet-50 has 97 MiB of \
                parameters; the source names neither batch nor optimizer. Its RoBERTa-base has twice the bytes that fp32 parameters of that \
                model have, so only what is saved for each byte of gradients is compared.",
    }],
    plots: &[
        Plot {
            name: "moments",
            caption: "Live memory at each moment against training without DDP: the buckets are there from the start, views give the copy back",
            of: "model=gpt-4x128|gpt2 cap=25",
            metric: LIVE.name,
            kind: PlotKind::Bars { clusters: &["moment"] },
        },
        Plot {
            name: "peak",
            caption: "Peak of a training step with AdamW against gradients that are copies",
            of: "zero-grad=none|zeros",
            metric: PEAK.name,
            kind: PlotKind::Bars { clusters: &["model", "batch", "zero-grad"] },
        },
        Plot {
            name: "time",
            caption: "Time of a training step in one process against training without DDP",
            of: "cap=25",
            metric: TIME.name,
            kind: PlotKind::Bars { clusters: &["model"] },
        },
    ],
    threats: &[
        "One process without communication: what NCCL takes for itself on a GPU (channels, some hundred MB outside PyTorch's allocator) is \
         not in these figures, and the time is that of copying and dividing alone.",
        "Building DDP sends the parameters to all ranks in packed messages of up to 250 MiB, which takes a copy of them for that moment; \
         it is in the peak and gone before the buckets are allocated.",
        "Every parameter gets a gradient in every iteration; find_unused_parameters and communication hooks take more.",
    ],
};

const ONE_COPY: Bound = Bound::Within(0.95, 1.10);
const NOT_ONE: Bound = Bound::Outside(0.95, 1.10);
const CAPS: Axis = axis("cap", &["25", "1", "100"]);
const CAP_25: Axis = axis("cap", &["25"]);
const OTHER_CAPS: Axis = axis("cap", &["1", "100"]);
const MOMENTS: Axis = axis("moment", &["load", "1-forward", "1-backward", "2-rebuilt", "3-forward", "3-backward"]);
const LOAD_AND_STEADY: Axis = axis("moment", &["load", "3-backward"]);
const STEADY: Axis = axis("moment", &["3-backward"]);
const ZERO_GRAD: Axis = axis("zero-grad", &["none", "zeros"]);
const WAYS: Axis = axis("ddp", &["none", "copies", "views"]);
const AS_WHAT: Axis = axis("ddp", &["copies", "views"]);
const CHECKED: &[Pass] = &[Pass::Check];
const TIMED: &[Pass] = &[Pass::Check, Pass::Time];

const fn moments(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "when the buckets appear", profiles, studied: "ddp", axes, passes: &[Pass::Memory], only_on: &[] }
}

const fn peaks(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "what views save of the peak", profiles, studied: "ddp", axes, passes: &[Pass::Memory], only_on: &[] }
}

const fn price(profiles: &'static [Profile], axes: &'static [Axis], passes: &'static [Pass]) -> Grid {
    Grid { name: "the same gradients, and the price", profiles, studied: "ddp", axes, passes, only_on: &[] }
}

const ON: ControlFlow<()> = ControlFlow::Continue(());
const STOP: ControlFlow<()> = ControlFlow::Break(());

/// How gradients are reduced: not at all, or in buckets of at most so many bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Plain,
    Ddp(DdpOptions),
}

/// What takes the gradients: plain SGD keeps nothing between steps, AdamW two moments.
#[derive(Debug, Clone, Copy)]
enum Update {
    Sgd,
    AdamW,
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    prepare_among(cell, bench, 1)
}

/// As [`prepare`], with DDP told that so many processes train together. Only with one are gradients what they are without DDP.
pub fn prepare_among(cell: &Cell, bench: &Bench, processes: usize) -> Result<Box<dyn Step>> {
    let cap = u64::try_from(cell.number("cap")?)? << 20;
    let buckets = |gradient_as_bucket_view| Way::Ddp(DdpOptions { bucket_cap: Some(cap), gradient_as_bucket_view });
    let (copies, views) = (buckets(false), buckets(true));
    let way = match cell.level("ddp")? {
        "none" => Way::Plain,
        "copies" => copies,
        "views" => views,
        other => bail!("'{other}' is no way to reduce gradients"),
    };
    let zero = cell.get("zero-grad") == Some("zeros");
    let run = Run { model: cell.level("model")?.to_string(), samples: cell.number("batch")?, zero, bench: *bench, processes };
    Ok(match cell.get("moment") {
        Some(moment) => Box::new(Moments { run, way, moment: moment.to_string() }),
        None if cell.get("zero-grad").is_some() => Box::new(Peaks { run, way, copies }),
        None => {
            let mut training = run.start(way, Update::AdamW)?;
            // Buckets have been built anew by the third iteration.
            for _ in 0..2 {
                training.step()?;
            }
            Box::new(training)
        }
    })
}

/// What is trained, to be begun again and again from the same random state.
struct Run {
    model: String,
    samples: i64,
    /// Whether gradients are set to zero between iterations, and not dropped.
    zero: bool,
    bench: Bench,
    processes: usize,
}

impl Run {
    fn start(&self, way: Way, update: Update) -> Result<Training> {
        tch::manual_seed(self.bench.seed);
        let model = Model::named(&self.model, self.bench.device)?;
        let batch = model.batch(self.samples);
        let optimizer = match update {
            Update::Sgd => Sgd::default().build(&model.store, 1e-2)?,
            Update::AdamW => AdamW::default().build(&model.store, 1e-4)?,
        };
        let ddp = match way {
            Way::Plain => None,
            Way::Ddp(options) => Some(Ddp::of(&model.store, &ProcessGroup::alone(self.bench.device, self.processes)?, options)?),
        };
        Ok(Training { model, batch, optimizer, ddp, zero: self.zero, kept: None })
    }

    /// Trains until a moment and gives the bytes that live then, without those that lived before, and the bytes of all gradients.
    fn live_at(&self, way: Way, moment: &str, probe: &mut Probe) -> Result<(i64, i64)> {
        let before = probe.live();
        let mut training = self.start(way, Update::Sgd)?;
        let mut reached = moment == "load";
        for iteration in 1..=3 {
            reached = reached
                || training.iterate(&mut |phase| if moment == format!("{iteration}-{phase}") { STOP } else { ON })?.is_break();
        }
        ensure!(reached, "'{moment}' is no moment of the first three iterations");
        Ok((probe.live() - before, training.gradient_bytes()))
    }

    /// Peak of the third iteration with AdamW, and the bytes of all gradients.
    fn peak(&self, way: Way, probe: &mut Probe) -> Result<(i64, i64)> {
        let mut training = self.start(way, Update::AdamW)?;
        for _ in 0..2 {
            training.step()?;
        }
        probe.reset_peaks();
        training.step()?;
        Ok((probe.memory().map_or(0, |memory| memory.requested_peak), training.gradient_bytes()))
    }
}

/// A model in training, in one process.
struct Training {
    model: Model,
    batch: Batch,
    optimizer: Optimizer,
    ddp: Option<Ddp>,
    zero: bool,
    /// Loss of an iteration that was stopped before its backward pass.
    kept: Option<Tensor>,
}

impl Training {
    /// One iteration. `at` is told when its forward pass begins (`rebuilt`), when that is done and when the backward pass is, and says
    /// whether to go on; where it stops the iteration, what lives then is kept.
    fn iterate(&mut self, at: &mut dyn FnMut(&str) -> ControlFlow<()>) -> Result<ControlFlow<()>> {
        if self.zero {
            let gradients = self.model.gradients().into_iter().filter(Tensor::defined);
            tch::no_grad(|| gradients.for_each(|mut gradient| drop(gradient.zero_())));
        } else if let Some(ddp) = &self.ddp {
            ddp.zero_grad();
        } else {
            self.optimizer.zero_grad();
        }
        let model = &self.model;
        let mut forward = || {
            if at("rebuilt").is_break() {
                return Ok(None);
            }
            Ok(Some(model.loss(&model.forward(&self.batch.inputs, true), &self.batch.targets, Reduction::Mean)))
        };
        let loss = match &self.ddp {
            Some(ddp) => ddp.forward(forward)?,
            None => forward()?,
        };
        let Some(loss) = loss else { return Ok(STOP) };
        if at("forward").is_break() {
            self.kept = Some(loss);
            return Ok(STOP);
        }
        loss.f_backward()?;
        drop(loss);
        if at("backward").is_break() {
            return Ok(STOP);
        }
        self.optimizer.step();
        Ok(ON)
    }

    /// One whole iteration.
    fn step(&mut self) -> Result<()> {
        self.iterate(&mut |_| ON).map(|_| ())
    }

    fn gradient_bytes(&self) -> i64 {
        let trained = self.model.store.trainable_variables();
        trained.iter().map(|t| i64::try_from(t.numel() * t.kind().elt_size_in_bytes()).unwrap_or(i64::MAX)).sum()
    }
}

impl Step for Training {
    fn run(&mut self, _: &mut Probe) -> Result<()> {
        self.step()
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "gradient", tensors: self.model.gradients() }])
    }

    fn least_flops(&self) -> f64 {
        self.model.least_training_flops(self.batch.targets.size()[0])
    }
}

/// A training run up to a moment, and the same without DDP.
struct Moments {
    run: Run,
    way: Way,
    moment: String,
}

impl Step for Moments {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        let plain = match self.way {
            Way::Plain => None,
            Way::Ddp(_) => Some(self.run.live_at(Way::Plain, &self.moment, probe)?),
        };
        probe.reset_peaks();
        let (live, gradients) = self.run.live_at(self.way, &self.moment, probe)?;
        probe.record(LIVE.name, live);
        if let Some((plain, _)) = plain {
            probe.figure(&EXTRA, (live - plain) as f64 / gradients as f64);
        }
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(Vec::new())
    }
}

/// A step of a training run with buckets, and the same with gradients that are copies.
struct Peaks {
    run: Run,
    way: Way,
    copies: Way,
}

impl Step for Peaks {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        let copies = if self.way == self.copies { None } else { Some(self.run.peak(self.copies, probe)?) };
        let (peak, gradients) = self.run.peak(self.way, probe)?;
        if let Some((copies, _)) = copies {
            probe.figure(&SAVED, (copies - peak) as f64 / gradients as f64);
        }
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(Vec::new())
    }
}
