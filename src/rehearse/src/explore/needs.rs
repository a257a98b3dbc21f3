//! A rehearsal, and the least memory that would do for it.

use super::replay;
use crate::answer::reply::others_said;
use crate::answer::{Answer, FittingRun, RehearsalVerdict, answer, answers};
use crate::capture::process::Trace;
use crate::capture::session::{Capture, Needs};
use crate::run::executor::{Output, Rehearsal};
use crate::run::session::Session;
use anyhow::{Result, ensure};
use sim::cards::Card;
use std::path::Path;

/// What came of a rehearsal.
#[derive(Debug)]
pub struct RehearsalResult {
    pub answer: Answer,
    pub capture: Capture,
    /// In which the capture's files are.
    _session: Option<Session>,
}

impl RehearsalResult {
    /// Of what was kept of an earlier rehearsal.
    ///
    /// # Errors
    /// It is none, or of another version; with what to do.
    pub fn open(path: &Path) -> Result<RehearsalResult> {
        let capture = Capture::open(path)?;
        let mut answer = answer(&capture)?;
        answer.add(&capture.found, &capture.card);
        Ok(RehearsalResult { answer, capture, _session: None })
    }
}

impl Rehearsal {
    /// Runs the command and says what it needs: where `with_needs`, also the least memory that would do, which takes another process, and
    /// where the command does not fit, another run.
    ///
    /// # Errors
    /// There is nothing to rehearse, or no whole answer; with the reason.
    pub fn rehearse(&self, with_needs: bool) -> Result<RehearsalResult> {
        let (mut capture, session, mut answer) = self.answered()?;
        if with_needs && (answer.verdict.fits() || answer.verdict == RehearsalVerdict::DoesNotFit) {
            match self.needs(&answer, &capture.traces, &mut capture.found.fitting) {
                Ok(needs) => capture.found.needs = Some(needs),
                Err(error) => capture.found.needs_missing = Some(format!("{error:#}")),
            }
        }
        answer.add(&capture.found, &self.card);
        Ok(RehearsalResult { answer, capture, _session: session })
    }

    /// Adds what hangs on values that nobody computed, which takes another rehearsal where they may decide something. In words, where it is anything.
    pub fn find_other_values(&self, result: &mut RehearsalResult) -> Option<String> {
        let RehearsalResult { answer, capture, .. } = result;
        if answer.verdict.fits() {
            self.find_unknown(answer, capture);
        }
        answer.other_values = capture.found.other_values.clone();
        answer.notes.extend(capture.found.other_values_missing.clone());
        others_said(answer).or_else(|| capture.found.other_values_missing.clone())
    }

    /// The answers of several cards by one rehearsal: on this one with memory for anything, and a replay of its allocations for what they need.
    /// What hangs on the size of a card, as a script that asks for what is free, is not seen.
    ///
    /// # Errors
    /// As of a rehearsal; or PyTorch's allocator could not be asked.
    pub fn on_cards(&self, cards: &[Card]) -> Result<Vec<Answer>> {
        let large = self.on_a_large_card();
        let (mut capture, _session, mut found) = large.answered()?;
        let needs = match found.verdict.fits() {
            true => Some(replay::needed(&large, &found.processes, &capture.traces, &found.cards)?),
            false => None,
        };
        if found.verdict.fits() {
            large.find_unknown(&found, &mut capture);
        }
        found.add(&capture.found, &large.card);
        let on_card = |card: &Card| {
            capture.card = *card;
            let mut answer = found.clone().moved(&capture);
            if let Some(needs) = needs {
                answer.hold_to(needs, card, &self.card);
            }
            answer
        };
        Ok(cards.iter().map(on_card).collect())
    }

    /// A run, with the lines and the files of the script that the user wants kept.
    fn answered(&self) -> Result<(Capture, Option<Session>, Answer)> {
        let (mut capture, session) = self.run(if self.is_silent { Output::Silent } else { Output::Shown })?;
        if let (Some(held), Some(folder)) = (&mut capture.held, &self.keep_writes) {
            held.keep(&capture.folder, folder)?;
        }
        let answer = answer(&capture)?;
        capture.found.lines = answer.lines();
        Ok((capture, session, answer))
    }

    /// The least memory of a run that ended well; none where it did not, or PyTorch's allocator could not be asked.
    pub(super) fn needed(&self, answer: &Answer, traces: &[Trace]) -> Option<i64> {
        let found = answer.verdict.fits().then(|| replay::needed(self, &answer.processes, traces, &answer.cards))?;
        found.ok().map(|needs| needs.least)
    }

    /// What the script needs of a card, where it ran as long as was wanted, and where it did not fit: then it is rehearsed once more on a
    /// card that is large enough for anything, in silence.
    fn needs(&self, answer: &Answer, traces: &[Trace], fitting: &mut Option<FittingRun>) -> Result<Needs> {
        if answer.verdict.fits() {
            return replay::needed(self, &answer.processes, traces, &answer.cards);
        }
        let run = self.on_a_large_card().run_in_silence()?;
        let again = answers(&run.traces, !run.status().success());
        ensure!(!run.timed_out, "on a larger card it had not ended when the time of --timeout was over");
        ensure!(again.iter().all(|a| a.out_of_memory.is_none() && a.exception.is_none()), "on a larger card {}", run.end());
        *fitting = FittingRun::of(&run, &again);
        replay::needed(self, &again, &run.traces, &run.occupancy.cards(&again, &run.traces))
    }
}
