//! Runs a command under rehearsal, and keeps what its processes wrote.

use super::clock::{ClockServer, Clocks};
use super::launcher::ranks_of_launcher;
use super::libraries::{Libraries, libraries};
use super::session::{self, Rest, Running, Session};
use super::zygote::Zygotes;
use super::{caches, held};
use crate::capture::held::HeldBack;
use crate::capture::host::{killed_for_memory, memory_of_this_machine};
use crate::capture::plain::on_one_line;
use crate::capture::process::VERSION;
use crate::capture::session::{Capture, FAILED, script_of};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sim::cards::{self, Card};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{fs, thread};
use tempfile::TempDir;

/// Of each process, each operator's number and what the host took, in nanoseconds.
pub type HostTimes = Vec<Vec<(u32, u64)>>;

/// A command on a simulated GPU, and how it is run there. [`Rehearsal::new`] finds what that takes on this machine.
#[derive(Debug, Clone)]
pub struct Rehearsal {
    /// Program and arguments.
    pub command: Vec<OsString>,
    pub card: Card,
    /// Optimizer steps after which the command is ended; none for all.
    pub steps: Option<u32>,
    /// Forward passes after which a command without an optimizer is ended, 0 for none; without it those of loops that have no end.
    pub passes: Option<u32>,
    /// What a server is asked once it listens: how many requests, tokens of each, and tokens that each is to be answered with.
    pub requests: Option<(u32, u32, u32)>,
    /// For the predicted time of a step: how many times as long as here the host takes between launches.
    pub host_factor: Option<f64>,
    /// Of each process of the command's first rehearsal what the host took, by operator: rehearsals on other cards have that, too.
    pub host_times: Arc<OnceLock<HostTimes>>,
    /// GPUs of a machine, 1 to 64; without it one, as many as a launcher starts ranks, or of a job of many the eight that such machines have.
    pub gpus: Option<u32>,
    /// How many kernels later than at once what is under way on a stream is over.
    pub lag: u32,
    /// How many such GPUs techniques that split over several are tried on.
    pub cards: u32,
    /// Rank and size of the job that the command is one process of; the others are not there.
    pub rank: Option<(u32, u32)>,
    /// A folder in which ranks leave what they say to others, for those that are rehearsed after them.
    pub sent: Option<PathBuf>,
    /// The same of a rank that is rehearsed alone: what the first one says, once that was asked for.
    pub(crate) told: Arc<OnceLock<TempDir>>,
    /// What the command's launcher would add to the environment of each rank, where it was left out.
    pub(crate) launched: Vec<(String, String)>,
    /// Give the training the largest batch of its DataLoader, too.
    pub longest: bool,
    /// Whether rows are made for data sets that are not there, and of which columns.
    pub fake_data: Option<String>,
    /// Bytes of memory that the target's host has; none for as many as this one has.
    pub host_memory: Option<u64>,
    /// Leave new parameters uninitialised.
    pub no_init: bool,
    /// Turn `torch.compile` off.
    pub eager: bool,
    /// Have the script's own clocks advance by predicted time.
    pub clock: bool,
    /// Who predicts it.
    pub clocks: Clocks,
    /// Seconds after which the command is ended.
    pub timeout: Option<f64>,
    /// Read the meters and the clock of a real GPU, and simulate nothing; for [`what_if`](crate::what_if::what_if) alone.
    pub measures: bool,
    /// Whether what the command writes is written; else it is held back, for the answer to tell.
    pub writes: bool,
    /// A folder for what was held back.
    pub keep_writes: Option<PathBuf>,
    /// Whether the command reads nothing, and nobody sees what it prints.
    pub is_silent: bool,
    /// Whether the standard output is somebody else's: what the command prints there goes to the standard error.
    pub leaves_stdout: bool,
    /// Receives what goes on, a line at a time.
    pub progress: fn(&str),
    pub(crate) libraries: Libraries,
    pub(crate) variant: Variant,
    /// Where rehearsals may be copies of one process.
    pub(crate) zygotes: Option<Arc<Zygotes>>,
}

/// Whether what a command prints is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    Shown,
    Silent,
}

/// How a rehearsal differs from the one that was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Variant {
    /// Names of what `python/vramlab_rehearsal/techniques` switches on.
    pub techniques: Vec<&'static str>,
    /// More of the environment.
    pub settings: Vec<(&'static str, String)>,
    /// Another command than the one given.
    pub command: Option<Vec<OsString>>,
    /// Whether floating-point operations are counted.
    pub counts: bool,
    /// What `replaying.py` is to do in the place of the script, and with what.
    pub replay: Option<(&'static str, Vec<u8>)>,
}

/// Why a rehearsal of several gave nothing.
pub(crate) const WAS_INTERRUPTED: &str = "interrupted";

/// Whether Ctrl-C or SIGTERM came to this process since they were followed.
pub fn was_interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Has them end what this process started, and not the process itself.
pub(crate) fn follow_interruptions() {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::SeqCst)).ok();
}

/// Larger than any card, and an allocator with expandable segments can reserve it several times.
pub(crate) const LARGE: u64 = 1 << 40;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// After so long it reports what goes on; then after twice as long, and so on.
const QUIET: Duration = Duration::from_secs(20);

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
            passes: None,
            requests: None,
            host_factor: None,
            host_times: Arc::default(),
            gpus: None,
            lag: 0,
            cards: 2,
            rank: None,
            sent: None,
            told: Arc::default(),
            launched: Vec::new(),
            longest: false,
            fake_data: None,
            host_memory: None,
            no_init: false,
            eager: false,
            clock: false,
            clocks: |_, _| None,
            timeout: None,
            measures: false,
            writes: false,
            keep_writes: None,
            is_silent: true,
            leaves_stdout: false,
            progress: |_| {},
            libraries,
            variant,
            zygotes: Zygotes::shared(false).map(Arc::new),
        })
    }

    fn gpus_of_a_machine(&self) -> u32 {
        let of_a_job = || self.rank.map(|(_, size)| size.min(8));
        self.gpus.or_else(of_a_job).or_else(|| ranks_of_launcher(self.words())).unwrap_or(1)
    }

    fn sent(&self) -> Option<&Path> {
        self.sent.as_deref().or_else(|| self.told.get().map(TempDir::path))
    }

    /// What the first rank says to the others.
    fn ask_first_rank(&self) -> Result<()> {
        let folder = tempfile::tempdir().context("making a folder for what ranks send each other")?;
        let rank = self.rank.map(|(_, size)| (0, size));
        (self.progress)("this rank waits for what rank 0 says, which is rehearsed first");
        Self { rank, sent: Some(folder.path().to_owned()), ..self.clone() }.run(Output::Silent)?;
        // Somebody else may have asked meanwhile.
        let _ = self.told.set(folder);
        Ok(())
    }

    fn words(&self) -> &[OsString] {
        self.variant.command.as_ref().unwrap_or(&self.command)
    }

    /// `settings.json` in the session's folder, which Python reads into `settings`. What C++ reads, in any process, is in the environment
    /// ([`session::follow`]).
    fn settings(&self, clock: Option<&ClockServer>) -> Result<Value> {
        let text = |path: &Path| path.to_str().map(str::to_string).with_context(|| format!("{} is no text", path.display()));
        let Libraries { folder, compiled, carried, graphs, hub } = &self.libraries;
        // Sixteen of this rehearsal's own, above those that the system gives away.
        static REHEARSED: AtomicU32 = AtomicU32::new(0);
        let ports = 61_000 + process::id().wrapping_mul(8).wrapping_add(REHEARSED.fetch_add(1, Ordering::Relaxed)) % 283 * 16;
        Ok(json!({
            // Of the trace, which its reader looks for; and whom to ask for predicted time.
            "version": VERSION, "clock": clock.map(|server| &server.name), "clocks": self.clock, "ports": ports,
            "steps": self.steps, "passes": self.passes, "requests": self.requests, "gpus": self.gpus, "cards": self.cards,
            "rank": self.rank, "sent": self.sent().map(text).transpose()?,
            "longest": self.longest, "fake_data": self.fake_data, "no_init": self.no_init, "eager": self.eager,
            "measures": self.measures, "writes": self.writes,
            "techniques": self.variant.techniques, "counts": self.variant.counts,
            "replay": self.variant.replay.as_ref().map(|(function, _)| function),
            "libraries": text(folder)?, "compiled": text(compiled)?, "carried": text(carried)?,
            "graphs": text(graphs)?, "hub": text(hub)?,
        }))
    }

    fn write_settings(&self, session: &Path) -> Result<Option<ClockServer>> {
        let ask = || ClockServer::new(session, self.clocks, self.card, self.host_factor);
        let clock = (!self.measures).then(ask).flatten();
        let path = session.join("settings.json");
        let text = self.settings(clock.as_ref())?.to_string();
        let write = || -> std::io::Result<()> {
            let asked = self.variant.replay.iter().map(|(_, asked)| fs::write(session.join("replay"), asked));
            asked.collect::<std::io::Result<()>>()?;
            fs::write(&path, text)
        };
        write().with_context(|| format!("writing {}", path.display()))?;
        Ok(clock)
    }

    fn command(&self, session: &Session) -> Result<Command> {
        let mut command = Command::new(&self.words()[0]);
        command.args(&self.words()[1..]);
        session::follow(&mut command, session.path(), &self.libraries, !self.measures);
        if !self.measures {
            command
                .env("VRAMLAB_DRY_TAKEN", self.card.context.to_string())
                .env("VRAMLAB_DRY_CODE", self.card.code.to_string())
                .env("VRAMLAB_DRY_DEVICES", self.gpus_of_a_machine().to_string())
                .env("VRAMLAB_DRY_LAG", self.lag.to_string())
                .env(cards::ENVIRONMENT, self.card.environment())
                // Nothing is written outside of our own folders, and kernels for a simulated GPU are none that a real one should find.
                .env("USE_PYTORCH_KERNEL_CACHE", "0");
        }
        if let Some((rank, size)) = self.rank {
            let local = self.gpus_of_a_machine().min(size);
            // As a launcher sets them: scripts read them before they import torch.
            let numbers = [("RANK", rank), ("WORLD_SIZE", size), ("LOCAL_RANK", rank % local), ("LOCAL_WORLD_SIZE", local)];
            command.envs(numbers.map(|(name, number)| (name, number.to_string()))).env("GROUP_RANK", (rank / local).to_string());
            command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")]);
        }
        if !self.writes {
            held::hold(&mut command, session, &self.libraries, self.sent())?;
        }
        command.envs(self.launched.iter().map(|(name, value)| (name, value)));
        command.envs(self.variant.settings.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// Runs the command, and gives what it left, whose files are there as long as the session is.
    pub(crate) fn run(&self, output: Output) -> Result<(Capture, Session)> {
        let words: Vec<String> = self.words().iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let (began, killed) = (Instant::now(), killed_for_memory());
        let run = |zygotes| -> Result<_> {
            // A clock answers as long as it is there.
            let (mut started, _clock) = start(self, output, zygotes, &words)?;
            let ended = wait(self, &mut started.command, started.session.path())?;
            Ok((started, ended))
        };
        let (mut started, mut ended) = run(self.zygotes.as_deref())?;
        if started.session.path().join("anew").exists() {
            self.zygotes.iter().for_each(|zygotes| zygotes.leave_out(self.words()));
            (started, ended) = run(None)?;
        }
        if started.session.path().join("wanted").exists() && self.sent().is_none() {
            self.ask_first_rank()?;
            (started, ended) = run(self.zygotes.as_deref())?;
        }
        let (session, (status, why)) = (started.session.path(), ended);
        caches::keep_downloads(session);
        let capture = Capture {
            gpus: self.gpus_of_a_machine(),
            lag: self.lag,
            host_factor: self.host_factor,
            timeout: self.timeout,
            host_memory: self.host_memory.or_else(|| memory_of_this_machine("MemTotal:")).unwrap_or(0),
            killed: killed_for_memory().saturating_sub(killed),
            seconds: began.elapsed().as_secs_f64(),
            load: load(),
            cores: thread::available_parallelism().map_or(1, usize::from),
            status: status.into_raw(),
            timed_out: why == Some(EndedFor::ItsTime),
            waited: why == Some(EndedFor::Waiting),
            interrupted: was_interrupted(),
            last_line_of_stderr: started.heard.as_mut().map_or_else(String::new, last_line),
            held: HeldBack::read(session)?,
            ..Capture::new(words, self.card, session)
        };
        Ok((capture.of_session()?, started.session))
    }

    /// A run that prints nothing.
    pub(crate) fn run_in_silence(&self) -> Result<Capture> {
        let (capture, _) = self.run(Output::Silent)?;
        ensure!(!capture.interrupted, WAS_INTERRUPTED);
        Ok(capture)
    }

    /// The same, one of so many: a copy of a process that has imported PyTorch, where nobody sees what it prints.
    ///
    /// # Errors
    /// There is no folder for temporary files.
    pub fn in_copies(&self, count: usize) -> Result<Self> {
        const MANY: usize = 8;
        let more = count >= MANY;
        let zygotes = match Zygotes::shared(more) {
            Some(shared) => Some(shared),
            None => Zygotes::own(more)?,
        };
        Ok(Self { zygotes: zygotes.map(Arc::new), ..self.clone() })
    }

    /// Several, in copies of one process.
    ///
    /// # Errors
    /// As of one.
    pub fn all_in_copies(rehearsals: &[Self]) -> Result<Vec<Self>> {
        let Some(first) = rehearsals.first() else { return Ok(Vec::new()) };
        let zygotes = first.in_copies(rehearsals.len())?.zygotes;
        Ok(rehearsals.iter().map(|one| Self { zygotes: zygotes.clone(), ..one.clone() }).collect())
    }

    /// The same on a card that is large enough for anything.
    pub(crate) fn on_a_large_card(&self) -> Self {
        Self { card: self.card.with_memory(LARGE), ..self.clone() }
    }
}

/// The mean of the last minute, for each core.
fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
    load / thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
}

/// A command that runs.
struct Started {
    session: Session,
    command: Running,
    /// What it says on the standard error, where nobody else hears it.
    heard: Option<File>,
}

fn start(
    rehearsal: &Rehearsal,
    output: Output,
    zygotes: Option<&Zygotes>,
    words: &[String],
) -> Result<(Started, Option<ClockServer>)> {
    let session = Session::new()?;
    let clock = rehearsal.write_settings(session.path())?;
    let mut command = rehearsal.command(&session)?;
    let mut heard = None;
    let own = |file: &dyn AsFd| file.as_fd().try_clone_to_owned();
    let mut files = || -> std::io::Result<[OwnedFd; 3]> {
        Ok(match output {
            Output::Silent => {
                let nowhere = File::options().read(true).write(true).open("/dev/null")?;
                let file = heard.insert(tempfile::tempfile()?);
                [own(&nowhere)?, own(&nowhere)?, own(file)?]
            }
            Output::Shown => {
                let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
                [own(&std::io::stdin())?, if rehearsal.leaves_stdout { own(&stderr)? } else { own(&stdout)? }, own(&stderr)?]
            }
        })
    };
    let files = files().context("opening the standard files")?;
    // The terminal's Ctrl-C reaches the script, too, which ends by it; what it did until then is reported.
    follow_interruptions();
    look_for_script(words)?;
    let is_copied = |zygotes: &&Zygotes| zygotes.is_shared() || output == Output::Silent;
    let copy = zygotes.filter(is_copied).filter(|_| !rehearsal.measures && rehearsal.variant.replay.is_none());
    let command = match copy.and_then(|zygotes| zygotes.copy(&command, &files)) {
        Some(copy) => Running::Copy(copy),
        None => {
            let [stdin, stdout, stderr] = files;
            let child = command.stdin(stdin).stdout(stdout).stderr(stderr).spawn();
            Running::Process(child.map_err(|error| not_started(words, error))?)
        }
    };
    Ok((Started { session, command, heard }, clock))
}

/// Why a command was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndedFor {
    ItsTime,
    /// It waited for what was stopped.
    Waiting,
    /// Ctrl-C, a process that could not be rehearsed, or it had ended and left some that do nothing.
    Others,
}

fn wait(rehearsal: &Rehearsal, command: &mut Running, session: &Path) -> Result<(ExitStatus, Option<EndedFor>)> {
    let began = Instant::now();
    let mut interrupted: Option<Instant> = None;
    let (mut compiles, mut left_since, mut rest) = (false, None, Rest::default());
    let mut silence = QUIET;
    loop {
        if let Some(status) = command.try_wait()? {
            return Ok((status, None));
        }
        if was_interrupted() && interrupted.is_none() {
            interrupted = Some(Instant::now());
        }
        let why = match () {
            () if rehearsal.timeout.is_some_and(|limit| began.elapsed().as_secs_f64() > limit) => Some(EndedFor::ItsTime),
            () if interrupted.is_some_and(|since| since.elapsed() > GRACE) => Some(EndedFor::Others),
            () if session::has_left_nothing(session, &mut left_since) || session.join(FAILED).exists() => Some(EndedFor::Others),
            () if rest.is_long(session, command.id()) => Some(EndedFor::Waiting),
            () => None,
        };
        if let Some(why) = why {
            return Ok((session::end(command)?, Some(why)));
        }
        // Of those that run at once one compiles.
        if let Some(version) = fs::read_to_string(session.join("compiling")).ok().filter(|text| !compiles && !text.is_empty()) {
            compiles = true;
            (rehearsal.progress)(&format!("compiling for PyTorch {version}, once; about a minute"));
        }
        if began.elapsed() > silence && !rehearsal.is_silent {
            let names = rehearsal.variant.techniques.join(" + ");
            let with = if names.is_empty() { names } else { format!(" with {names}") };
            (rehearsal.progress)(&format!(
                "still running{with} after {} s: {}; Ctrl-C stops it",
                silence.as_secs(),
                going_on(session)
            ));
            silence *= 2;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// What a Python would only say in its own words.
fn look_for_script(command: &[String]) -> Result<()> {
    let Some(script) = script_of(command) else { return Ok(()) };
    if script.extension().is_some_and(|end| end == "ipynb") {
        bail!("{}", notebook(script));
    }
    let from =
        if script.is_absolute() { String::new() } else { format!(" in {}", std::env::current_dir().unwrap_or_default().display()) };
    // A name that is no text stands here with other characters.
    let is_text = !script.to_string_lossy().contains(char::REPLACEMENT_CHARACTER);
    ensure!(
        script.exists() || !is_text,
        "there is no file '{}'{from}; is it spelled right, and is this its folder?",
        script.display()
    );
    Ok(())
}

/// Why the command cannot be started, and how it can.
fn not_started(command: &[String], error: std::io::Error) -> anyhow::Error {
    let (name, rest) = (&command[0], command[1..].iter().map(|word| format!(" {word}")).collect::<String>());
    let path = Path::new(name);
    let how = match path.extension().and_then(|end| end.to_str()).unwrap_or_default() {
        _ if name.contains(char::is_whitespace) && rest.is_empty() && !path.exists() => {
            format!("'{name}' is one word: write it without quotes, -- {name}")
        }
        "ipynb" => notebook(path),
        "py" if path.is_file() => format!("'{name}' is a file of Python and no program: write -- python {name}{rest}"),
        "sh" if path.is_file() => format!("'{name}' is no program: write -- bash {name}{rest}"),
        "py" => format!("there is no file '{name}' here; a script is started as in -- python {name}{rest}"),
        _ if path.is_dir() => format!("'{name}' is a folder; name the program, as in -- python train.py"),
        _ => return anyhow::Error::new(error).context(format!("starting '{name}'; is it installed and spelled right?")),
    };
    anyhow::anyhow!(how)
}

/// What a session's processes have come to.
fn going_on(session: &Path) -> &'static str {
    let folders: Vec<PathBuf> = fs::read_dir(session).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    let is_process = |path: &&PathBuf| path.join("names").exists();
    match folders.iter().filter(is_process).any(|path| path.join("events").metadata().is_ok_and(|file| file.len() > 0)) {
        true => "the script uses the GPU (--steps 1 shortens a training, a smaller input anything else)",
        false if folders.iter().any(|path| is_process(&path)) => {
            "torch is imported, and the GPU is not used yet: is it loading, or does it train on the CPU? Then set its flag for the device"
        }
        false => "torch is not imported yet, or is just being imported",
    }
}

/// A notebook is no script.
fn notebook(path: &Path) -> String {
    let (name, stem) = (path.display(), path.with_extension(""));
    format!(
        "'{name}' is a notebook, which Jupyter runs: write -- jupyter execute {name}, or make a script of it: jupyter nbconvert --to script \
         {name}, then -- python {}.py",
        stem.display()
    )
}

/// The last line of a file with anything in it.
pub fn last_line(file: &mut File) -> String {
    let mut end = Vec::new();
    let length = file.metadata().map_or(0, |file| file.len());
    // What cannot be read is left out.
    file.seek(SeekFrom::Start(length.saturating_sub(4096))).and_then(|_| file.read_to_end(&mut end)).ok();
    let end = String::from_utf8_lossy(&end);
    on_one_line(end.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default())
}
