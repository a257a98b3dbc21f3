//! A rehearsal, and the least memory that would do for it.

use super::{replay, sized};
use crate::answer::reply::others_said;
use crate::answer::{
    Answer, CardAnswer, FittingRun, ProcessAnswer, RehearsalVerdict, answer, answers, ended_well, needs_beside_training,
    needs_of_engine,
};
use crate::capture::process::{Note, NoteKind, Trace};
use crate::capture::session::{Capture, Needs, SizedByFree};
use crate::run::executor::{Output, Rehearsal};
use crate::run::session::Session;
use anyhow::{Result, ensure};
use sim::cards::Card;
use std::cmp::Reverse;
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
        let mut capture = Capture::open(path)?;
        sized::mark(&mut capture);
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
            self.find_needs(&answer, &mut capture);
            if capture.found.sized.is_some() {
                answer = self::answer(&capture)?;
            }
        }
        answer.add(&capture.found, &self.card);
        Ok(RehearsalResult { answer, capture, _session: Some(session) })
    }

    /// Adds what hangs on values that nobody computed, which takes another rehearsal where they may decide something. In words, where it is anything.
    pub fn find_other_values(&self, result: &mut RehearsalResult) -> Option<String> {
        let RehearsalResult { answer, capture, .. } = result;
        if answer.verdict.fits() {
            self.find_unknown(answer, capture);
        }
        answer.other_values = capture.found.other_values.clone();
        answer.notes.extend(capture.found.other_values_missing.iter().map(|why| Note::new(NoteKind::Unknown, why)));
        others_said(answer.other_values.as_ref()).or_else(|| capture.found.other_values_missing.clone())
    }

    /// The answers of several cards by one rehearsal: on this one with memory for anything, and a replay of its allocations for what they need. Where
    /// what is allocated hangs on the size of a card, each is rehearsed by itself.
    ///
    /// # Errors
    /// As of a rehearsal; or PyTorch's allocator could not be asked.
    pub fn on_cards(&self, cards: &[Card]) -> Result<Vec<Answer>> {
        self.on_cards_by(&self.on_a_large_card(), cards)
    }

    fn on_cards_by(&self, large: &Rehearsal, cards: &[Card]) -> Result<Vec<Answer>> {
        let (mut capture, _session, mut found) = large.answered()?;
        let fits = found.verdict.fits();
        if fits {
            large.find_needs(&found, &mut capture);
            large.find_unknown(&found, &mut capture);
        }
        let needs = capture.found.needs;
        found.add(&capture.found, &large.card);
        let (missing, sized, other_values) =
            (capture.found.needs_missing.clone(), capture.found.sized.clone(), capture.found.other_values.clone());
        // What one that goes on with less needs is its own.
        let alone = |card: &Card, goes_on: bool| -> Result<Answer> {
            let one = Rehearsal { card: *card, is_silent: true, ..self.clone() };
            let (mut run, _session, first) = one.answered()?;
            (run.found.needs, run.found.needs_missing) = (needs, missing.clone());
            (run.found.sized, run.found.other_values) = (sized.clone(), other_values.clone());
            run.found.needs.iter_mut().for_each(|needs| needs.move_to(card, &self.card));
            if goes_on && first.verdict.fits() {
                one.find_needs(&first, &mut run);
            }
            sized::mark(&mut run);
            let mut answer = answer(&run)?;
            answer.add(&run.found, card);
            Ok(answer)
        };
        // An engine's pool is what its share of a card leaves, so one run tells of all that have the same defaults.
        let is_by_card = |trace: &Trace| trace.engine.as_ref().is_some_and(|engine| engine.is_by_card);
        if fits && needs_of_engine(&capture.traces, &large.card).is_some() && !capture.traces.iter().any(is_by_card) {
            let less = large.with_other_defaults(&capture.traces);
            let has_others = |card: &&Card| less.as_ref().is_some_and(|less| card.memory <= less.card.memory);
            let others: Vec<Card> = cards.iter().filter(has_others).copied().collect();
            let mut of_others = match &less {
                Some(less) if !others.is_empty() => Rehearsal { is_silent: true, ..self.clone() }.on_cards_by(less, &others)?,
                _ => Vec::new(),
            }
            .into_iter();
            let engines: Vec<_> = capture.traces.iter().map(|trace| trace.engine.clone()).collect();
            let mut on_card = |card: &Card| {
                capture.card = *card;
                for (trace, engine) in capture.traces.iter_mut().zip(&engines) {
                    trace.engine = engine.as_ref().map(|engine| engine.on(card.memory, large.card.memory));
                }
                found.clone().served(&capture, needs)
            };
            let on_card = |card| if has_others(&card) { of_others.next() } else { Some(on_card(card)) };
            return Ok(cards.iter().filter_map(on_card).collect());
        }
        if fits && sized::hangs_on_the_card(&capture.traces) {
            return cards.iter().map(|card| alone(card, false)).collect();
        }
        let on_card = |card: &Card| {
            capture.card = *card;
            let mut answer = found.clone().moved(&capture);
            if let Some(needs) = needs {
                answer.hold_to(needs, card, &self.card);
            }
            answer
        };
        let mut answers: Vec<Answer> = cards.iter().map(on_card).collect();
        // Where memory runs out a script may go on with less: the largest of those cards tells, and if so each.
        let mut too_small: Vec<usize> = (0..cards.len()).filter(|at| fits && !answers[*at].verdict.fits()).collect();
        too_small.sort_by_key(|at| Reverse(cards[*at].memory));
        for at in too_small {
            let answer = alone(&cards[at], true)?;
            if answer.verdict == RehearsalVerdict::DoesNotFit {
                break;
            }
            answers[at] = answer;
        }
        Ok(answers)
    }

    /// A run, with the lines and the files of the script that the user wants kept.
    fn answered(&self) -> Result<(Capture, Session, Answer)> {
        let (mut capture, session) = self.run(if self.is_silent { Output::Silent } else { Output::Shown })?;
        if let (Some(held), Some(folder)) = (&mut capture.held, &self.keep_writes) {
            held.keep(&capture.folder, folder)?;
        }
        if self.host_factor.is_some() {
            self.have_one_host(&mut capture.traces);
        }
        let answer = answer(&capture)?;
        capture.found.lines = answer.lines();
        Ok((capture, session, answer))
    }

    /// Gives processes the host's time of the command's first rehearsal, where both did the same: between two of them this machine alone differs.
    fn have_one_host(&self, traces: &mut [Trace]) {
        let of = |trace: &Trace| trace.work.iter().map(|work| (work.operator, work.host_nanoseconds)).collect();
        let first = self.host_times.get_or_init(|| traces.iter().map(of).collect());
        for (trace, first) in traces.iter_mut().zip(first) {
            if trace.work.iter().map(|work| work.operator).eq(first.iter().map(|(operator, _)| *operator)) {
                trace.work.iter_mut().zip(first).for_each(|(work, (_, nanoseconds))| work.host_nanoseconds = *nanoseconds);
            }
        }
    }

    /// The least memory of a run that ended well; none where it did not, or PyTorch's allocator could not be asked.
    pub(super) fn needed(&self, answer: &Answer, traces: &[Trace]) -> Option<i64> {
        let found = answer.verdict.fits().then(|| replay::needed(self, &answer.processes, traces, &answer.cards))?;
        found.ok().map(|needs| needs.least)
    }

    /// Adds what the script needs of a card, where it ran as long as was wanted, and where it did not fit: then it is rehearsed once more on a card
    /// that is large enough for anything, in silence.
    fn find_needs(&self, answer: &Answer, capture: &mut Capture) {
        // An engine says itself what hangs on the card.
        let beside = || needs_beside_training(&capture.traces, &self.card, answer).filter(|_| answer.verdict.fits());
        if let Some(needs) = self.needs_of_engine(answer, &capture.traces).or_else(beside) {
            capture.found.needs = Some(needs);
            return;
        }
        let found = match answer.verdict.fits() {
            true => self.needs(&answer.processes, &capture.traces, &answer.cards),
            false => {
                let less = self.on_a_large_card().with_other_defaults(&capture.traces);
                let less = less.filter(|less| less.card.memory > self.card.memory);
                let found = less.map(|less| self.needs_of_a_large_card(&less, &mut capture.found.fitting));
                let large = || self.needs_of_a_large_card(&self.on_a_large_card(), &mut capture.found.fitting);
                found.filter(Result::is_ok).unwrap_or_else(large)
            }
        };
        match found {
            Ok((needs, sized)) => {
                capture.found.needs_missing = sized.as_ref().filter(|_| needs.is_none()).map(sized::not_found);
                (capture.found.needs, capture.found.sized) = (needs, sized);
                sized::mark(capture);
            }
            Err(error) => capture.found.needs_missing = Some(format!("{error:#}")),
        }
    }

    /// Of a run on this card that fitted: what it needs, and what it makes as large as the card allows.
    fn needs(
        &self,
        processes: &[ProcessAnswer],
        traces: &[Trace],
        cards: &[CardAnswer],
    ) -> Result<(Option<Needs>, Option<SizedByFree>)> {
        match self.sized_by_free(processes, traces)? {
            Some((sized, needs)) => Ok((needs, Some(sized))),
            None => Ok((Some(replay::needed(self, processes, traces, cards)?), None)),
        }
    }

    fn needs_of_a_large_card(
        &self,
        large: &Rehearsal,
        fitting: &mut Option<FittingRun>,
    ) -> Result<(Option<Needs>, Option<SizedByFree>)> {
        let run = large.run_in_silence()?;
        let again = answers(&run.traces, !ended_well(&run));
        ensure!(!run.timed_out, "on a larger card it had not ended when the time of --timeout was over");
        ensure!(again.iter().all(|a| a.out_of_memory.is_none() && a.exception.is_none()), "on a larger card {}", run.end());
        *fitting = FittingRun::of(&run, &again);
        let beside = || needs_beside_training(&run.traces, &large.card, &self::answer(&run).ok()?);
        if let Some(needs) = large.needs_of_engine(&self::answer(&run)?, &run.traces).or_else(beside) {
            return Ok((Some(needs), None));
        }
        large.needs(&again, &run.traces, &run.occupancy.cards(&again, &run.traces))
    }
}
