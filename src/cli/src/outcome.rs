//! What came of a rehearsal: written, printed, compared, and as an exit status.

use super::flags::{Outputs, SaidFlags};
use super::terminal;
use anyhow::{Context, Result};
use base::{eprint, eprintln};
use rehearse::check::{Checked, Earlier};
use rehearse::{Answer, RehearsalResult, RehearsalVerdict, files, show};
use std::io::Write;
use std::path::Path;

/// Exit status where the peak grew since the answer of `--check`.
pub const GREW: u8 = 4;

/// Exit status of a command line that is no rehearsal.
pub const BAD_INPUT: u8 = 2;

pub fn status(verdict: RehearsalVerdict) -> u8 {
    match verdict {
        RehearsalVerdict::Fits | RehearsalVerdict::BarelyFits => 0,
        RehearsalVerdict::ScriptFailed => 1,
        RehearsalVerdict::FitsInPart => BAD_INPUT,
        RehearsalVerdict::DoesNotFit => 3,
        RehearsalVerdict::TimedOut => 5,
        // As a shell gives it for a command that was interrupted.
        RehearsalVerdict::Interrupted => 130,
    }
}

/// Writes and prints a rehearsal, then what `more` adds to it, compares it with an earlier one, and gives the exit status.
pub fn present(
    outputs: &Outputs,
    found: &mut RehearsalResult,
    earlier: Option<Earlier>,
    kept: Option<&Path>,
    more: impl FnOnce(&mut RehearsalResult) -> Option<String>,
) -> Result<u8> {
    let is_file = outputs.said.json.as_deref().is_none_or(|path| path.as_os_str() != "-");
    let is_whole = found.answer.verdict.fits() || found.answer.verdict == RehearsalVerdict::DoesNotFit;
    let updated = outputs.check.as_deref().filter(|_| outputs.update && is_whole);
    let files = [outputs.said.json.as_deref().filter(|_| is_file), outputs.badge.as_deref(), kept, updated];
    let mut wrote: Vec<String> = files.into_iter().flatten().map(|path| path.display().to_string()).collect();
    wrote.extend(
        outputs.out.as_deref().map(|folder| format!("{} (memory.html, snapshot.pickle, trace.json, ...)", folder.display())),
    );
    let compared = earlier.filter(|_| is_whole).map(|earlier| earlier.compare(&found.answer, outputs.tolerance)).transpose()?;
    // Before anything is printed: whoever reads that may be gone. Where the disk is full, that is said after the answer. The standard output has
    // room for one.
    let write = |found: &RehearsalResult| {
        let json = outputs.said.write(&Checked { answer: &found.answer, check: compared.as_ref() });
        let out = outputs.out.as_deref().map_or(Ok(()), |folder| files::write(folder, &found.answer, &found.capture.traces));
        json.and(out).and(kept.map_or(Ok(()), |path| found.capture.keep(path)))
    };
    let mut written = if is_file { write(found) } else { Ok(()) };
    let answer = &found.answer;
    if let Some(compared) = &compared {
        if !outputs.said.quiet {
            eprintln!("\n{}", compared.first);
        }
        if compared.grew || outputs.said.is_verbose() && !outputs.said.quiet {
            eprint!("{}", compared.text);
        }
    }
    if !outputs.said.quiet {
        eprint!("\n{}", terminal::styled(&said(&outputs.said, answer)));
    }
    let others = more(found);
    if !is_file || others.is_some() {
        written = written.and(write(found));
    }
    if let Some(others) = others.filter(|_| !outputs.said.quiet) {
        eprintln!("\n{others}");
    }
    written?;
    let answer = &found.answer;
    if let Some(path) = &outputs.badge {
        let text = show::badge(answer).with_context(|| format!("--badge {}: there is no whole answer", path.display()))?;
        files::save(path, |out| Ok(out.write_all(text.as_bytes())?))?;
    }
    updated.map_or(Ok(()), |path| Earlier::keep(answer, path))?;
    if !outputs.said.quiet && !wrote.is_empty() {
        eprintln!("\nWrote {}.", wrote.join(", "));
    }
    Ok(if compared.is_some_and(|compared| compared.grew) && answer.verdict.fits() { GREW } else { status(answer.verdict) })
}

/// The answer as it is asked for: whole, in lines as wide as the terminal, or short.
fn said(said: &SaidFlags, answer: &Answer) -> String {
    if !said.is_verbose() {
        return show::short(answer);
    }
    let text = show::answer(answer).trim_start().to_string();
    terminal::columns().map_or_else(|| text.clone(), |columns| show::wrapped(&text, columns))
}
