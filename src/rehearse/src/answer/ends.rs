//! How each process of a job ended, and what of that decides the answer: a rank that failed while another had made its steps, an operator that
//! was refused and that nobody heard of.

use super::process::{Failure, failure};
use crate::capture::plain::{first_line, on_one_line};
use crate::capture::process::{Exception, Frame, Trace};
use crate::capture::session::Capture;
use crate::words::short;
use serde::Serialize;
use sim::trace::Kind;
use std::os::unix::process::ExitStatusExt;

/// A process that failed by itself, and not because another one had gone.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct FailedProcess {
    pub process: u32,
    pub rank: Option<u32>,
    pub failure: Failure,
}

/// What a command did not come to because a training was stopped after its steps, whose result it needs.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct CutShort {
    /// The process that failed then; none where the command waited for ever, or its status is all that is known.
    pub failed: Option<FailedProcess>,
    pub waited: bool,
    /// How the command ended.
    pub end: String,
}

impl CutShort {
    /// Of a command that did not end well after a training was stopped. `failed` is the process that did so by itself, before or after that.
    pub fn of(run: &Capture, failed: Option<&FailedProcess>) -> Option<CutShort> {
        let stopped_at = run.traces.iter().filter_map(|trace| trace.stopped_at).min()?;
        let by = |process: u32| run.traces.iter().find(|trace| trace.process.id == process);
        // What began after a training and trained nothing itself wants what that leaves: its checkpoint, its log.
        let needs_it = |trace: &Trace| trace.process.began > stopped_at && trace.events.last().is_none_or(|last| last.step == 0);
        if let Some(failed) = failed {
            return by(failed.process).is_some_and(needs_it).then(|| CutShort {
                failed: Some(failed.clone()),
                waited: false,
                end: run.end(),
            });
        }
        if run.waited {
            return Some(CutShort { failed: None, waited: true, end: run.end() });
        }
        let after = |trace: &&Trace| own_exception(trace).is_some_and(|exception| exception.at > stopped_at);
        // Ranks that lost the others have made the same steps as those.
        let (ranks, others): (Vec<&Trace>, Vec<&Trace>) =
            run.traces.iter().filter(after).partition(|trace| trace.process.rank.is_some());
        if ended_well(run) || run.timed_out || run.interrupted || (others.is_empty() && !ranks.is_empty()) {
            return None;
        }
        let first =
            others.iter().filter_map(|trace| Some((trace, own_exception(trace)?))).min_by_key(|(_, exception)| exception.at);
        let failed = first.map(|(trace, exception)| FailedProcess {
            process: trace.process.id,
            rank: None,
            failure: failure(trace, exception),
        });
        Some(CutShort { failed, waited: false, end: run.end() })
    }

    /// In a clause, without what helps.
    pub fn why(&self) -> String {
        match &self.failed {
            _ if self.waited => {
                "the command waits for what trainings give that were stopped after their steps, and was ended".to_string()
            }
            Some(FailedProcess { failure, .. }) => {
                let place = failure.line.as_ref().map_or(String::new(), |line| format!(" ({}:{})", short(&line.file), line.line));
                format!(
                    "after a training was stopped the command failed with {}: {}{place}",
                    failure.kind,
                    first_line(&failure.message)
                )
            }
            None => format!("after a training was stopped the command failed: {}", self.end),
        }
    }
}

/// How a crash is told of that came after the script.
pub const CRASHED: &str = "the script had come to its end, and as the interpreter closed ";

/// Whether a command ended well, by its status, or by what its processes had done where it crashed as its interpreter closed.
pub fn ended_well(run: &Capture) -> bool {
    run.status().success() || crashed_as_it_closed(run)
}

/// Whether the command's own process and all that used the GPU had ended by themselves, and then a library's destructors crashed: an abort, or an access
/// to memory that is not there. Who only started them, as a launcher or a shell, may have failed of itself.
pub fn crashed_as_it_closed(run: &Capture) -> bool {
    const CRASHES: [i32; 3] = [6, 7, 11];
    let is_own = |trace: &&Trace| run.command.len() > 1 && trace.process.arguments.ends_with(&run.command[1..]);
    let had_ended = |trace: &Trace| trace.exception.is_none() && (trace.ended || trace.stopped.is_some());
    let mut own = run.traces.iter().filter(is_own).peekable();
    let mut of_the_job = run.traces.iter().filter(|trace| is_of_the_job(trace)).peekable();
    run.status().signal().is_some_and(|signal| CRASHES.contains(&signal))
        && (own.peek().is_some() && own.all(had_ended))
        && (of_the_job.peek().is_some() && of_the_job.all(had_ended))
}

/// A rank that left without a word before its steps were done, where others made theirs; on real GPUs those would wait for it. With how many it made.
pub fn left_early(traces: &[Trace]) -> Option<(u32, u32)> {
    let steps = |trace: &Trace| trace.events.last().map_or(0, |last| last.step);
    let done = traces.iter().filter(|trace| trace.process.rank.is_some() && trace.stopped.is_some()).map(steps).max()?;
    let has_left =
        |trace: &&Trace| trace.stopped.is_none() && trace.exception.is_none() && !trace.ended && (1..done).contains(&steps(trace));
    traces.iter().filter(has_left).find_map(|trace| Some((trace.process.rank?, steps(trace))))
}

/// An operator that the simulated GPU cannot run, of which the script heard and went on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct RefusedOperator {
    pub operator: String,
    pub line: Option<Frame>,
}

/// Whether what became of a process is the job's matter: it used the GPU, is a rank, or made steps. Others are helpers, whose failure is the
/// script's to deal with.
fn is_of_the_job(trace: &Trace) -> bool {
    trace.process.rank.is_some() || trace.events.iter().any(|event| event.kind == Kind::Alloc || event.step > 0)
}

/// An exception that ended a process, and is none of memory.
fn own_exception(trace: &Trace) -> Option<&Exception> {
    trace.exception.as_ref().filter(|exception| !exception.out_of_memory && !exception.of_thread && trace.stopped.is_none())
}

/// The process that failed first, by itself.
pub fn failed(traces: &[Trace]) -> Option<FailedProcess> {
    let (trace, exception) = traces
        .iter()
        .filter(|trace| is_of_the_job(trace))
        .filter_map(|trace| Some((trace, own_exception(trace)?)))
        .filter(|(trace, exception)| !is_of_others(trace, exception, traces) && !succeeded_again(trace, exception, traces))
        .min_by_key(|(_, exception)| exception.at)?;
    Some(FailedProcess { process: trace.process.id, rank: trace.process.rank, failure: failure(trace, exception) })
}

/// A rank that ended before its steps were done, by a signal or a status of its own, while another was stopped as done. Where that one failed
/// after it was stopped, a launcher ends the others.
pub fn missing(traces: &[Trace]) -> Option<u32> {
    let (done, others): (Vec<&Trace>, Vec<&Trace>) = traces.iter().partition(|trace| trace.stopped.is_some());
    let is_others_end = done.is_empty() || done.iter().any(|trace| trace.exception.is_some());
    let missing = others.into_iter().filter(|trace| trace.exception.is_none()).find_map(|trace| trace.process.rank);
    missing.filter(|_| !is_others_end)
}

/// Whether a process failed because another had gone before, which was stopped after its steps or failed: what it waited for broke off, or it
/// had started that one.
fn is_of_others(trace: &Trace, exception: &Exception, traces: &[Trace]) -> bool {
    let gone = |other: &&Trace| {
        let failed = own_exception(other).filter(|_| is_of_the_job(other)).map(|failed| failed.at);
        let at = other.stopped_at.into_iter().chain(failed).min();
        other.process.id != trace.process.id && at.is_some_and(|at| at < exception.at)
    };
    traces.iter().filter(gone).any(|other| exception.of_others || other.process.parent == trace.process.id)
}

/// Whether the same was started once more after it had failed, and ended well. All that a process forks have its arguments.
fn succeeded_again(trace: &Trace, exception: &Exception, traces: &[Trace]) -> bool {
    let forked = |by: &Trace| (by.process.id, &by.process.arguments) == (trace.process.parent, &trace.process.arguments);
    !traces.iter().any(forked)
        && traces.iter().any(|other| {
            let is_same = (other.process.rank, &other.process.arguments) == (trace.process.rank, &trace.process.arguments);
            let ended_well = other.stopped.is_some() || (other.ended && other.exception.is_none());
            is_same && ended_well && other.process.began > exception.at
        })
}

/// What is said of processes that failed and decide nothing.
pub fn beside(traces: &[Trace], script_failed: bool, failed: Option<&FailedProcess>) -> Vec<String> {
    if script_failed && failed.is_none() {
        return Vec::new();
    }
    let end_of = |trace: &Trace| {
        let exception = own_exception(trace)?;
        let why = match () {
            () if failed.is_some_and(|failed| failed.process == trace.process.id) => return None,
            // The launcher's, that a process failed which is named.
            () if is_of_others(trace, exception, traces) => return None,
            () if succeeded_again(trace, exception, traces) => "the same was started again and ended well",
            () if !is_of_the_job(trace) => "it used no GPU, so it decides nothing here",
            () => return None,
        };
        let process = trace.process.rank.map_or(format!("process {}", trace.process.id), |rank| format!("rank {rank}"));
        let (kind, message) = (on_one_line(&exception.kind), first_line(&exception.message));
        Some(format!("{process} ended with {kind}: {message}; {why}"))
    };
    traces.iter().filter_map(end_of).collect()
}

/// Operators that were refused, where that is not what ended the script.
pub fn refused(traces: &[Trace]) -> Vec<RefusedOperator> {
    let mut found: Vec<RefusedOperator> = Vec::new();
    for trace in traces {
        for (operator, stack) in &trace.refused_operators {
            let ended = trace.exception.as_ref().is_some_and(|exception| exception.message.contains(operator.as_str()));
            let line = trace.own_line(*stack).or_else(|| trace.line(*stack)).cloned();
            let name = operator.rsplit("::").next().unwrap_or(operator);
            let refused = RefusedOperator { operator: name.trim_start_matches("linalg_").to_string(), line };
            if !ended && !found.iter().any(|known| known.line == refused.line) {
                found.push(refused);
            }
        }
    }
    found
}
