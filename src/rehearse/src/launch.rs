//! Runs a command under rehearsal and gathers what its processes told.

use super::answer::{Answer, ProcessAnswer, RehearsalVerdict, SimulatedGpu, process_answers};
use super::libraries::{Libraries, cache, libraries, remedy};
use super::replay::{self, Needs};
use super::session::{self, LeftProcesses, PythonSettings, Session};
use super::show::on_one_line;
use super::time::{Loading, Prediction, predict};
use super::trace::Trace;
use anyhow::{Context, Result, bail, ensure};
use sim::cards::{self, Card};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, fs, thread};

/// A command on a simulated GPU, and how it is run there. [`Rehearsal::new`] finds what that takes on this machine.
#[derive(Debug, Clone)]
pub struct Rehearsal {
    /// Program and arguments.
    pub command: Vec<OsString>,
    pub card: Card,
    /// Optimizer steps after which the command is ended; none for all.
    pub steps: Option<u32>,
    /// For the predicted time of a step: how many times as long as here the host takes between launches.
    pub host_factor: f64,
    /// GPUs that each process sees, 1 to 16.
    pub gpus: u32,
    /// How many such GPUs techniques that split over several are tried on.
    pub cards: u32,
    /// Rank and size of the job that the command is one process of; the others are not there.
    pub rank: Option<(u32, u32)>,
    /// A folder in which ranks leave the objects that they send, for those that are rehearsed after them.
    pub sent: Option<PathBuf>,
    /// Leave new parameters uninitialised.
    pub no_init: bool,
    /// Turn `torch.compile` off.
    pub eager: bool,
    /// Seconds after which the command is ended.
    pub timeout: Option<f64>,
    /// Read the meters and the clock of a real GPU, and simulate nothing; for [`what_if`](super::what_if::what_if) alone.
    pub measures: bool,
    /// Whether the command reads nothing, and nobody sees what it prints.
    pub is_silent: bool,
    /// Is told what goes on, a line at a time.
    pub progress: fn(&str),
    pub(super) libraries: Libraries,
    pub(super) variant: Variant,
}

/// What came of a rehearsal.
#[derive(Debug)]
pub struct RehearsalResult {
    pub answer: Answer,
    pub traces: Vec<Trace>,
}

/// The script's own exception, that is none of memory.
#[derive(Debug)]
pub struct ScriptFailed(pub String);

impl fmt::Display for ScriptFailed {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ScriptFailed {}

/// How a rehearsal differs from the one that was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Variant {
    /// Names of what `techniques.py` switches on.
    pub techniques: Vec<&'static str>,
    /// More of the environment.
    pub settings: Vec<(&'static str, String)>,
    /// Another command than the one given.
    pub command: Option<Vec<OsString>>,
    /// Whether floating-point operations are counted.
    pub counts: bool,
}

/// What a command under rehearsal left.
pub(super) struct SessionRun {
    status: ExitStatus,
    timed_out: bool,
    interrupted: bool,
    pub traces: Vec<Trace>,
    /// Whether a Python came up that had the hook, and one that found no torch.
    hooked: bool,
    without_torch: Option<String>,
    /// Why a process could not be rehearsed, which was ended before it did anything.
    not_set_up: Option<String>,
    /// The last line that a silent run wrote to its standard error.
    last_line_of_stderr: String,
}

impl SessionRun {
    /// How the command ended, and what it said to that where nobody saw it.
    pub fn end(&self) -> String {
        let end = match (self.status.signal(), self.status.code()) {
            (Some(signal), _) => format!("it was ended by signal {signal}"),
            (None, code) => format!("it ended with status {}", code.unwrap_or_default()),
        };
        if self.last_line_of_stderr.is_empty() { end } else { format!("{end}: {}", self.last_line_of_stderr) }
    }
}

/// Larger than any card, and an allocator with expandable segments can reserve it several times.
pub(super) const LARGE: u64 = 1 << 40;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// In the session's folder: why a process could not be rehearsed.
const FAILED: &str = "failed";

/// How long a command has to end by itself after an interruption.
const GRACE: Duration = Duration::from_secs(5);

impl Rehearsal {
    /// A rehearsal of three steps on one GPU, in silence.
    ///
    /// # Errors
    /// There is no folder in which the simulated GPU's libraries can be kept.
    pub fn new(command: Vec<OsString>, card: Card) -> Result<Rehearsal> {
        ensure!(!command.is_empty(), "there is no command to rehearse");
        let (libraries, variant) = (libraries()?, Variant::default());
        Ok(Rehearsal {
            command,
            card,
            steps: Some(3),
            host_factor: 1.0,
            gpus: 1,
            cards: 2,
            rank: None,
            sent: None,
            no_init: false,
            eager: false,
            timeout: None,
            measures: false,
            is_silent: true,
            progress: |_| {},
            libraries,
            variant,
        })
    }

    /// Runs the command and says what it needs.
    ///
    /// # Errors
    /// There is nothing to rehearse, or no whole answer; with the reason.
    pub fn rehearse(&self) -> Result<RehearsalResult> {
        let session = Session::new()?;
        let run = self.run(session.path(), self.card, self.is_silent)?;
        let mut answer = self.answer(&run)?;
        answer.quote();
        Ok(RehearsalResult { answer, traces: run.traces })
    }

    /// Adds the least memory that would do, which takes another process, and where the command does not fit, another run.
    pub fn find_needs(&self, found: &mut RehearsalResult) {
        let RehearsalResult { answer, traces } = found;
        if answer.verdict.fits() || answer.verdict == RehearsalVerdict::DoesNotFit {
            match self.needs(answer, traces) {
                Ok(needs) => answer.complete(needs, &self.card),
                Err(error) => answer.notes.push(format!("the least memory that would do could not be found: {error:#}")),
            }
        }
    }

    fn words(&self) -> &[OsString] {
        self.variant.command.as_ref().unwrap_or(&self.command)
    }

    fn command(&self, session: &Path, card: Card) -> Result<Command> {
        let settings = PythonSettings {
            libraries: &self.libraries.folder,
            compiled: &self.libraries.compiled,
            carried: &self.libraries.carried,
            measures: self.measures,
            steps: self.steps,
            gpus: self.gpus,
            cards: self.cards,
            world_size: self.rank.map(|(_, size)| size),
            rank: self.rank.map(|(rank, _)| rank),
            sent: self.sent.as_deref(),
            no_init: self.no_init,
            eager: self.eager,
            techniques: &self.variant.techniques,
            counts: self.variant.counts,
        };
        settings.write(session)?;
        let mut command = Command::new(&self.words()[0]);
        command.args(&self.words()[1..]);
        session::follow(&mut command, session, &self.libraries, !self.measures);
        if !self.measures {
            command
                .env("VRAMLAB_DRY_TAKEN", card.context.to_string())
                .env("VRAMLAB_DRY_DEVICES", self.gpus.to_string())
                .env(cards::ENVIRONMENT, card.environment())
                // Nothing is written outside of our own folders, and kernels for a simulated GPU are none that a real one should find.
                .env("USE_PYTORCH_KERNEL_CACHE", "0");
        }
        command.envs(self.variant.settings.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// The GPU, as an answer tells it.
    pub(super) fn gpu(&self) -> SimulatedGpu {
        let (memory, context) = (self.card.memory.cast_signed(), self.card.context.cast_signed());
        SimulatedGpu { name: self.card.to_string(), memory, context, count: self.gpus }
    }

    /// A run that prints nothing.
    pub(super) fn run_in_silence(&self) -> Result<SessionRun> {
        let session = Session::new()?;
        let run = self.run(session.path(), self.card, true)?;
        ensure!(!run.interrupted, "interrupted");
        Ok(run)
    }

    /// The same on a card that is large enough for anything.
    pub(super) fn on_a_large_card(&self) -> Self {
        Self { card: self.card.with_memory(LARGE), ..self.clone() }
    }

    pub(super) fn run(&self, session: &Path, card: Card, again: bool) -> Result<SessionRun> {
        let mut command = self.command(session, card)?;
        let mut heard = None;
        if again {
            let file = tempfile::tempfile().context("making a temporary file")?;
            let end = file.try_clone().context("opening a temporary file")?;
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(end);
            heard = Some(file);
        }
        // The terminal's Ctrl-C reaches the script, too, which ends by it; what it did until then is told.
        ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::SeqCst)).ok();
        let name = self.command[0].to_string_lossy();
        let mut child = command.spawn().with_context(|| format!("starting '{name}'; is it installed and spelled right?"))?;
        let (status, timed_out) = self.wait(&mut child, session)?;
        let mut run = SessionRun {
            status,
            timed_out,
            interrupted: INTERRUPTED.load(Ordering::SeqCst),
            traces: Vec::new(),
            hooked: false,
            without_torch: None,
            not_set_up: fs::read_to_string(session.join(FAILED)).ok(),
            last_line_of_stderr: heard.map_or_else(String::new, last_line),
        };
        for entry in fs::read_dir(session).with_context(|| format!("reading {}; did the script remove it?", session.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                if path.file_name() != Some(OsStr::new("bin")) {
                    run.traces.push(Trace::read(&path)?);
                }
                continue;
            }
            match path.extension().and_then(OsStr::to_str) {
                Some("without-torch") => run.without_torch = fs::read_to_string(&path).ok(),
                Some("python") => run.hooked = true,
                _ => {}
            }
        }
        // A folder's order is nobody's.
        run.traces.sort_by_key(|trace| (trace.process.rank, trace.process.id));
        Ok(run)
    }

    fn wait(&self, child: &mut Child, session: &Path) -> Result<(ExitStatus, bool)> {
        let began = Instant::now();
        let mut interrupted: Option<Instant> = None;
        let (mut compiles, mut left) = (false, LeftProcesses::none());
        loop {
            if let Some(status) = child.try_wait().context("waiting for the command")? {
                return Ok((status, false));
            }
            if INTERRUPTED.load(Ordering::SeqCst) && interrupted.is_none() {
                interrupted = Some(Instant::now());
            }
            let late = self.timeout.is_some_and(|limit| began.elapsed().as_secs_f64() > limit);
            if late
                || interrupted.is_some_and(|since| since.elapsed() > GRACE)
                || left.is_enough(session)
                || session.join(FAILED).exists()
            {
                return Ok((session::end(child)?, late));
            }
            // Of those that run at once one compiles.
            if let Some(version) = fs::read_to_string(session.join("compiling")).ok().filter(|text| !compiles && !text.is_empty()) {
                compiles = true;
                (self.progress)(&format!("compiling for PyTorch {version}, once; about a minute"));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// What the script needs of a card, where it ran as long as was wanted, and where it did not fit: then it is rehearsed once more on a
    /// card that is large enough for anything, in silence.
    ///
    /// # Errors
    /// That rehearsal did not come to its end, or PyTorch's allocator could not be asked.
    fn needs(&self, answer: &Answer, traces: &[Trace]) -> Result<Needs> {
        if answer.verdict.fits() {
            return replay::needed(self, &answer.processes, traces);
        }
        ensure!(
            answer.processes.iter().all(|process| process.caught.is_empty()),
            "the script goes on with less where memory runs out, so on a larger card it would do something else"
        );
        let run = self.on_a_large_card().run_in_silence()?;
        let again = answers(&run.traces, !run.status.success());
        ensure!(!run.timed_out, "on a larger card it had not ended when the time of --timeout was over");
        ensure!(again.iter().all(|a| a.out_of_memory.is_none() && a.exception.is_none()), "on a larger card {}", run.end());
        replay::needed(self, &again, &run.traces)
    }

    pub(super) fn answer(&self, run: &SessionRun) -> Result<Answer> {
        let name = self.command[0].to_string_lossy();
        if let Some(reason) = &run.not_set_up {
            bail!("{reason}");
        }
        if let Some(refused) = run.traces.iter().find_map(|trace| trace.refused.as_ref()) {
            bail!("{}", refused.lines().map(on_one_line).collect::<Vec<String>>().join("\n"));
        }
        if let Some(lost) = run.traces.iter().find_map(|trace| trace.lost.as_ref()) {
            let cache = cache()?;
            bail!("the trace is incomplete, so there is no answer: writing to {}: {lost}; {}", cache.display(), remedy(lost));
        }
        let processes = answers(&run.traces, !run.status.success());
        if processes.is_empty() {
            self.nothing(run, &name)?;
        }
        let enough = run.traces.iter().any(|trace| trace.stopped.is_some());
        let failed = !run.status.success() && !enough;
        let ran_out = processes.iter().any(|answer| answer.out_of_memory.is_some());
        let verdict = match () {
            () if ran_out => RehearsalVerdict::DoesNotFit,
            () if run.timed_out && !enough => RehearsalVerdict::TimedOut,
            () if run.interrupted && !enough => RehearsalVerdict::Interrupted,
            () if failed => RehearsalVerdict::ScriptFailed,
            () => RehearsalVerdict::Fits,
        };
        let worst = processes.first();
        let figure = |of: fn(&ProcessAnswer) -> i64| worst.map_or(0, of);
        let (memory, context) = (self.card.memory.cast_signed(), self.card.context.cast_signed());
        let on_device = figure(|p| p.peak_reserved) + context;
        let mut notes: Vec<String> = Vec::new();
        for note in run.traces.iter().flat_map(|trace| &trace.notes) {
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
        if run.timed_out && enough {
            notes.push("it had not ended by itself when the time of --timeout was over; its steps had been seen".to_string());
        }
        if failed && !run.timed_out && !run.interrupted && processes.iter().all(|process| process.exception.is_none()) {
            notes.push(format!("the command did not end well: {}", run.end()));
        }
        let (time, time_missing) = match self.time(run, worst.map_or(0, |answer| answer.steps)) {
            Ok(time) => (Some(time), None),
            Err(why) => (None, Some(why)),
        };
        Ok(Answer {
            schema: 1,
            command: self.words().iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            gpu: self.gpu(),
            verdict,
            no_code: run.traces.iter().find_map(|trace| trace.no_code.clone()),
            steps: worst.map_or(0, |answer| answer.steps),
            peak_requested: figure(|p| p.peak_requested),
            peak_allocated: figure(|p| p.peak_allocated),
            peak_reserved: figure(|p| p.peak_reserved),
            peak_on_device: on_device,
            headroom: memory - on_device,
            needs_at_least: None,
            smallest_card: None,
            timed_out_after: self.timeout.filter(|_| verdict == RehearsalVerdict::TimedOut),
            time,
            time_missing,
            processes,
            notes,
        })
    }

    /// Of the process whose steps take longest.
    fn time(&self, run: &SessionRun, steps: u32) -> Result<Prediction, String> {
        let predicted = |trace: &Trace| {
            let mut time = predict(trace, &self.card, steps, self.host_factor)?;
            time.loading = Loading::of(trace, &run.traces, &time, steps);
            Ok(time)
        };
        let mut tried: Vec<Result<Prediction, String>> = run.traces.iter().map(predicted).collect();
        tried.sort_by(|a, b| {
            let length = |one: &Result<Prediction, String>| one.as_ref().map_or(0.0, |time| time.step_seconds);
            length(b).total_cmp(&length(a))
        });
        tried.into_iter().next().unwrap_or_else(|| Err("nothing ran on the GPU".to_string()))
    }

    /// Why nothing was seen.
    fn nothing(&self, run: &SessionRun, name: &str) -> Result<()> {
        ensure!(!run.interrupted, "interrupted before '{name}' used the GPU");
        ensure!(!run.timed_out, "the time of --timeout was over before '{name}' used the GPU");
        ensure!(
            run.hooked || !run.traces.is_empty(),
            "'{name}' started no Python that vramlab could see; the command must start one, and not as another user or from a program that is linked statically"
        );
        if let Some(python) = run.without_torch.as_ref().filter(|_| run.traces.is_empty()) {
            bail!("{} has no PyTorch; install it there: {} -m pip install torch", python.trim(), python.trim());
        }
        let failed = !run.status.success() && run.traces.iter().all(|trace| trace.devices.is_none() && trace.exception.is_none());
        let when = if run.traces.is_empty() { "imported torch" } else { "used the GPU" };
        ensure!(!failed, "'{name}' never {when}: {}", run.end());
        ensure!(!run.traces.is_empty(), "'{name}' ran and never imported torch, so there is nothing to rehearse");
        ensure!(
            !run.status.success(),
            "'{name}' ran and never used the GPU; if it has a flag for the device, set it, as in --device cuda"
        );
        Ok(())
    }
}

/// The last line of a file with anything in it.
fn last_line(mut file: File) -> String {
    let mut end = Vec::new();
    let length = file.metadata().map_or(0, |file| file.len());
    // What cannot be read is not told.
    file.seek(SeekFrom::Start(length.saturating_sub(4096))).and_then(|_| file.read_to_end(&mut end)).ok();
    let end = String::from_utf8_lossy(&end);
    on_one_line(end.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default())
}

/// What each process needs of each card, the worst first. Those that used none are told where all are such.
fn answers(traces: &[Trace], command_failed: bool) -> Vec<ProcessAnswer> {
    let mut answers: Vec<ProcessAnswer> = traces.iter().flat_map(|trace| process_answers(trace, command_failed)).collect();
    if answers.iter().any(|answer| answer.peak_reserved > 0 || answer.out_of_memory.is_some()) {
        answers.retain(|answer| answer.peak_reserved > 0 || answer.out_of_memory.is_some());
    }
    answers.sort_by_key(|answer| (answer.out_of_memory.is_none(), -answer.peak_reserved));
    answers
}
