//! The parent's side of a child process: start it, read its rows, end it in time.

use super::python::Python;
use super::template::{Copied, Templates};
use crate::dry;
use crate::machine::DeviceChoice;
use crate::protocol::{Cell, Pass, Profile, Relation};
use crate::results::{PassRecord, Sample, Status};
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a child is to do; its one argument.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    pub cell: String,
    pub pass: Pass,
    pub profile: Profile,
    pub device: String,
    pub threads: u32,
    pub seed: u32,
    pub memory_limit: Option<u64>,
    /// What a check compares the cell with.
    pub baseline: String,
    /// The relation to the baseline that a twin must see in a check; a child of our own has the protocol.
    pub expected: Option<Relation>,
    /// What our side of the cell and its twin hand to each other, where both do the very same.
    pub exchange: Option<Exchange>,
    /// Write the cell's start for the twin, and nothing else.
    pub hand_over: bool,
    /// What a twin in Python needs besides; none for a child of our own.
    pub twin: Option<ForTwin>,
    /// Settings of the caching allocator that the cell asks for.
    pub alloc_conf: Option<String>,
    /// Where the pass keeps files; none where it keeps none.
    pub files: Option<PathBuf>,
    pub parent: u32,
}

impl Spec {
    /// A pass over a cell by itself: nothing to compare with, nothing limited, shared or kept; one thread.
    pub fn alone(cell: &Cell, pass: Pass, choice: DeviceChoice) -> Spec {
        Spec {
            cell: cell.to_string(),
            pass,
            profile: Profile::Quick,
            device: choice.to_string(),
            threads: 1,
            seed: 1,
            memory_limit: None,
            baseline: cell.to_string(),
            expected: None,
            exchange: None,
            hand_over: false,
            twin: None,
            alloc_conf: None,
            files: None,
            parent: std::process::id(),
        }
    }
}

/// Files by which our side of a cell and its twin in Python share tensors.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Exchange {
    /// What the cell begins with, by name: ours writes it, the twin reads it.
    pub start: PathBuf,
    /// What came out of the twin's step: the check of ours compares its own with it.
    pub outcome: PathBuf,
}

/// What a twin in Python needs that a child of our own has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ForTwin {
    /// The library that counts the CPU's tensors and reads settings, as we do.
    pub meter: PathBuf,
    /// Our settings, which must be the twin's, too.
    pub settings: BTreeMap<String, String>,
    /// File of the libtorch that both run on.
    pub libtorch: PathBuf,
}

/// A line from the child.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Message {
    Sample(Sample),
    End { status: Status, reason: String },
}

/// Who runs a cell.
#[derive(Debug, Clone, Copy)]
pub enum Program<'a> {
    /// This program.
    Own,
    /// The experiment's twin in Python.
    Twin(&'a Python),
}

/// Set by Ctrl-C; read here and between cells.
pub static STOP: AtomicBool = AtomicBool::new(false);

/// How often a waiting parent looks at [`STOP`]. Rows of a child wake it at once.
pub const GLANCE: Duration = Duration::from_millis(50);

/// Runs one pass over one cell in a process of its own; `None` where Ctrl-C ended it. Where there are templates it may be a copy of one.
///
/// # Errors
/// No process can be started.
pub fn launch(
    program: Program,
    templates: Option<&mut Templates>,
    spec: &Spec,
    cell: &Cell,
    round: u32,
    (choice, device_memory): (DeviceChoice, Option<u64>),
    timeout: Duration,
) -> Result<Option<PassRecord>> {
    let start = Instant::now();
    let (mut child, stdout, stderr) = begin(program, templates, spec, choice, device_memory)?;
    let (sender, lines) = channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let complaints = gather(stderr);
    let mut samples = Vec::new();
    let mut end = None;
    let mut cut = None;
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        match lines.recv_timeout(left.min(GLANCE)) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Message::Sample(sample)) => samples.push(sample),
                Ok(Message::End { status, reason }) => end = Some((status, reason)),
                Err(e) => end = Some((Status::Error, format!("a row that nobody understands ({e}): {line}"))),
            },
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if STOP.load(Ordering::SeqCst) => {
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
            end.unwrap_or_else(|| (Status::Crashed, exit.map_or_else(|e| format!("{e:#}"), |exit| last_words(exit, &complaints))))
        }
    };
    if status != Status::Ok && status != Status::Invalid {
        samples.clear();
    }
    let seconds = Some(start.elapsed().as_secs_f64());
    Ok(Some(PassRecord { cell: cell.clone(), pass: spec.pass, round, status, reason, seconds, samples }))
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
    choice: DeviceChoice,
    device_memory: Option<u64>,
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
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().context("starting a child process for a cell")?;
    let stdout = child.stdout.take().context("the child has no standard output")?;
    let stderr = child.stderr.take().context("the child has no standard error")?;
    Ok((Running::Started(child), Box::new(stdout), Box::new(stderr)))
}

/// The command that starts a program; what it is to do, and what it hears, are still to be added.
pub fn command(program: Program, choice: DeviceChoice) -> Result<Command> {
    let mut command = match program {
        Program::Own => Command::new(std::env::current_exe().context("finding this program's own file")?),
        Program::Twin(python) => python.command(),
    };
    // A group of its own: the terminal's Ctrl-C reaches the parent alone, and the end of the group is the end of all it started.
    command.stdout(Stdio::piped()).process_group(0);
    match choice {
        // A cell of the CPU sees no GPU, also on a machine that has one.
        DeviceChoice::Cpu => drop(command.env("CUDA_VISIBLE_DEVICES", "")),
        DeviceChoice::Dry(card) => dry::prepare(&mut command, card)?,
        DeviceChoice::Cuda(_) => {}
    }
    Ok(command)
}

/// Sets the environment of a child that will use CUDA: settings of the allocator beside those that are set already, and a limit on its
/// memory where one is given and the device's size is known.
pub(crate) fn prepare_cuda(command: &mut Command, limit: Option<u64>, device_memory: Option<u64>, alloc_conf: Option<&str>) {
    // NVML counts GPUs by their place on the bus.
    command.env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    let fraction = limit.zip(device_memory).map(|(limit, total)| (limit as f64 / total as f64).min(1.0));
    let set = std::env::var("PYTORCH_ALLOC_CONF").ok().filter(|set| !set.is_empty());
    let settings: Vec<String> = set
        .into_iter()
        .chain(alloc_conf.map(str::to_string))
        .chain(fraction.map(|fraction| format!("per_process_memory_fraction:{fraction:.9}")))
        .collect();
    if !settings.is_empty() {
        command.env("PYTORCH_ALLOC_CONF", settings.join(","));
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

/// How a process ended that should have said more, and the last line that it left.
pub(crate) fn last_words(exit: ExitStatus, complaints: &str) -> String {
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
