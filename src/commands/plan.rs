//! `vramlab plan`: which configurations fit a card, and which to take; or the largest batch that fits.

use super::table::aligned;
use super::{SettingsFlags, dry_child};
use crate::cards::Card;
use crate::dry::Dry;
use crate::machine::{DeviceChoice, libtorch_version};
use crate::predict::{self, Candidate, Largest, Plan, Search, Term, Tried};
use crate::torch;
use crate::training::{CheckpointPolicy, Configuration, OptimizerKind, Precision};
use crate::units::{Bytes, Seconds};
use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use serde::Serialize;
use std::thread;
use std::time::Instant;

/// Version of the JSON that is printed; a key that changes its meaning raises it.
const SCHEMA: u32 = 1;

/// Dry processes at once, at most; each computes on one core.
const MOST_PROCESSES: usize = 16;

/// Flags of `vramlab plan`.
#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub struct PlanOptions {
    /// mlp, resnet18, resnet50, gpt2, gpt2-medium, gpt2-large, gpt2-xl, bert-base, bert-large, vit-l16; or of any size mlp-DEPTHxWIDTH,
    /// resnet-BLOCKSxCHANNELS-gn or -bn, gpt-LAYERSxWIDTH
    #[arg(long, value_name = "NAME")]
    pub model: String,

    /// Samples of one step, all micro-batches together
    #[arg(long, value_name = "N", allow_negative_numbers = true, required_unless_present = "max_batch")]
    pub effective_batch: Option<i64>,

    /// Find the largest batch that fits instead; optimizer, precision and checkpoint policy are then one each [default: adamw, fp32, none]
    #[arg(long, conflicts_with = "effective_batch")]
    pub max_batch: bool,

    /// Micro-batches of a step, for --max-batch
    #[arg(long, value_name = "K", default_value_t = 1, allow_negative_numbers = true, requires = "max_batch")]
    pub accumulate: i64,

    /// The card: a name like rtx-4090, or its memory alone
    #[arg(long, value_name = "CARD|SIZE", default_value = "24GiB", alias = "device-memory")]
    pub gpu: Card,

    #[command(flatten)]
    pub settings: SettingsFlags,

    /// Optimizers to try, the preferred first, with commas between [default: adamw, adam, rmsprop, momentum, sgd]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub optimizer: Vec<OptimizerKind>,

    /// Precisions to try, the preferred first [default: fp32, amp-bf16, amp-fp16]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub precision: Vec<Precision>,

    /// Checkpoint policies to try, the preferred first [default: none, sqrt, every-block]
    #[arg(long, value_name = "POLICIES", value_delimiter = ',')]
    pub checkpoint: Vec<CheckpointPolicy>,

    /// Settings of PyTorch's allocator, as in PYTORCH_ALLOC_CONF: expandable_segments:True
    #[arg(long, value_name = "CONF")]
    pub alloc_conf: Option<String>,

    /// Print JSON with bytes as plain numbers, and with every configuration
    #[arg(long)]
    pub json: bool,

    /// Plan in this process, for the parent of this number
    #[arg(long, hide = true)]
    pub child: Option<u32>,

    /// Processes that share the work, and which of them this is
    #[arg(long, hide = true, default_value_t = 1)]
    pub processes: usize,
    #[arg(long, hide = true, default_value_t = 0)]
    pub nth: usize,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a, T> {
    schema: u32,
    command: &'static str,
    device: String,
    libtorch: String,
    model: &'a str,
    device_memory: u64,
    terms: Vec<Term>,
    #[serde(flatten)]
    found: &'a T,
    seconds: f64,
}

/// Plans what the flags say, in dry processes, and prints it.
///
/// # Errors
/// A search that cannot be; a card that cannot be; a child process without a finding.
pub fn plan(options: &PlanOptions) -> Result<()> {
    let begun = Instant::now();
    if options.max_batch {
        return max_batch(options, begun);
    }
    let search = Search {
        model: options.model.clone(),
        settings: options.settings.settings(),
        effective_batch: options.effective_batch.context("--effective-batch is missing")?,
        optimizers: or_all(
            &options.optimizer,
            &[OptimizerKind::AdamW, OptimizerKind::Adam, OptimizerKind::RmsProp, OptimizerKind::Momentum, OptimizerKind::Sgd],
        ),
        precisions: or_all(&options.precision, &[Precision::Fp32, Precision::AmpBf16, Precision::AmpFp16]),
        checkpoints: or_all(&options.checkpoint, &[CheckpointPolicy::None, CheckpointPolicy::Sqrt, CheckpointPolicy::EveryBlock]),
    };
    let configurations = search.configurations()?;
    if let Some(parent) = options.child {
        return dry_child::report(parent, || {
            let dry = Dry::open()?;
            let mut composer = predict::Composer::new(&dry);
            let mut try_out = |c| composer.try_out(c).with_context(|| format!("predicting {c}"));
            let share = share(&search, configurations.len(), options.processes, options.nth);
            share.into_iter().map(|at| try_out(&configurations[at])).collect::<Result<Vec<Tried>>>()
        });
    }
    dry_child::check(options.gpu)?;
    let needs = in_parallel(options, &search, configurations.len())?;
    let plan = Plan::of(configurations, needs);
    let seconds = begun.elapsed().as_secs_f64();
    if options.json {
        return print_json(options, &plan, seconds);
    }
    print!("{}", text(options, &plan, seconds));
    Ok(())
}

/// The given values, each once; all where none is given.
fn or_all<T: Copy + PartialEq>(given: &[T], all: &[T]) -> Vec<T> {
    let mut values: Vec<T> = Vec::new();
    for value in if given.is_empty() { all } else { given } {
        if !values.contains(value) {
            values.push(*value);
        }
    }
    values
}

/// Positions of the configurations that one of several processes tries. What differs only in the optimizer goes to one process, which
/// then runs what they have in common once.
fn share(search: &Search, count: usize, processes: usize, nth: usize) -> Vec<usize> {
    let of_one_optimizer = (count / search.optimizers.len().max(1)).max(1);
    (0..count).filter(|at| at % of_one_optimizer % processes.max(1) == nth).collect()
}

/// Tries the configurations in as many dry processes as there are cores, and puts the findings in order.
fn in_parallel(options: &PlanOptions, search: &Search, count: usize) -> Result<Vec<Tried>> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let processes = cores.min(MOST_PROCESSES).min(count);
    let mut waiting = Vec::new();
    for nth in 0..processes {
        let (all, this) = (processes.to_string(), nth.to_string());
        let flags = ["--processes", &all, "--nth", &this];
        let child = dry_child::start(options.gpu, options.alloc_conf.as_deref(), &flags)?;
        waiting.push(thread::spawn(move || dry_child::wait::<Vec<Tried>>(child)));
    }
    let mut needs: Vec<Option<Tried>> = vec![None; count];
    for (nth, thread) in waiting.into_iter().enumerate() {
        let found = thread.join().map_err(|_| anyhow!("a thread that waits for a dry process ended"))??;
        for (at, tried) in share(search, count, processes, nth).into_iter().zip(found) {
            needs[at] = Some(tried);
        }
    }
    needs.into_iter().collect::<Option<Vec<Tried>>>().context("a dry process left configurations out")
}

fn max_batch(options: &PlanOptions, begun: Instant) -> Result<()> {
    let configuration = Configuration {
        settings: options.settings.settings(),
        optimizer: single("optimizer", &options.optimizer, OptimizerKind::AdamW)?,
        precision: single("precision", &options.precision, Precision::Fp32)?,
        checkpoint: single("checkpoint policy", &options.checkpoint, CheckpointPolicy::None)?,
        accumulate: options.accumulate,
        ..Configuration::new(&options.model, options.accumulate)
    };
    configuration.validate()?;
    if let Some(parent) = options.child {
        return dry_child::report(parent, || predict::largest(&Dry::open()?, &configuration));
    }
    dry_child::check(options.gpu)?;
    let largest: Largest = dry_child::wait(dry_child::start(options.gpu, options.alloc_conf.as_deref(), &[])?)?;
    let seconds = begun.elapsed().as_secs_f64();
    if options.json {
        return print_json(options, &largest, seconds);
    }
    let card = options.gpu;
    let found = Configuration { batch: largest.batch, ..configuration };
    match &largest.needs {
        None => println!("not even {} fits in {card}", counted(options.accumulate, "sample")),
        Some(needs) => {
            println!("{found} device=dry:{card}");
            println!(
                "{} fit in {card}: reserved {}, used on the device {}",
                counted(largest.batch, "sample"),
                bytes(needs.reserved),
                bytes(needs.device_used)
            );
            if let Some(next) = largest.next.as_ref().and_then(|next| next.out_of_memory.as_ref()) {
                println!("{} do not: {}", counted(largest.batch + options.accumulate, "sample"), next.message);
            }
        }
    }
    if largest.exact {
        println!("exact: each batch up to {} was tried, and above it the tensors alone ask for more", largest.bound);
    } else {
        println!("not proven: each batch up to {} was tried, but not those up to {}", largest.tried, largest.bound);
    }
    println!("{} dry runs and {} played, {}", largest.runs, largest.played, Seconds(seconds));
    Ok(())
}

fn single<T: Copy>(what: &str, given: &[T], default: T) -> Result<T> {
    ensure!(given.len() <= 1, "--max-batch is for one {what}, not for {}", given.len());
    Ok(given.first().copied().unwrap_or(default))
}

fn print_json<T: Serialize>(options: &PlanOptions, found: &T, seconds: f64) -> Result<()> {
    let report = Report {
        schema: SCHEMA,
        command: "plan",
        device: DeviceChoice::Dry(options.gpu).to_string(),
        libtorch: libtorch_version().unwrap_or_else(|_| torch::compiled_version()),
        model: &options.model,
        device_memory: options.gpu.memory,
        terms: predict::terms(&options.gpu),
        found,
        seconds,
    };
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}

fn text(options: &PlanOptions, plan: &Plan, seconds: f64) -> String {
    let fitting = plan.candidates.iter().filter(|c| c.fits).count();
    let count = plan.candidates.len();
    let card = options.gpu;
    let mut text = format!("{fitting} of {count} configurations fit in {card}, {}\n", Seconds(seconds));
    if fitting > 0 {
        text += "\nnone that fits, with the same optimizer and precision, is better in one of these and as good in the others:\n";
        let header =
            ["optimizer", "precision", "checkpoint", "micro-batch", "micro-steps", "forward passes", "reserved", "on the device"];
        let mut rows = vec![header.map(str::to_string).to_vec()];
        rows.extend(plan.candidates.iter().filter(|c| c.on_front).map(row));
        text += &aligned(&rows);
    }
    text += &match plan.recommended {
        Some(at) => format!("\nrecommended: {}\n{}\n", plan.candidates[at].configuration, plan.reason),
        None => format!("\n{}\n", plan.reason),
    };
    text
}

fn row(candidate: &Candidate) -> Vec<String> {
    let Configuration { optimizer, precision, checkpoint, .. } = candidate.configuration;
    vec![
        optimizer.to_string(),
        precision.to_string(),
        checkpoint.to_string(),
        candidate.micro_batch.to_string(),
        candidate.micro_steps.to_string(),
        candidate.forward_passes.to_string(),
        bytes(candidate.needs.reserved),
        bytes(candidate.needs.device_used),
    ]
}

fn counted(n: i64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn bytes(amount: i64) -> String {
    Bytes(amount.unsigned_abs()).to_string()
}
