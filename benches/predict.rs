//! Predictions inside a dry process: GPT-2 XL with AdamW, and a plan's configurations.
//!
//! A process is dry from its start or never, so this program runs itself again.

use criterion::{Criterion, criterion_group};
use std::process::{Command, ExitCode};
use vramlab::cards::Card;
use vramlab::dry::{self, Dry};
use vramlab::predict::{Composer, Search, largest, predict, taken};
use vramlab::training::{CheckpointPolicy, Configuration, OptimizerKind, Precision};

/// Set in the process with the simulated GPU.
const DRY: &str = "VRAMLAB_BENCH_IS_DRY";

fn predictions(c: &mut Criterion) {
    let dry = Dry::open().expect("a dry process");
    let adamw = |model, batch| Configuration { optimizer: OptimizerKind::AdamW, ..Configuration::new(model, batch) };
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
