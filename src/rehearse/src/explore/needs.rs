//! A rehearsal, and the least memory that would do for it.

use super::replay;
use crate::answer::{Answer, Needs, RehearsalVerdict, answer, answers};
use crate::capture::process::Trace;
use crate::run::executor::Rehearsal;
use crate::run::session::Session;
use anyhow::{Result, ensure};

/// What came of a rehearsal.
#[derive(Debug)]
pub struct RehearsalResult {
    pub answer: Answer,
    pub traces: Vec<Trace>,
}

impl Rehearsal {
    /// Runs the command and says what it needs.
    ///
    /// # Errors
    /// There is nothing to rehearse, or no whole answer; with the reason.
    pub fn rehearse(&self) -> Result<RehearsalResult> {
        let session = Session::new()?;
        let run = self.run(session.path(), self.is_silent)?;
        let mut answer = answer(&run)?;
        answer.quote();
        Ok(RehearsalResult { answer, traces: run.traces })
    }

    /// Adds the least memory that would do, which takes another process, and where the command does not fit, another run.
    pub fn find_needs(&self, found: &mut RehearsalResult) {
        let RehearsalResult { answer, traces } = found;
        if answer.verdict.fits() || answer.verdict == RehearsalVerdict::DoesNotFit {
            match self.needs(answer, traces) {
                Ok(needs) => {
                    answer.complete(needs, &self.card);
                    if !answer.verdict.fits() && answer.went_on_after().is_some() {
                        let note = "'needs at least' is of what the script asked for first: where nothing runs out it does not go on with less";
                        answer.notes.push(note.to_string());
                    }
                }
                Err(error) => answer.notes.push(format!("the least memory that would do could not be found: {error:#}")),
            }
        }
    }

    /// What the script needs of a card, where it ran as long as was wanted, and where it did not fit: then it is rehearsed once more on a
    /// card that is large enough for anything, in silence.
    ///
    /// # Errors
    /// That rehearsal did not come to its end, or PyTorch's allocator could not be asked.
    fn needs(&self, answer: &Answer, traces: &[Trace]) -> Result<Needs> {
        if answer.verdict.fits() {
            return replay::needed(self, &answer.processes, traces, &answer.cards);
        }
        let run = self.on_a_large_card().run_in_silence()?;
        let again = answers(&run.traces, !run.status.success());
        ensure!(!run.timed_out, "on a larger card it had not ended when the time of --timeout was over");
        ensure!(again.iter().all(|a| a.out_of_memory.is_none() && a.exception.is_none()), "on a larger card {}", run.end());
        replay::needed(self, &again, &run.traces, &run.occupancy.cards(&again, &run.traces))
    }
}
