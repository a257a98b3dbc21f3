//! The ranks of a job, and several cards, side by side.

use super::flags::{ALL, Outputs, RehearseOptions, SaidFlags};
use super::outcome::{GREW, present, status};
use anyhow::{Context, Result, bail};
use base::order::grouped;
use base::{eprint, eprintln};
use rehearse::check::Earlier;
use rehearse::{Answer, Rehearsal, RehearsalResult, RehearsalVerdict, show};
use sim::cards::Card;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;

/// The exit status of the first answer that has another than 0.
fn first_bad(answers: &[Answer]) -> u8 {
    answers.iter().map(|answer| status(answer.verdict)).find(|status| *status != 0).unwrap_or(0)
}

/// The ranks of a job that may differ: the first two, as stages of a pipeline or groups of experts part there, the middle one and the last. Where ranks
/// send nothing from one to another, and the first and the last are equal, those between them are, too, and are not run. Prints them side by side, and
/// the answer of the one that needs most, or failed, which is the one that is kept and compared. The exit status is the first one's that is not 0.
pub fn all_ranks(options: &RehearseOptions, rehearsal: &Rehearsal, size: u32, earlier: Option<Earlier>) -> Result<u8> {
    let last = size.saturating_sub(1);
    let mut ranks: BTreeSet<u32> = [0, 1, size / 2, last].into_iter().filter(|rank| *rank < size).collect();
    let sent = tempfile::tempdir().context("making a folder for what ranks send each other")?;
    let rehearsal = rehearsal.in_copies(4)?;
    let of = |rank: u32| {
        let mut one = rehearsal.clone();
        (one.rank, one.sent, one.is_silent) = (Some((rank, size)), Some(sent.path().to_owned()), true);
        one
    };
    let run = |rank: u32| {
        (rehearsal.progress)(&format!("rank {rank} of {size}"));
        of(rank).rehearse(options.is_read())
    };
    let mut found = BTreeMap::from([(0, run(0)?)]);
    let sends = |result: &RehearsalResult| {
        let pairs = result.capture.traces.iter().flat_map(|trace| trace.communicators.values()).any(|of| of.pairs > 0);
        // What the root of a group says to all of it has its kind before.
        let to_one = |name: &OsStr| name.to_str().is_some_and(|name| !name.contains('-'));
        pairs || fs::read_dir(sent.path()).is_ok_and(|objects| objects.flatten().any(|object| to_one(&object.file_name())))
    };
    if last > 1 && !sends(&found[&0]) {
        found.insert(last, run(last)?);
        if is_equal(&found[&0].answer, &found[&last].answer) {
            ranks = found.keys().copied().collect();
        }
    }
    // The stages of a pipeline are played against each other: all of the first rank's own.
    let groups = found[&0].capture.traces.iter().flat_map(|trace| trace.communicators.values()).filter(|of| of.pairs > 0);
    ranks.extend(groups.filter(|of| of.members.len() <= MOST_STAGES).flat_map(|of| of.members.clone()));
    for rank in &ranks {
        if !found.contains_key(rank) {
            found.insert(*rank, run(*rank)?);
        }
    }
    let mut answers: Vec<Answer> = found.values().map(|result| result.answer.clone()).collect();
    // What the host took for one may have been more for an equal one, since this machine was busy.
    for at in 0..answers.len() {
        let equal = answers.iter().filter(|other| is_equal(other, &answers[at])).filter_map(|other| other.time.clone());
        answers[at].time = equal.min_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds));
    }
    if let Some(job) = rehearse::play_ranks(found.values().map(|result| (&result.capture, &result.answer))) {
        let first = answers[0].time.clone();
        answers.iter_mut().filter_map(|answer| answer.time.as_mut()).for_each(|time| time.in_job(&job, first.as_ref()));
    }
    let names: Vec<String> = found.keys().map(u32::to_string).collect();
    let most = (0..answers.len()).max_by_key(|at| (!answers[*at].verdict.fits(), answers[*at].peak_on_device));
    let Some(at) = most else { bail!("--world-size: a job has one rank or more") };
    let (rank, mut worst) = found.into_iter().nth(at).context("a rank has no answer")?;
    worst.answer = answers[at].clone();
    if options.is_read() {
        of(rank).find_other_values(&mut worst);
        answers[at] = worst.answer.clone();
    }
    options.outputs.said.write(&answers)?;
    let answer = &answers[at];
    let said = SaidFlags { json: None, ..options.outputs.said.clone() };
    let outputs = Outputs { said, ..options.outputs.clone() };
    let code = present(&outputs, &mut worst, earlier, options.keep.as_deref(), |_| None)?;
    if !options.outputs.said.quiet {
        eprint!("{}", show::side_by_side("rank", names.iter().map(String::as_str).zip(&answers)));
        let is_whole = answer.verdict.fits() || answer.verdict == RehearsalVerdict::DoesNotFit;
        let why = if is_whole { "needs most" } else { "did not come to its steps" };
        eprintln!("\n  Rank {} {why}: the answer above is its.", names[at]);
        if size > 2 && names.len() == 2 {
            eprintln!(
                "  Ranks 0 and {last} are equal and send nothing to single others: those between them are taken to be equal, too, and were not run."
            );
        }
    }
    Ok(if code == GREW { GREW } else { first_bad(&answers) })
}

/// Of a pipeline with more, some stages alone are rehearsed, and none is played.
const MOST_STAGES: usize = 32;

/// Whether two ranks have done the same.
fn is_equal(one: &Answer, other: &Answer) -> bool {
    let bytes = |of: &Answer| {
        (of.verdict, of.steps, of.peak_requested, of.peak_allocated, of.peak_reserved, of.peak_on_device, of.needs_at_least)
    };
    let work = |of: &Answer| of.time.as_ref().map(|time| (time.launches, (time.device_seconds * 1e9).round() as u64));
    bytes(one) == bytes(other) && work(one) == work(other)
}

/// The same on more cards. What PyTorch and its libraries choose depends on the card, so each is rehearsed, all but the first in silence; cards
/// that differ by their size alone share a rehearsal, and with `--gpu all` those of one compute capability do. The exit status is the first
/// one's that is not 0; with `--gpu all` it is 0 where a card is large enough.
pub fn several(options: &RehearseOptions, rehearsals: &[Rehearsal]) -> Result<u8> {
    let is_all = options.run.gpu.iter().any(|name| name == ALL);
    let rehearsals = Rehearsal::all_in_copies(rehearsals)?;
    let shared = |card: &Card| (is_all.then_some(card.capability), (!is_all).then(|| card.kind()));
    let groups = grouped(rehearsals.iter().enumerate().map(|(at, one)| (shared(&one.card), at)));
    let (count, mut answers, mut left_out, mut interrupted) = (groups.len(), Vec::new(), Vec::new(), None);
    for (done, (_, group)) in groups.into_iter().enumerate() {
        let cards: Vec<Card> = group.iter().map(|at| rehearsals[*at].card).collect();
        // Workspaces grow with the multiprocessors.
        let Some(most) = group.iter().max_by_key(|at| rehearsals[**at].card.multiprocessors) else { continue };
        let mut one = rehearsals[*most].clone();
        one.is_silent |= done > 0;
        one.host_times.clone_from(&rehearsals[0].host_times);
        if is_all {
            let ((major, minor), cards) = (one.card.capability, cards.len());
            (one.progress)(&format!("{} of {count}: compute capability {major}.{minor}, cards: {cards}", done + 1));
        }
        let found = match cards.as_slice() {
            [_] if !is_all => one.rehearse(options.is_read()).map(|mut found| {
                if options.is_read() {
                    one.find_other_values(&mut found);
                }
                vec![found.answer]
            }),
            _ => one.on_cards(&cards),
        };
        let is_interrupted = rehearse::was_interrupted();
        if is_interrupted && !answers.is_empty() {
            interrupted = Some(done);
            break;
        }
        match found {
            Ok(found) => answers.extend(group.into_iter().zip(found)),
            // Other cards may have an answer: what a script asks for may be of a later one.
            Err(why) if is_all && !is_interrupted => left_out.push((cards, why)),
            Err(why) => return Err(why),
        }
    }
    if answers.is_empty()
        && let Some((_, why)) = left_out.pop()
    {
        return Err(why);
    }
    answers.sort_by_key(|(at, _)| *at);
    let answers: Vec<Answer> = answers.into_iter().map(|(_, answer)| answer).collect();
    options.outputs.said.write(&answers)?;
    if !options.outputs.said.quiet {
        eprint!("{}", show::side_by_side("GPU", answers.iter().map(|answer| (answer.gpu.name.as_str(), answer))));
        for (cards, why) in &left_out {
            let names: Vec<String> = cards.iter().map(Card::to_string).collect();
            eprintln!("  No answer for {}: {why:#}", names.join(", "));
        }
        if is_all {
            eprintln!(
                "\n  Cards of one compute capability shared a rehearsal, on the one with most multiprocessors and with memory for anything; the least\n  \
                 memory is that of a replay through PyTorch's allocator. --gpu NAME rehearses one card, and can differ by some MiB of workspaces."
            );
        }
    }
    if let Some(done) = interrupted {
        eprintln!("\n  Interrupted: {done} of {count} rehearsals were done.");
        return Ok(status(RehearsalVerdict::Interrupted));
    }
    if is_all && answers.iter().any(|answer| answer.verdict.fits()) {
        return Ok(0);
    }
    Ok(first_bad(&answers))
}
