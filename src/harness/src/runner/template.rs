//! A process that has loaded libtorch and done nothing else, of which a copy is made for each pass that opens no GPU.
//!
//! Loading takes a third of a second, nearly all of it the registration of libtorch's operators, and seconds in Python; a pass often takes
//! less. A copy is a process of its own like any child: no tensor was allocated before, no thread and no device was opened. It has the memory
//! layout of what it is a copy of, so each timed round has templates of its own. A pass that takes figures of the whole process is started
//! anew all the same: they would show that pages are shared.

use super::child;
use super::spec::Spec;
use super::start::{POLL_INTERVAL, Program, command, listen, prepare_cuda, stopped};
use crate::machine::DeviceChoice;
use crate::measure::SetUp;
use anyhow::{Context, Result, bail, ensure};
use record::protocol::Pass;
use rustix::process::{Pid, WaitOptions, setpgid, waitpid};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, PipeReader, Write, pipe};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use torch::{Forked, end_process, fork_process};

/// How long a template may take to answer: that it has loaded all and made a copy, or that a copy has ended that closed its pipes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A process that makes copies of itself, one at a time.
#[derive(Debug)]
pub struct ForkTemplate {
    process: Child,
    requests: ChildStdin,
    /// Its lines.
    answers: Receiver<String>,
}

/// A copy at work, and what it says.
#[derive(Debug)]
pub struct Copied {
    pub id: u32,
    pub stdout: PipeReader,
    pub stderr: PipeReader,
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    spec: Spec,
    /// Where the copy writes, as it finds it: pipes of the parent.
    stdout: PathBuf,
    stderr: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
enum ForkAnswer {
    Copied(u32),
    /// The status as the system tells it.
    Ended(i32),
    Failed(String),
}

/// Templates of this program and of its reference, each started when it is first needed.
#[derive(Debug, Default)]
pub struct Templates {
    own: TemplateSlot,
    reference: TemplateSlot,
}

#[derive(Debug, Default)]
pub enum TemplateSlot {
    #[default]
    Empty,
    Ready(ForkTemplate),
    /// It failed once. A process that is started anew says better what is wrong.
    Broken,
}

impl Templates {
    /// Has a copy begin with a pass; none where it takes a process that is started anew. A template ends with the thread that started it.
    pub fn copy(&mut self, program: Program, spec: &Spec, choice: DeviceChoice) -> Option<Copied> {
        let slot = self.prepare(program, spec, choice)?;
        let TemplateSlot::Ready(template) = slot else { return None };
        let copied = template.copy(spec);
        if copied.is_err() {
            *slot = TemplateSlot::Broken;
        }
        copied.ok()
    }

    /// Starts what a pass can be a copy of, where it is not there yet; none where it takes a process that is started anew.
    pub fn prepare(&mut self, program: Program, spec: &Spec, choice: DeviceChoice) -> Option<&mut TemplateSlot> {
        if !suits(choice, spec) {
            return None;
        }
        let slot = self.of(program);
        if let TemplateSlot::Empty = slot {
            *slot = ForkTemplate::start(program, choice, spec.pass).map_or(TemplateSlot::Broken, TemplateSlot::Ready);
        }
        Some(slot)
    }

    /// Waits until the copy of a program ends; fails where its template ended, and the copy with it.
    pub fn wait(&mut self, program: Program) -> Result<ExitStatus> {
        let slot = self.of(program);
        let TemplateSlot::Ready(template) = slot else { bail!("nothing was copied") };
        let ended = template.wait();
        if ended.is_err() {
            *slot = TemplateSlot::Broken;
        }
        ended
    }

    fn of(&mut self, program: Program) -> &mut TemplateSlot {
        match program {
            Program::Own => &mut self.own,
            Program::Reference(_) => &mut self.reference,
        }
    }
}

/// Whether a copy can run this pass. What a device or its allocator reads from the environment comes with a process's start.
pub fn suits(choice: DeviceChoice, spec: &Spec) -> bool {
    let as_it_is = spec.memory_limit.is_none() && spec.alloc_conf.is_none();
    match choice {
        _ if spec.anew => false,
        DeviceChoice::Cpu => true,
        DeviceChoice::Dry(_) | DeviceChoice::FakeCuda(_) => as_it_is && spec.pass != Pass::Time,
        DeviceChoice::Cuda(_) => false,
    }
}

impl ForkTemplate {
    fn start(program: Program, choice: DeviceChoice, pass: Pass) -> Result<ForkTemplate> {
        let mut command = command(program, choice, pass)?;
        if choice != DeviceChoice::Cpu {
            prepare_cuda(&mut command, None, None, None);
        }
        command.arg("--template").arg(std::process::id().to_string()).stdin(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().context("starting a process to copy")?;
        let requests = process.stdin.take().context("the template has no standard input")?;
        let stdout = process.stdout.take().context("the template has no standard output")?;
        Ok(ForkTemplate { process, requests, answers: listen(stdout) })
    }

    fn copy(&mut self, spec: &Spec) -> Result<Copied> {
        let (stdout, out) = pipe().context("making a pipe for a copy")?;
        let (stderr, err) = pipe().context("making a pipe for a copy")?;
        let own = std::process::id();
        let path = |end: &dyn AsRawFd| PathBuf::from(format!("/proc/{own}/fd/{}", end.as_raw_fd()));
        let spec = Spec { parent: self.process.id(), ..spec.clone() };
        let mut line = serde_json::to_vec(&Request { spec, stdout: path(&out), stderr: path(&err) })?;
        line.push(b'\n');
        self.requests.write_all(&line).context("asking for a copy")?;
        // The template has opened its ends before it tells of the copy; ours go here, so that the pipes end with it.
        match self.answer()? {
            ForkAnswer::Copied(id) => Ok(Copied { id, stdout, stderr }),
            other => bail!("asking for a copy: {other:?}"),
        }
    }

    fn wait(&mut self) -> Result<ExitStatus> {
        match self.answer()? {
            ForkAnswer::Ended(status) => Ok(ExitStatus::from_raw(status)),
            other => bail!("waiting for a copy: {other:?}"),
        }
    }

    fn answer(&mut self) -> Result<ForkAnswer> {
        let start = Instant::now();
        let line = loop {
            match self.answers.recv_timeout(POLL_INTERVAL) {
                Ok(line) => break line,
                Err(RecvTimeoutError::Disconnected) => bail!("the process that is copied ended"),
                Err(RecvTimeoutError::Timeout) => {
                    ensure!(start.elapsed() < TIMEOUT, "the process that is copied does not answer");
                    ensure!(!stopped(), "stopped");
                }
            }
        };
        serde_json::from_str(&line).with_context(|| format!("the process that is copied said '{line}'"))
    }
}

impl Drop for ForkTemplate {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The template's side: makes a copy for each request, and says how it ended.
pub fn serve(prepare: SetUp, parent: u32) -> ExitCode {
    match child::end_with_parent(parent).and_then(|()| serve_copies(prepare)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // The parent may be gone.
            let _ = tell(&ForkAnswer::Failed(format!("{e:#}")));
            ExitCode::FAILURE
        }
    }
}

fn serve_copies(prepare: SetUp) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?).context("--template is for the program's own use")?;
        let open = |path: &PathBuf| File::options().write(true).open(path).with_context(|| format!("opening {}", path.display()));
        let pipes = (open(&request.stdout)?, open(&request.stderr)?);
        let id = match fork_process()? {
            Forked::Copy => match join_pipes(pipes) {
                Ok(()) => child::run(prepare, &request.spec),
                Err(_) => end_process(1),
            },
            Forked::Original(id) => id,
        };
        drop(pipes);
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        // Both sides set the group, so that it is there before anyone ends it. The copy may have been faster, and may be gone.
        let _ = setpgid(pid, pid);
        tell(&ForkAnswer::Copied(id))?;
        let ended = waitpid(pid, WaitOptions::empty()).context("waiting for a copy")?;
        let (_, status) = ended.context("a copy that was waited for has not ended")?;
        tell(&ForkAnswer::Ended(status.as_raw()))?;
    }
    Ok(())
}

/// The copy's first steps: a group of its own, as any child's, and the parent's pipes.
fn join_pipes((stdout, stderr): (File, File)) -> Result<()> {
    let _ = setpgid(None, None);
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    rustix::stdio::dup2_stdout(stdout)?;
    rustix::stdio::dup2_stderr(stderr)?;
    Ok(())
}

fn tell(answer: &ForkAnswer) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{}", serde_json::to_string(answer)?).and_then(|()| stdout.flush()).context("telling the parent")
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::protocol::PlainCell;

    #[test]
    fn copies_suit_passes_without_own_environment() {
        let dry = DeviceChoice::Dry((1 << 30).into());
        let cell = PlainCell::parse("k=1").unwrap();
        let spec = |pass| Spec {
            cell: cell.clone(),
            pass,
            round: 1,
            device: "cpu".to_string(),
            threads: 1,
            seed: 1,
            memory_limit: None,
            baseline: cell.clone(),
            expected: None,
            exchange: None,
            writes_for_other_side: false,
            waits: false,
            anew: false,
            witness: None,
            reference: None,
            alloc_conf: None,
            parent: 1,
        };
        for choice in [DeviceChoice::Cpu, dry] {
            assert!(suits(choice, &spec(Pass::Check)) && suits(choice, &spec(Pass::Memory)));
            assert_eq!(suits(choice, &spec(Pass::Time)), choice == DeviceChoice::Cpu);
            assert!(!suits(choice, &Spec { anew: true, ..spec(Pass::Time) }));
        }
        assert!(!suits(DeviceChoice::Cuda(0), &spec(Pass::Memory)));
        // On the CPU a limit is the meter's; a simulated GPU's allocator reads it as it starts.
        let limited = Spec { memory_limit: Some(1 << 20), ..spec(Pass::Memory) };
        assert!(suits(DeviceChoice::Cpu, &limited) && !suits(dry, &limited));
        let configured = Spec { alloc_conf: Some("expandable_segments:True".to_string()), ..spec(Pass::Memory) };
        assert!(!suits(dry, &configured));
    }
}
