//! What hangs on values that nobody computed: where the script reads some, it is rehearsed once more with others, as possible as the first. Where that
//! takes another amount of memory, the answer says so, and which read decided: the last before the two runs part.

use crate::answer::reply::{grows, others_said, short_failure, unseen};
use crate::answer::{Answer, RehearsalVerdict, answer, may_decide};
use crate::capture::process::{Frame, Trace, is_torch_or_stdlib};
use crate::capture::session::{Capture, OtherValues};
use crate::run::executor::Rehearsal;
use crate::words::places_of;
use anyhow::Result;
use base::order::distinct;
use sim::trace::{Event, Kind};
use std::collections::BTreeSet;

/// The environment that has values be others (src/sim/native/python/values.cpp).
const OTHER: &str = "VRAMLAB_REHEARSAL_OTHER_VALUES";

/// As much more or less than at first is a difference: bytes, or a share.
const DIFFERENCE: (i64, i64) = (16 << 20, 100);

/// How many times as long as at first it may take, and seconds beside.
const LONGEST_SECONDS: (f64, f64) = (5.0, 60.0);

impl Rehearsal {
    /// What the script takes with others of the values that nobody computed, where that is another amount: a run more where it reads some, and one
    /// more again where that differs, for whether any two runs do. Or why that is not known.
    fn unknown(&self, answer: &Answer, capture: &Capture) -> Result<Option<OtherValues>, String> {
        // A server has sized what it has before it reads a token.
        let traces = if answer.serves.is_some() { &[] } else { capture.traces.as_slice() };
        let lines = distinct(traces.iter().flat_map(|trace| {
            let stacks: BTreeSet<u32> = made_up(trace).map(|at| trace.events[at].stack).collect();
            // Of an engine beside a training the sampled tokens say how many there are, and a trainer reads what it logs: where there are as many as
            // there may be, the script's own lines alone decide anything.
            let is_full = trace.engine.as_ref().is_some_and(|engine| engine.is_full);
            stacks
                .into_iter()
                .filter_map(move |stack| line_of(trace, stack).filter(|line| !(is_full && trace.is_library(&line.file))))
        }));
        if lines.is_empty() {
            return Ok(None);
        }
        let what = format!("with other values where the script reads what nobody computed ({})", places_of(&lines));
        (self.progress)(&format!("once more, {what}"));
        self.with_other_values(answer, capture, lines)
            .map_err(|error| format!("{what} it did not come to its end, so what hangs on them is not known: {error:#}"))
    }

    /// Adds that to a capture.
    pub(super) fn find_unknown(&self, answer: &Answer, capture: &mut Capture) {
        match self.unknown(answer, capture) {
            Ok(found) => capture.found.other_values = found,
            Err(why) => capture.found.other_values_missing = Some(why),
        }
    }

    /// What answers say of the script as it is that are none of it: what hangs on such values, and what else a peak says nothing of.
    pub(super) fn limits(&self, capture: &Capture, answer: &Answer) -> Vec<String> {
        let with_memory = |large: Rehearsal| -> Result<Option<OtherValues>, String> {
            let run = large.run_in_silence().map_err(|error| format!("{error:#}"))?;
            large.unknown(&self::answer(&run).map_err(|error| format!("{error:#}"))?, &run)
        };
        let unknown = if answer.verdict.fits() { self.unknown(answer, capture) } else { with_memory(self.on_a_large_card()) };
        let unknown = unknown.map_or_else(Some, |found| others_said(found.as_ref()));
        let grows = grows(answer, self.card.memory.cast_signed(), None);
        [unknown, grows, unseen(answer)].into_iter().flatten().collect()
    }

    fn with_other_values(&self, first: &Answer, capture: &Capture, lines: Vec<Frame>) -> Result<Option<OtherValues>> {
        let mut other = self.clone();
        other.variant.settings.push((OTHER, "1".to_string()));
        let longest = LONGEST_SECONDS.0 * capture.seconds + LONGEST_SECONDS.1;
        other.timeout = Some(self.timeout.unwrap_or(f64::INFINITY).min(longest));
        let run = other.run_in_silence()?;
        let others = answer(&run)?;
        let (fits, endless) = (others.verdict.fits(), others.verdict == RehearsalVerdict::TimedOut);
        anyhow::ensure!(fits || endless || others.verdict == RehearsalVerdict::DoesNotFit, "{}", short_failure(&others, &run));
        let differs = |by: i64| by.abs() > DIFFERENCE.0.max(first.peak_on_device / DIFFERENCE.1);
        let more = others.peak_on_device - first.peak_on_device;
        if fits && !differs(more) {
            return Ok(None);
        }
        let again = answer(&self.run_in_silence()?)?;
        if fits && again.verdict.fits() && more.abs() <= 2 * (again.peak_on_device - first.peak_on_device).abs() {
            return Ok(None);
        }
        let decides = capture.traces.iter().zip(&run.traces).find_map(|(one, other)| deciding(one, other));
        let lines = decides.map_or(lines, |line| vec![line]);
        Ok(Some(OtherValues { lines, peak_on_device: others.peak_on_device, fits: fits || endless, endless }))
    }
}

/// Where values are read that are made up, and not taken as large as they could be.
fn made_up(trace: &Trace) -> impl Iterator<Item = usize> {
    let is_made_up = |event: &Event| {
        let (taken, possible) = (event.rounded, event.address.cast_signed());
        event.kind == Kind::Placeholder && event.bytes == 1 && (possible == 0 || taken < possible)
    };
    let events = trace.events.iter().enumerate();
    events.filter(move |(_, event)| is_made_up(event) && may_decide(trace, event.stack)).map(|(at, _)| at)
}

/// The script's line that a stack is of.
fn line_of(trace: &Trace, stack: u32) -> Option<Frame> {
    trace.stack(stack).find(|frame| !is_torch_or_stdlib(&frame.file)).cloned()
}

/// The last such read before two runs of a process part.
fn deciding(one: &Trace, other: &Trace) -> Option<Frame> {
    let seen = |(_, event): &(usize, &Event)| event.kind != Kind::Placeholder;
    let done = |event: &Event| (event.kind, event.bytes, event.phase, event.step);
    let [mine, theirs] = [one, other].map(|trace| trace.events.iter().enumerate().filter(seen));
    let apart = mine.zip(theirs).find(|((_, a), (_, b))| done(a) != done(b)).map(|((at, _), _)| at);
    let until = apart.unwrap_or(one.events.len());
    made_up(one).take_while(|at| *at < until).last().and_then(|at| line_of(one, one.events[at].stack))
}
