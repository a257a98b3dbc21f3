//! `vramlab plan`: the layouts of a job on many cards that fit, and the fastest of them.

use super::rehearsal::{SaidFlags, cards, progress};
use anyhow::{Context, Result, ensure};
use clap::Args;
use clap::builder::PossibleValuesParser;
use rehearse::Rehearsal;
use rehearse::plan::{LayoutTemplate, PRESETS, Plan, Search, Values, plan as best_of, table};
use std::ffi::OsString;
use std::path::PathBuf;

/// Flags of `vramlab plan`.
#[derive(Debug, Args)]
#[command(
    override_usage = "vramlab plan [OPTIONS] --gpu NAME --gpus N <--layout '--tp {tp} --pp {pp} --mb {mb}'|--preset NAME> -- COMMAND...",
    after_help = "Exit status: 0 a layout fits, 1 every one of them failed, 2 there was nothing to rehearse, 3 none fits."
)]
pub struct PlanOptions {
    /// The card, or a cloud's machine with its network, such as p5.48xlarge
    #[arg(long, value_name = "NAME")]
    gpu: String,

    /// Cards of the job; with several numbers, as in 8,16,32,64, where more stop paying
    #[arg(long, value_name = "N,...", value_delimiter = ',', required = true, value_parser = clap::value_parser!(u32).range(1..=65536))]
    gpus: Vec<u32>,

    /// Cards of a machine; those that the machine of --gpu has, or 8
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    per_node: Option<u32>,

    /// How the command is told a layout: its flags, or variables as in TP={tp}, with {tp}, {pp}, {cp}, {ep}, {dp}, {mb}, {gpus}, {nodes} or {local} (cards of each) for numbers
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true, required_unless_present = "preset")]
    layout: Option<LayoutTemplate>,

    /// The flags of a framework
    #[arg(long, value_name = "NAME", conflicts_with = "layout", value_parser = PossibleValuesParser::new(PRESETS.map(|(name, _)| name)))]
    preset: Option<String>,

    /// Numbers that are tried of a name, as in mb=1,2,4 or pp=1,3; without it powers of two, tensor and context parallel within a machine
    #[arg(long, value_name = "NAME=N,...")]
    values: Vec<Values>,

    /// Beside the predicted time, what it costs: rows of `card,per_hour,currency,date,source`
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,

    /// Optimizer steps of each rank
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,

    /// Leave new parameters uninitialised, so that large models need little host memory
    #[arg(long)]
    no_init: bool,

    /// End a rank after so many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,

    #[command(flatten)]
    said: SaidFlags,

    /// The command, after --, with its launcher or without, as in: vramlab plan ... -- torchrun train.py
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What scripts for many cards import of PyTorch, and an optimizer by itself: as much as torch again.
const IMPORTED: &str =
    "torch._dynamo,torch.distributed.tensor,torch.distributed.fsdp,torch.distributed.pipelining,torch.utils.checkpoint";

/// Finds the layouts, says them, and gives the exit status.
pub fn plan(options: &PlanOptions) -> Result<u8> {
    ensure!(
        !options.command.is_empty(),
        "there is no command to rehearse; write it after --, as in: vramlab plan --gpu h100 --gpus 64 --layout '--tp {{tp}}' -- torchrun train.py"
    );
    if let Some(file) = &options.prices {
        rehearse::time::use_prices(file)?;
    }
    let preset = options.preset.as_deref().and_then(|name| PRESETS.iter().find(|(known, _)| *known == name));
    let template = match (&options.layout, preset) {
        (Some(layout), _) => layout.clone(),
        (None, Some((_, flags))) => flags.parse().map_err(anyhow::Error::msg)?,
        (None, None) => anyhow::bail!("--layout or --preset says how the command is told its layout"),
    };
    let per_node = options.per_node.or_else(|| sim::cards::gpus_of_machine(&options.gpu)).unwrap_or(8);
    let names = [options.gpu.clone()];
    let card = *cards(&names)?.first().context("--gpu: name a card")?;
    ensure!(card.speed.is_some(), "--gpu {}: a size alone has no speed; name a card", options.gpu);
    let mut rehearsal = Rehearsal::new(options.command.clone(), card)?;
    rehearsal.gpus = Some(per_node);
    rehearsal = rehearsal.without_launcher()?.in_copies_with(IMPORTED)?;
    (rehearsal.steps, rehearsal.no_init, rehearsal.timeout) = (Some(options.steps), options.no_init, options.timeout);
    rehearsal.progress = progress(options.said.quiet, false);
    let search = Search { command: options.command.clone(), template, values: options.values.clone(), per_node };
    let plans = options.gpus.iter().map(|gpus| best_of(&rehearsal, &search, *gpus)).collect::<Result<Vec<Plan>>>()?;
    options.said.say(&plans, &table(&plans))?;
    let has = |outcome: &str| plans.iter().flat_map(|plan| &plan.others).any(|tried| tried.outcome == outcome);
    Ok(match plans.iter().any(|plan| !plan.fastest.is_empty()) {
        _ if rehearse::was_interrupted() => 130,
        true => 0,
        false if has("does_not_fit") => 3,
        false => 1,
    })
}
