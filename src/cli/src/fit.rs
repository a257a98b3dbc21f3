//! `vramlab fit`: the largest batch or context that fits a card.

use super::flags::{RunFlags, SaidFlags, cards};
use anyhow::{Result, ensure};
use clap::Args;
use clap::builder::PossibleValuesParser;
use rehearse::fit::{Dimension, table};
use rehearse::{FlagTemplate, Rehearsal, preset};
use sim::cards::Card;
use std::ffi::OsString;

/// Flags of `vramlab fit`.
#[derive(Debug, Args)]
#[command(
    override_usage = "vramlab fit [OPTIONS] <--batch 'FLAG {}'|--context 'FLAG {}'|--cards 'FLAG {}'> -- COMMAND...",
    after_help = "Exit status: 0 found, 1 the script failed, 2 there was nothing to rehearse, 3 not even 1 fits a GPU."
)]
pub struct FitOptions {
    #[command(flatten)]
    run: RunFlags,

    /// A built-in model instead of a command, as for `vramlab rehearse`
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(preset::models()), conflicts_with = "batch")]
    model: Option<String>,

    /// The command's flag for its batch size, as in '--batch-size {}'
    #[arg(long, value_name = "FLAG {}", allow_hyphen_values = true, required_unless_present_any = ["context", "cards", "model"])]
    batch: Option<FlagTemplate>,

    /// The command's flag for its sequence length, as in '--seq-len {}'
    #[arg(long, value_name = "FLAG {}", allow_hyphen_values = true)]
    context: Option<FlagTemplate>,

    /// A server's flag for the cards that it is split over, as in '--tensor-parallel-size {}': the fewest of 1, 2, 4 and 8
    #[arg(long, value_name = "FLAG {}", allow_hyphen_values = true)]
    cards: Option<FlagTemplate>,

    #[command(flatten)]
    said: SaidFlags,

    /// The command, after --, as in: vramlab fit --batch '--batch-size {}' --gpu rtx-3090 -- python train.py
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Finds what fits, says it, and gives the exit status.
pub fn fit(options: &FitOptions) -> Result<u8> {
    ensure!(
        !options.command.is_empty() || options.model.is_some(),
        "there is no command to rehearse; write it after --, as in: vramlab fit --batch '--batch-size {{}}' -- python train.py"
    );
    options.run.ensure_one_rank()?;
    let (command, batch) = match &options.model {
        Some(model) => (preset::command(model, 1, &options.command)?, Some(preset::batch())),
        None => (options.command.clone(), options.batch.clone()),
    };
    let on_card = |card: &Card| options.run.rehearsal(&command, *card, options.said.quiet);
    let rehearsals = cards(&options.run.gpu)?.iter().map(on_card).collect::<Result<Vec<Rehearsal>>>()?;
    let mut fits = Vec::new();
    for (of, template) in [(Dimension::Batch, &batch), (Dimension::Context, &options.context), (Dimension::Cards, &options.cards)] {
        if let Some(template) = template {
            fits.extend(rehearse::fit::fit(&rehearsals, of, template)?);
        }
    }
    options.said.say(&fits, &table(&fits))?;
    Ok(if fits.iter().all(|fit| fit.largest > 0) { 0 } else { 3 })
}
