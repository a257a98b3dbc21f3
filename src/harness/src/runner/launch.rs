//! The parent's side of a child process: start it, read its rows, end it in time.

use super::spec::{ChildMessage, Spec};
use super::start::{POLL_INTERVAL, Program, command, prepare_cuda, stopped};
use super::template::{Copied, Templates};
use crate::machine::DeviceChoice;
use anyhow::{Context, Result};
use record::protocol::{Pass, PlainCell};
use record::results::{PassRecord, Status};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Runs one pass over one cell in a process of its own; `None` where Ctrl-C ended it. Where there are templates it may be a copy of one.
///
/// # Errors
/// No process can be started.
pub fn launch(
    program: Program,
    templates: Option<&mut Templates>,
    spec: &Spec,
    cell: &PlainCell,
    round: u32,
    device: (DeviceChoice, Option<u64>),
    timeout: Duration,
) -> Result<Option<PassRecord>> {
    Started::new(begin(program, templates, spec, device)?, None).finish(spec.pass, cell, round, timeout)
}

/// A process that has begun with a pass, or waits to be told to.
pub struct Started<'a> {
    since: Instant,
    child: Running<'a>,
    lines: Receiver<String>,
    reader: JoinHandle<()>,
    complaints: JoinHandle<String>,
    /// Tells it to begin.
    go: Option<ChildStdin>,
}

impl<'a> Started<'a> {
    /// A process that loads everything and then waits; its spec says so, too.
    ///
    /// # Errors
    /// No process can be started.
    pub fn ahead(program: Program<'a>, spec: &Spec, device: (DeviceChoice, Option<u64>)) -> Result<Started<'a>> {
        let (mut child, stdout, stderr) = begin(program, None, spec, device)?;
        let go = if let Running::Started(child) = &mut child { child.stdin.take() } else { None };
        Ok(Started::new((child, stdout, stderr), go))
    }

    fn new((child, stdout, stderr): (Running<'a>, Said, Said), go: Option<ChildStdin>) -> Started<'a> {
        let (sender, lines) = channel();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Started { since: Instant::now(), child, lines, reader, complaints: gather(stderr), go }
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

    /// Ends a process that is not needed any more.
    pub fn abandon(mut self) {
        self.child.end_group();
        let _ = self.child.wait();
    }

    /// Reads what the pass says to its end; none where Ctrl-C ended it. The time that it waited for its turn does not count.
    pub fn finish(self, pass: Pass, cell: &PlainCell, round: u32, timeout: Duration) -> Result<Option<PassRecord>> {
        let Started { since, mut child, lines, reader, complaints, go } = self;
        let start = match go {
            None => since,
            Some(mut go) => {
                // One that has ended says below how.
                let _ = go.write_all(b"\n");
                Instant::now()
            }
        };
        let mut samples = Vec::new();
        let mut end = None;
        let mut cut = None;
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            match lines.recv_timeout(left.min(POLL_INTERVAL)) {
                Ok(line) => match serde_json::from_str(&line) {
                    Ok(ChildMessage::Ready) => {}
                    Ok(ChildMessage::Sample(sample)) => samples.push(sample),
                    Ok(ChildMessage::End { status, reason }) => end = Some((status, reason)),
                    Err(e) => end = Some((Status::Error, format!("a row that nobody understands ({e}): {line}"))),
                },
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if stopped() => {
                    cut = Some(Cut::Interrupted);
                    break;
                }
                Err(RecvTimeoutError::Timeout) if start.elapsed() >= timeout => {
                    cut = Some(Cut::TimedOut);
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        if cut.is_some() {
            child.end_group();
        }
        let exit = child.wait();
        let _ = reader.join();
        let complaints = complaints.join().unwrap_or_default();
        let (status, reason) = match cut {
            Some(Cut::Interrupted) => return Ok(None),
            Some(Cut::TimedOut) => (Status::Timeout, format!("ended after {} s; --timeout allows more", timeout.as_secs())),
            None => {
                let crashed = || (Status::Crashed, exit.map_or_else(|e| format!("{e:#}"), |exit| exit_reason(exit, &complaints)));
                end.unwrap_or_else(crashed)
            }
        };
        if status != Status::Ok && status != Status::Invalid {
            samples.clear();
        }
        let seconds = Some(start.elapsed().as_secs_f64());
        Ok(Some(PassRecord { cell: cell.clone(), pass, round, status, reason, seconds, samples }))
    }
}

enum Cut {
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

/// A stream of what a child says.
type Said = Box<dyn Read + Send>;

/// Begins with a pass; gives the child with its standard output and error.
fn begin<'a>(
    program: Program<'a>,
    templates: Option<&'a mut Templates>,
    spec: &Spec,
    (choice, device_memory): (DeviceChoice, Option<u64>),
) -> Result<(Running<'a>, Said, Said)> {
    if let Some(templates) = templates
        && let Some(Copied { id, stdout, stderr }) = templates.copy(program, spec, choice)
    {
        return Ok((Running::Copied { id, of: program, templates }, Box::new(stdout), Box::new(stderr)));
    }
    let mut command = command(program, choice)?;
    if choice != DeviceChoice::Cpu {
        prepare_cuda(&mut command, spec.memory_limit, device_memory, spec.alloc_conf.as_deref());
    }
    command.arg("--child").arg(serde_json::to_string(spec)?);
    command.stdin(if spec.waits { Stdio::piped() } else { Stdio::null() }).stderr(Stdio::piped());
    let mut child = command.spawn().context("starting a child process for a cell")?;
    let stdout = child.stdout.take().context("the child has no standard output")?;
    let stderr = child.stderr.take().context("the child has no standard error")?;
    Ok((Running::Started(child), Box::new(stdout), Box::new(stderr)))
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
pub(crate) fn exit_reason(exit: ExitStatus, complaints: &str) -> String {
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
