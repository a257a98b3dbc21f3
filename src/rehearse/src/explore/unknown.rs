//! What hangs on values that nobody computed: where the script reads some that may decide a size, a branch or how long a loop goes on, it is
//! rehearsed once more with others, as possible as the first. Where that takes another amount of memory, the answer says so.

use crate::answer::reply::{grows, short_failure, unseen};
use crate::answer::{Answer, RehearsalVerdict, answer, may_decide};
use crate::capture::process::{Frame, Trace, is_torch_or_stdlib};
use crate::capture::session::{Capture, OtherValues};
use crate::run::executor::Rehearsal;
use crate::words::places_of;
use anyhow::Result;
use base::order::distinct;
use sim::trace::Kind;
use std::collections::BTreeSet;
use std::io::{Seek, Write};
use std::process::{Command, Stdio};

/// The environment that has values be others (src/sim/native/python/values.cpp).
const OTHER: &str = "VRAMLAB_REHEARSAL_OTHER_VALUES";

/// As much more or less than at first is a difference: bytes, or a share.
const DIFFERENCE: (i64, i64) = (16 << 20, 100);

/// How many times as long as at first it may take, and seconds beside.
const LONGEST_SECONDS: (f64, f64) = (5.0, 60.0);

/// Operators whose result is as large as values say; what others give is followed in the script's source.
const SHAPES: [&str; 6] = ["nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave"];

/// Lines that led to a read, innermost first.
type Read = Vec<(String, u32)>;

impl Rehearsal {
    /// Adds whether what the script takes hangs on values that nobody computed, which takes another run where they may decide something, and one
    /// more where that differs: for whether any two runs do.
    pub(super) fn find_unknown(&self, answer: &Answer, capture: &mut Capture) {
        let lines = self.lines_that_decide(&capture.traces);
        if lines.is_empty() {
            return;
        }
        let places = places_of(&lines);
        (self.progress)(&format!("once more, with other values where the script reads what nobody computed ({})", places));
        match self.with_other_values(answer, capture.seconds, lines) {
            Ok(found) => capture.found.other_values = found,
            Err(error) => {
                capture.found.other_values_missing = Some(format!(
                    "with other values where the script reads what nobody computed ({}) it did not come to its end, so what hangs on them is not known: {error:#}",
                    places
                ))
            }
        }
    }

    /// What answers say that do without that other run: what else their peaks say nothing of, too.
    pub(super) fn limits(&self, capture: &Capture, answer: &Answer) -> Vec<String> {
        let lines = self.lines_that_decide(&capture.traces);
        let unknown = (!lines.is_empty()).then(|| {
            format!(
                "But placeholder values may decide a size or a loop ({}), so a real run may take more; vramlab rehearse says how much with others.",
                places_of(&lines)
            )
        });
        let grows = grows(answer, self.card.memory.cast_signed(), None);
        [unknown, grows, unseen(answer)].into_iter().flatten().collect()
    }

    /// Lines of the script that read values which nobody computed, and may decide a size, a branch or how long a loop goes on.
    fn lines_that_decide(&self, traces: &[Trace]) -> Vec<Frame> {
        let (sized, read): (Vec<_>, Vec<_>) =
            reads(traces).into_iter().partition(|(_, operator, _)| SHAPES.contains(&operator.as_str()));
        let asked: Vec<&Read> = read.iter().map(|(_, _, led)| led).collect();
        let python = traces.iter().map(|trace| trace.process.executable.as_str()).find(|path| !path.is_empty());
        // In doubt they do.
        let decides = self.which_decide(python.unwrap_or("python3"), &asked).unwrap_or_else(|_| vec![true; asked.len()]);
        let deciding = read.into_iter().zip(decides).filter(|(_, decides)| *decides).map(|(read, _)| read);
        distinct(sized.into_iter().chain(deciding).map(|(line, ..)| line))
    }

    fn which_decide(&self, python: &str, reads: &[&Read]) -> Result<Vec<bool>> {
        if reads.is_empty() {
            return Ok(Vec::new());
        }
        let program = self.libraries.folder.join("python/vramlab_rehearsal/deciding.py");
        let mut asked = tempfile::tempfile()?;
        asked.write_all(&serde_json::to_vec(reads)?)?;
        asked.rewind()?;
        let said = Command::new(python).arg("-I").arg(program).stdin(asked).stderr(Stdio::null()).output()?;
        let decides: Vec<bool> = serde_json::from_slice(&said.stdout)?;
        anyhow::ensure!(decides.len() == reads.len(), "Python reported {} reads of {}", decides.len(), reads.len());
        Ok(decides)
    }

    fn with_other_values(&self, first: &Answer, took: f64, lines: Vec<Frame>) -> Result<Option<OtherValues>> {
        let mut other = self.clone();
        other.variant.settings.push((OTHER, "1".to_string()));
        other.timeout = Some(self.timeout.unwrap_or(f64::INFINITY).min(LONGEST_SECONDS.0 * took + LONGEST_SECONDS.1));
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
        Ok(Some(OtherValues { lines, peak_on_device: others.peak_on_device, fits: fits || endless, endless }))
    }
}

/// Where values are read that are made up, and not taken as large as they could be; and what led there.
fn reads(traces: &[Trace]) -> Vec<(Frame, String, Read)> {
    let mut found: Vec<(Frame, String, Read)> = Vec::new();
    let made_up = |event: &&sim::trace::Event| {
        let (taken, possible) = (event.rounded, event.address.cast_signed());
        event.kind == Kind::Placeholder && event.bytes == 1 && (possible == 0 || taken < possible)
    };
    for trace in traces {
        let stacks = trace.events.iter().filter(made_up).map(|event| (event.stack, u32::from(event.operator)));
        for (stack, operator) in stacks.filter(|(stack, _)| may_decide(trace, *stack)).collect::<BTreeSet<_>>() {
            let operator = trace.operators.get(&operator).cloned().unwrap_or_default();
            let led: Vec<_> = trace.stack(stack).filter(|frame| !is_torch_or_stdlib(&frame.file)).collect();
            let Some(innermost) = led.first() else { continue };
            let read: Read = led.iter().map(|frame| (frame.file.clone(), frame.line)).collect();
            if !found.iter().any(|(_, of, known)| *of == operator && *known == read) {
                found.push(((*innermost).clone(), operator, read));
            }
        }
    }
    found
}
