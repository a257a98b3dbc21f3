//! The parent's side of a child process: start it, read its rows, end it in time.

use super::python::Python;
use super::reference_process::needed;
use super::spec::{ChildMessage, Spec};
use super::start::{POLL_INTERVAL, Program, command, listen, prepare_cuda, stopped};
use super::template::{Copied, Templates};
use crate::machine::DeviceChoice;
use anyhow::{Context, Result};
use record::protocol::{Pass, PlainCell};
use record::results::{PassRecord, Status};
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many times the usual a pass may take among all experiments, and what is taken for the usual at least, in seconds.
const TIMES_THE_USUAL: f64 = 10.0;
const LEAST_USUAL_SECONDS: f64 = 2.0;

/// How the reason of a pass begins that took that long.
pub const LEFT_OUT: &str = "left out for the others' sake";

/// What runs passes, and how long one may take.
#[derive(Debug)]
pub struct Launcher {
    pub choice: DeviceChoice,
    /// Bytes of the device's memory, where it has its own.
    pub device_memory: Option<u64>,
    pub timeout: Duration,
    /// What each pass took where the project's own results were taken, in seconds; empty where nobody waits for others.
    pub usual: BTreeMap<(PlainCell, Pass), f64>,
    /// Who runs the cells that are PyTorch's, or why nobody can; none where there are no such cells.
    pub python: Option<Result<Python, String>>,
}

impl Launcher {
    /// Runs a pass in a process of its own, which may be a copy of a template, after the other side of its comparison has written what it
    /// needs; `None` where Ctrl-C ended it.
    pub fn run(&self, spec: &Spec, templates: &mut Templates) -> Result<Option<PassRecord>> {
        if let ControlFlow::Break(ended) = self.provide(spec, templates)? {
            return Ok(ended);
        }
        let of = self.program(&spec.cell);
        let started = match templates.copy(of, spec, self.choice) {
            Some(Copied { id, stdout, stderr }) => Started::new(spec, Running::Copied { id, of, templates }, stdout, stderr),
            None => self.start(spec)?,
        };
        let limit = self.limit(spec);
        Ok(started.finish(limit, limit < self.timeout))
    }

    /// Starts the templates that these passes will have copied, as far as one fits them.
    pub fn prepare(&self, passes: &[&Spec], templates: &mut Templates) {
        for spec in passes {
            templates.prepare(self.program(&spec.cell), spec, self.choice);
            if spec.exchange.is_some() {
                templates.prepare(self.program(&spec.cell.other_side()), spec, self.choice);
            }
        }
    }

    /// Has the other side of a comparison write what a pass needs, where that is not there yet. Breaks with what becomes of the pass where it
    /// does not, or with nothing where Ctrl-C ended it.
    pub fn provide(&self, spec: &Spec, templates: &mut Templates) -> Result<ControlFlow<Option<PassRecord>>> {
        let Some(other) = needed(spec)? else { return Ok(ControlFlow::Continue(())) };
        Ok(match self.run(&other, templates)? {
            Some(given) if given.status == Status::Ok => ControlFlow::Continue(()),
            given => ControlFlow::Break(given.map(|given| given.of_other_side(&spec.cell, spec.pass, spec.round))),
        })
    }

    /// How long a pass may take: one that takes ten times the usual is left out, so that what comes after it has its turn.
    pub fn limit(&self, spec: &Spec) -> Duration {
        let usual = self.usual.get(&(spec.cell.clone(), spec.pass));
        usual.map_or(self.timeout, |usual| {
            Duration::from_secs_f64(TIMES_THE_USUAL * usual.max(LEAST_USUAL_SECONDS)).min(self.timeout)
        })
    }

    /// Starts a process for a pass; where its spec says so, it loads everything and then waits for its turn.
    pub fn start(&self, spec: &Spec) -> Result<Started<'_>> {
        let mut command = command(self.program(&spec.cell), self.choice, spec.pass)?;
        if self.choice != DeviceChoice::Cpu {
            prepare_cuda(&mut command, spec.memory_limit, self.device_memory, spec.alloc_conf.as_deref());
        }
        command.arg("--child").arg(serde_json::to_string(spec)?);
        command.stdin(if spec.waits { Stdio::piped() } else { Stdio::null() }).stderr(Stdio::piped());
        let mut child = command.spawn().context("starting a child process for a cell")?;
        let go = child.stdin.take();
        let stdout = child.stdout.take().context("the child has no standard output")?;
        let stderr = child.stderr.take().context("the child has no standard error")?;
        Ok(Started { go, ..Started::new(spec, Running::Started(child), stdout, stderr) })
    }

    /// Who runs a cell.
    fn program(&self, cell: &PlainCell) -> Program<'_> {
        match &self.python {
            Some(Ok(python)) if cell.is_reference() => Program::Reference(python),
            _ => Program::Own,
        }
    }
}

/// A process that has begun with a pass, or waits to be told to.
pub struct Started<'a> {
    spec: Spec,
    since: Instant,
    child: Running<'a>,
    lines: Receiver<String>,
    complaints: JoinHandle<String>,
    /// Tells it to begin.
    go: Option<ChildStdin>,
}

impl<'a> Started<'a> {
    fn new(spec: &Spec, child: Running<'a>, stdout: impl Read + Send + 'static, stderr: impl Read + Send + 'static) -> Started<'a> {
        let (lines, complaints) = (listen(stdout), gather(stderr));
        Started { spec: spec.clone(), since: Instant::now(), child, lines, complaints, go: None }
    }

    /// Waits until the process says that it has loaded everything; or ends, takes too long, or Ctrl-C comes, which finishing it finds out.
    pub fn wait_until_loaded(&self, timeout: Duration) {
        while !stopped() && self.since.elapsed() < timeout {
            // Before its turn it says nothing else.
            if !matches!(self.lines.recv_timeout(POLL_INTERVAL), Err(RecvTimeoutError::Timeout)) {
                break;
            }
        }
    }

    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Ends a process that is not needed any more.
    pub fn abandon(mut self) {
        self.child.end_group();
        let _ = self.child.wait();
    }

    /// Reads what the pass says to its end; none where Ctrl-C ended it. The time that it waited for its turn does not count.
    pub fn finish(self, timeout: Duration, is_left_out: bool) -> Option<PassRecord> {
        let Started { spec: Spec { cell, pass, round, .. }, since, mut child, lines, complaints, go } = self;
        let start = match go {
            None => since,
            Some(mut go) => {
                // One that has ended says below how.
                let _ = go.write_all(b"\n");
                Instant::now()
            }
        };
        let (mut samples, mut end) = (Vec::new(), None);
        let cut = loop {
            let left = timeout.saturating_sub(start.elapsed());
            match lines.recv_timeout(left.min(POLL_INTERVAL)) {
                Ok(line) => match serde_json::from_str(&line) {
                    Ok(ChildMessage::Ready) => {}
                    Ok(ChildMessage::Sample(sample)) => samples.push(sample),
                    Ok(ChildMessage::End { status, reason }) => end = Some((status, reason)),
                    Err(e) => end = Some((Status::Error, format!("a row that nobody understands ({e}): {line}"))),
                },
                Err(RecvTimeoutError::Disconnected) => break None,
                Err(RecvTimeoutError::Timeout) if stopped() => break Some(EndedEarly::Interrupted),
                Err(RecvTimeoutError::Timeout) if start.elapsed() >= timeout => break Some(EndedEarly::TimedOut),
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        if cut.is_some() {
            child.end_group();
        }
        let exit = child.wait();
        let complaints = complaints.join().unwrap_or_default();
        let (status, reason) = match cut {
            Some(EndedEarly::Interrupted) => return None,
            Some(EndedEarly::TimedOut) if is_left_out => {
                (Status::Timeout, format!("{LEFT_OUT} after {} s: by itself the experiment has more time", timeout.as_secs()))
            }
            Some(EndedEarly::TimedOut) => (Status::Timeout, format!("ended after {} s; --timeout allows more", timeout.as_secs())),
            None => {
                let crashed = || (Status::Crashed, exit.map_or_else(|e| format!("{e:#}"), |exit| exit_reason(exit, &complaints)));
                end.unwrap_or_else(crashed)
            }
        };
        if status != Status::Ok && status != Status::Invalid {
            samples.clear();
        }
        let seconds = Some(start.elapsed().as_secs_f64());
        Some(PassRecord { cell, pass, round, status, reason, seconds, samples })
    }
}

enum EndedEarly {
    Interrupted,
    TimedOut,
}

/// A child at work.
enum Running<'a> {
    Started(Child),
    Copied { id: u32, of: Program<'a>, templates: &'a mut Templates },
}

impl Running<'_> {
    fn end_group(&self) {
        let id = match self {
            Running::Started(child) => child.id(),
            Running::Copied { id, .. } => *id,
        };
        if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
            // It may have ended by itself meanwhile.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }

    fn wait(&mut self) -> Result<ExitStatus> {
        match self {
            Running::Started(child) => child.wait().context("waiting for a child process"),
            Running::Copied { of, templates, .. } => templates.wait(*of),
        }
    }
}

/// Reads a child's complaints as they come, so that it never waits for a full pipe, and keeps the last of them.
fn gather(mut stderr: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let (mut kept, mut chunk) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = stderr.read(&mut chunk) {
            kept.extend_from_slice(&chunk[..n]);
            let surplus = kept.len().saturating_sub(4096);
            kept.drain(..surplus);
        }
        String::from_utf8_lossy(&kept).into_owned()
    })
}

/// How a process ended before it was done, and the last line of its standard error.
fn exit_reason(exit: ExitStatus, complaints: &str) -> String {
    let how = match exit.signal() {
        Some(9) => "killed by signal 9; the kernel does that where memory runs out".to_string(),
        Some(signal) => format!("killed by signal {signal}"),
        None => format!("ended with {exit} before it was done"),
    };
    match complaints.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("{how}: {}", line.trim()),
        None => how,
    }
}
