//! Predictions inside a dry process: one more training step of ResNet-50 and of GPT-2 XL, whole predictions, and a plan's configurations.
//!
//! A step is forward, backward and the optimizer's step, with each allocation followed. A prediction builds the model and the optimizer,
//! runs two steps, of which the first makes the optimizer's state, adds up what was recorded, and gives everything back.
//!
//! A process is dry from its start or never, so this program runs itself again.

use criterion::{Criterion, criterion_group};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use vramlab::cards::Card;
use vramlab::dry::{self, Dry};
use vramlab::predict::{Composer, Follower, Search, follow, largest, predict, taken};
use vramlab::torch::Mark;
use vramlab::training::{CheckpointPolicy, Configuration, OptimizerKind, Precision, Trainer};

/// Set in the process with the simulated GPU.
const DRY: &str = "VRAMLAB_BENCH_IS_DRY";

/// What further training steps take, followed as a prediction's are: forward, backward and the optimizer's step. Two steps come first.
fn further_steps(dry: &Dry, configuration: &Configuration, count: u64) -> anyhow::Result<Duration> {
    let mut taken = Duration::ZERO;
    follow(dry, |follower: &mut Follower| {
        let mut trainer = Trainer::load(configuration, follower.device())?;
        let mut ended = |mark: Mark, trainer: &Trainer| {
            let batch = trainer.batch();
            follower.ended(mark, &trainer.model().store, &[&batch.inputs, &batch.targets])
        };
        ended(Mark::LOADED, &trainer)?;
        for _ in 0..2 {
            trainer.iterate_onward(&mut ended)?;
        }
        let start = Instant::now();
        for _ in 0..count {
            trainer.iterate_onward(&mut ended)?;
        }
        taken = start.elapsed();
        Ok(())
    })?;
    Ok(taken)
}

fn predictions(c: &mut Criterion) {
    let dry = Dry::open().expect("a dry process");
    let adamw = |model, batch| Configuration { optimizer: OptimizerKind::AdamW, ..Configuration::new(model, batch) };
    for (name, configuration) in [
        (
            "a step of ResNet-50 with Adam, batch 32",
            Configuration { optimizer: OptimizerKind::Adam, ..Configuration::new("resnet50", 32) },
        ),
        ("a step of GPT-2 XL with AdamW, batch 8", adamw("gpt2-xl", 8)),
        (
            "a step of GPT-2 XL with fused AdamW, batch 8",
            Configuration { optimizer: OptimizerKind::AdamWFused, ..adamw("gpt2-xl", 8) },
        ),
    ] {
        c.bench_function(name, |b| b.iter_custom(|count| further_steps(&dry, &configuration, count).expect("steps that fit")));
    }
    c.bench_function("predict GPT-2 XL with AdamW, batch 8", |b| b.iter(|| predict(&dry, &adamw("gpt2-xl", 8))));
    c.bench_function("predict GPT-2 with AdamW, batch 8", |b| b.iter(|| predict(&dry, &adamw("gpt2", 8))));
    let search = Search {
        model: "gpt2".into(),
        settings: Default::default(),
        effective_batch: 32,
        optimizers: OptimizerKind::ALL.iter().map(|(optimizer, _)| *optimizer).collect(),
        precisions: vec![Precision::Fp32, Precision::AmpBf16],
        checkpoints: vec![CheckpointPolicy::None],
    };
    let configurations = search.configurations().expect("a search");
    let mut group = c.benchmark_group("slow");
    group.sample_size(10);
    group.bench_function(format!("plan {} configurations of GPT-2", configurations.len()), |b| {
        b.iter(|| {
            let mut composer = Composer::new(&dry);
            configurations.iter().map(|configuration| composer.try_out(configuration)).collect::<Vec<_>>()
        })
    });
    group.bench_function("the largest batch of GPT-2", |b| b.iter(|| largest(&dry, &adamw("gpt2", 1))));
}

criterion_group!(benches, predictions);

fn main() -> ExitCode {
    if std::env::var_os(DRY).is_some() {
        tch::set_num_threads(1);
        benches();
        Criterion::default().configure_from_args().final_summary();
        return ExitCode::SUCCESS;
    }
    let mut command = Command::new(std::env::current_exe().expect("this program's own file"));
    command.args(std::env::args_os().skip(1)).env(DRY, "1");
    let card = Card::of_size(141 << 30);
    dry::prepare_beside(&mut command, card, taken(&card)).expect("a simulated GPU");
    let status = command.status().expect("a process");
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
