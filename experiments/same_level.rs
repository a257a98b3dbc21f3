//! A/A: levels that are one thing under six names. How often would this lab call two of them different?
//!
//! A lab whose intervals hold at 95 % raises a false alarm in one comparison of twenty, and no more often. What would make it worse: a
//! place in the round that is always slower, a machine that drifts within a round, samples that hang together taken for independent ones.
//! Nothing of that is evened out here: rounds are taken as any experiment takes them, and drawn from again as they are.
//!
//! Claims: same-level (this lab's own).

use anyhow::Result;
use std::process::ExitCode;
use tch::nn::{Optimizer, OptimizerConfig, Sgd};
use tch::{Reduction, Tensor};
use vramlab::measure::{Bench, Probe, Quantity, Step};
use vramlab::models::{Batch, Model};
use vramlab::protocol::*;
use vramlab::torch::attempt;

fn main() -> ExitCode {
    vramlab::run(&PROTOCOL, prepare)
}

pub const PROTOCOL: Protocol = Protocol {
    name: "same_level",
    title: "The lab's own false alarms",
    question: "How often would this lab call two levels different that are one and the same?",
    hypothesis: "In at most one comparison of twenty: intervals rest on rounds, each in a process of its own, with the levels in an order that \
                 changes.",
    factors: &[
        Factor { name: "model", meaning: "model", levels: &[] },
        Factor { name: "batch", meaning: "samples", levels: &[] },
        Factor { name: "name", meaning: "what the one level is called", levels: &[] },
    ],
    grids: &[
        grid(&[Profile::Quick], &[axis("model", &["mlp-4x256"]), axis("batch", &["1024"]), NAMES]),
        grid(&[Profile::Full], &[axis("model", &["mlp-8x2048"]), axis("batch", &["4096"]), NAMES]),
        grid(&[Profile::Smoke], &[axis("model", &["mlp-2x32"]), axis("batch", &["256"]), axis("name", &["one", "two"])]),
    ],
    metrics: &[TIME],
    checks: &[Check { when: "", expect: Relation::Equal { tolerance: 1e-6 } }],
    claims: &[Claim {
        id: "same-level",
        from: "this lab",
        text: "the lab calls two levels that are the same different in at most 5 % of comparisons",
        judged_on: &[Platform::Cpu, Platform::Gpu],
        rule: Rule::FalseAlarms { metric: TIME.name, of: "", rounds: 5, at_most: 0.05 },
        meaning: Meaning {
            confirmed: "No more false alarms than an interval at 95 % promises: {effect} of comparisons of a level with itself. How sure that \
                        is, the rate's own interval says; `--rounds 25` narrows it.",
            refuted: "Distrust small effects in time on this machine: {effect} of comparisons of a level with itself were false alarms. It \
                      is busy with something else, or its clock changes; measure again with more rounds on a quiet machine.",
            depends: "Intervals hold only where {where} ({effect} false alarms).",
            inconclusive: "False alarms in {effect} of comparisons of a level with itself: more than 5 %, and too few rounds to tell that from \
                           chance. `--rounds 25` settles it.",
        },
    }],
    published: &[],
    plots: &[Plot {
        name: "time",
        caption: "One level under six names: every ratio should be 1 within its interval",
        of: "",
        metric: TIME.name,
        kind: PlotKind::Bars { clusters: &["model"] },
    }],
    threats: &[
        "Drawings from the same rounds hang together: the interval of the rate counts only comparisons that share neither level nor round.",
        "The rate is that of five rounds, the fewest that any experiment has; with more, intervals are narrower and the rate should be the same.",
        "Stopping when an interval is narrow, as every experiment does, is part of what is tested; Holm's widening is not.",
    ],
};

const NAMES: Axis = axis("name", &["one", "two", "three", "four", "five", "six"]);

const fn grid(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "one level", profiles, studied: "name", axes, passes: &[Pass::Check, Pass::Time], only_on: &[] }
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    let model = Model::named(cell.level("model")?, bench.device)?;
    let batch = model.batch(cell.number("batch")?);
    let optimizer = Sgd::default().build(&model.store, 1e-3)?;
    Ok(Box::new(Training { model, optimizer, batch }))
}

struct Training {
    model: Model,
    optimizer: Optimizer,
    batch: Batch,
}

impl Step for Training {
    fn run(&mut self, _: &mut Probe) -> Result<()> {
        self.optimizer.zero_grad();
        let (model, batch) = (&self.model, &self.batch);
        let loss = attempt(|| Ok(model.loss(&model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean)))?;
        loss.f_backward()?;
        self.optimizer.step();
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "gradient", tensors: self.model.gradients().iter().map(Tensor::detach).collect() }])
    }

    fn least_flops(&self) -> f64 {
        self.model.least_training_flops(self.batch.targets.size()[0])
    }
}
