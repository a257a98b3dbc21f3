//! `vramlab rehearse`: one rehearsal and its answer, or the techniques tried on it.

use super::answer::{Answer, Verdict};
use super::check::Earlier;
use super::launch::{BAD_INPUT, Rank, Rehearsal, RehearseOptions, Run, Variant, card_of, status, write_json};
use super::libraries::libraries;
use super::session::Session;
use super::what_if::what_if;
use super::{files, preset, show, time};
use anyhow::{Context, Result, bail, ensure};
use sim::cards::Card;
use std::fs;
use std::path::Path;

/// Exit status where the peak grew since the answer of `--check`.
const GREW: u8 = 4;

/// Rehearses the command, says what came of it, and gives the exit status.
pub fn rehearse(options: &RehearseOptions) -> u8 {
    run(options).unwrap_or_else(|error| {
        eprintln!("vramlab: {error:#}");
        BAD_INPUT
    })
}

fn run(options: &RehearseOptions) -> Result<u8> {
    if options.model.is_none() {
        let first = options
            .command
            .first()
            .context("there is no command to rehearse; write it after --, as in: vramlab rehearse -- python train.py")?;
        if let Some(flag) = first.to_str().filter(|word| word.starts_with('-')) {
            bail!("there is no flag '{flag}'; vramlab rehearse --help lists them, and the command comes after --");
        }
    }
    let libraries = libraries()?;
    let options = &preset::resolved(options, &libraries)?;
    let cards = options.gpu.iter().map(|gpu| card_of(gpu, options)).collect::<Result<Vec<Card>>>()?;
    let [card, others @ ..] = cards.as_slice() else { bail!("--gpu: name a card") };
    ensure!(
        others.is_empty() || (options.out.is_none() && options.check.is_none() && !options.what_if),
        "--gpu: --out, --check and --what-if take one GPU"
    );
    // Before a script has run for nothing.
    if let Some(folder) = &options.out {
        let can_write = fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
        can_write.with_context(|| format!("--out {}: files cannot be written there", folder.display()))?;
    }
    if let Some(parent) = options.json.as_deref().and_then(Path::parent) {
        ensure!(parent.as_os_str().is_empty() || parent.is_dir(), "--json: there is no folder {}", parent.display());
    }
    let earlier = options.check.as_deref().map(Earlier::read).transpose()?;
    let rehearsal = Rehearsal { options, libraries, card: *card, variant: Variant::default() };
    if options.what_if {
        return what_if(&rehearsal);
    }
    if options.rank == Some(Rank::All) {
        ensure!(
            others.is_empty() && options.out.is_none() && options.check.is_none(),
            "--rank all takes one GPU, and neither --out nor --check"
        );
        return all_ranks(&rehearsal, options.world_size.unwrap_or(1));
    }
    let session = Session::new()?;
    let run = rehearsal.run(session.path(), *card, false)?;
    let answer = whole_answer(&rehearsal, &run)?;
    if !others.is_empty() {
        return several(&rehearsal, answer, others);
    }
    // Before anything is printed: whoever reads that may be gone.
    if let Some(path) = &options.json {
        write_json(path, &answer)?;
    }
    if let Some(folder) = &options.out {
        files::write(folder, &answer, &run.traces)?;
    }
    if !options.quiet {
        let terminal = rustix::termios::tcgetwinsize(std::io::stderr()).ok().filter(|size| size.ws_col > 0);
        let text = show::answer(&answer);
        eprint!("{}", terminal.map_or_else(|| text.clone(), |size| show::wrapped(&text, size.ws_col.into())));
    }
    if let Some(earlier) = earlier
        && (answer.verdict.fits() || answer.verdict == Verdict::DoesNotFit)
    {
        let (text, grew) = earlier.compare(&answer, options.tolerance);
        if grew || !options.quiet {
            eprint!("{text}");
        }
        if grew && answer.verdict.fits() {
            return Ok(GREW);
        }
    }
    Ok(status(answer.verdict))
}

/// With the least memory that would do, unless nobody reads it.
fn whole_answer(rehearsal: &Rehearsal, run: &Run) -> Result<Answer> {
    let options = rehearsal.options;
    let mut answer = rehearsal.answer(run)?;
    answer.quote();
    let is_read = !options.quiet || options.json.is_some() || options.out.is_some();
    if is_read && (answer.verdict.fits() || answer.verdict == Verdict::DoesNotFit) {
        match rehearsal.needs(&answer, &run.traces) {
            Ok(needs) => answer.complete(needs, &rehearsal.card),
            Err(error) => answer.notes.push(format!("the least memory that would do could not be found: {error:#}")),
        }
    }
    Ok(answer)
}

/// The ranks of a job that may differ: the first two, as stages of a pipeline or groups of experts part there, the middle one and the last.
/// Prints them side by side, and the answer of the one that needs most. The exit status is the first one's that is not 0.
fn all_ranks(rehearsal: &Rehearsal, size: u32) -> Result<u8> {
    let options = rehearsal.options;
    let mut ranks = vec![0, 1, size / 2, size.saturating_sub(1)];
    ranks.retain(|rank| *rank < size);
    ranks.sort_unstable();
    ranks.dedup();
    let mut answers = Vec::new();
    for rank in &ranks {
        if !options.quiet {
            eprintln!("vramlab: rank {rank} of {size}");
        }
        let variant = Variant { rank: Some(*rank), ..Variant::default() };
        let one = Rehearsal { variant, ..rehearsal.clone() };
        answers.push(whole_answer(&one, &one.run_in_silence()?)?);
    }
    if let Some(path) = &options.json {
        write_json(path, &answers)?;
    }
    let names: Vec<String> = ranks.iter().map(u32::to_string).collect();
    let most = answers.iter().enumerate().max_by_key(|(_, answer)| (!answer.verdict.fits(), answer.peak_on_device));
    if let Some((at, answer)) = most.filter(|_| !options.quiet) {
        eprint!("{}", show::answer(answer));
        eprint!("{}", time::side_by_side("rank", names.iter().map(String::as_str).zip(&answers)));
        eprintln!("\n  Rank {} needs most: the answer above is its.", names[at]);
    }
    Ok(answers.iter().map(|answer| status(answer.verdict)).find(|status| *status != 0).unwrap_or(0))
}

/// The same on more cards, each rehearsed in silence: what PyTorch and its libraries choose depends on the card. The exit status is the first
/// one's that is not 0.
fn several(rehearsal: &Rehearsal, first: Answer, others: &[Card]) -> Result<u8> {
    let options = rehearsal.options;
    let mut answers = vec![first];
    for card in others {
        let on_card = Rehearsal { card: *card, ..rehearsal.clone() };
        answers.push(whole_answer(&on_card, &on_card.run_in_silence()?)?);
    }
    if let Some(path) = &options.json {
        write_json(path, &answers)?;
    }
    if !options.quiet {
        eprint!("{}", time::side_by_side("GPU", answers.iter().map(|answer| (answer.gpu.name.as_str(), answer))));
    }
    Ok(answers.iter().map(|answer| status(answer.verdict)).find(|status| *status != 0).unwrap_or(0))
}
