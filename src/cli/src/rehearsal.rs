//! `vramlab rehearse`: one rehearsal and its answer, or the techniques tried on it.

use super::flags::{Outputs, Rank, RehearseOptions, cards};
use super::outcome::{present, status};
use super::several::{all_ranks, several};
use super::terminal::{end_progress, progress, write_json};
use anyhow::{Context, Result, bail, ensure};
use rehearse::what_if::{self, BatchFlags, Trials};
use rehearse::{Rehearsal, RehearsalVerdict};
use std::fs;
use std::path::Path;

/// Rehearses the command, says what came of it, and gives the exit status.
pub fn rehearse(options: &RehearseOptions) -> Result<u8> {
    if options.model.is_none() {
        let first = options
            .command
            .first()
            .context("there is no command to rehearse; write it after --, as in: vramlab rehearse -- python train.py")?;
        if let Some(flag) = first.to_str().filter(|word| word.starts_with('-')) {
            bail!("there is no flag '{flag}'; vramlab rehearse --help lists them, and the command comes after --");
        }
    }
    let (command, batch) = options.resolved()?;
    let cards = cards(&options.run.gpu)?;
    let rehearsals = cards.iter().map(|card| options.rehearsal(&command, *card)).collect::<Result<Vec<Rehearsal>>>()?;
    let [rehearsal, others @ ..] = rehearsals.as_slice() else { bail!("--gpu: name a card") };
    // What is of one answer.
    let is_of_one =
        [&options.outputs.out, &options.outputs.check, &options.keep, &options.outputs.badge].into_iter().any(Option::is_some);
    ensure!(
        others.is_empty() || !(is_of_one || options.what_if),
        "--gpu: --out, --keep, --badge, --check and --what-if take one GPU"
    );
    // Before a script has run for nothing.
    if let Some(folder) = &options.outputs.out {
        let can_write = fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
        can_write.with_context(|| format!("--out {}: files cannot be written there", folder.display()))?;
    }
    let Outputs { said, badge, check, .. } = &options.outputs;
    for (flag, file) in [("--json", &said.json), ("--keep", &options.keep), ("--badge", badge), ("--check", check)] {
        if let Some(parent) = file.as_deref().and_then(Path::parent) {
            ensure!(parent.as_os_str().is_empty() || parent.is_dir(), "{flag}: there is no folder {}", parent.display());
        }
    }
    let earlier = options.outputs.earlier()?;
    if let Some(earlier) = &earlier {
        earlier.is_of(&rehearsal.card.to_string())?;
    }
    if options.what_if {
        return what_if(options, rehearsal, batch);
    }
    if options.run.rank == Some(Rank::All) {
        ensure!(others.is_empty(), "--rank all takes one GPU");
        return all_ranks(options, rehearsal, options.run.world_size.unwrap_or(1), earlier);
    }
    if !others.is_empty() {
        return several(options, &rehearsals);
    }
    let mut found = rehearsal.rehearse(options.is_read())?;
    let is_read = options.is_read();
    present(&options.outputs, &mut found, earlier, options.keep.as_deref(), |found| {
        is_read.then(|| rehearsal.find_other_values(found)).flatten()
    })
}

/// Tries the techniques, says what came of it, and gives the exit status.
fn what_if(options: &RehearseOptions, rehearsal: &Rehearsal, batch: Option<BatchFlags>) -> Result<u8> {
    let mut rehearsal = rehearsal.clone();
    rehearsal.progress = progress(options.outputs.said.quiet, true);
    let rehearsal = &rehearsal;
    let found = what_if::what_if(rehearsal, &Trials { batch, only: options.only.clone() })?;
    end_progress();
    let text = found.text();
    if let Some(folder) = &options.outputs.out {
        write_json(&folder.join("what-if.json"), found.rows())?;
        for (name, content) in [("what-if.txt", &text), ("what-if.svg", &found.picture()?)] {
            let path = folder.join(name);
            fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    options.outputs.said.say(found.rows(), &text)?;
    Ok(status(match found.fits() {
        // What was not tried might.
        _ if rehearse::was_interrupted() => RehearsalVerdict::Interrupted,
        true => RehearsalVerdict::Fits,
        false => RehearsalVerdict::DoesNotFit,
    }))
}
