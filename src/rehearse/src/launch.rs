//! Runs a command under rehearsal and gathers what its processes told.

use super::answer::{Answer, Gpu, ProcessAnswer, Verdict, process_answers};
use super::check::Tolerance;
use super::libraries::{Libraries, cache, remedy};
use super::preset::{self, BatchFlag};
use super::replay::{self, Needs};
use super::session::{self, LeftProcesses, Session, Settings};
use super::show::on_one_line;
use super::template::FlagTemplate;
use super::time::{Loading, Prediction, predict};
use super::trace::Trace;
use anyhow::{Context, Result, bail, ensure};
use base::units::Bytes;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use serde::Serialize;
use sim::cards::{self, Card};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Flags of `vramlab rehearse`.
#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "vramlab rehearse [OPTIONS] -- COMMAND...\n       vramlab rehearse [OPTIONS] --model NAME --batch N [-- FLAGS...]",
    after_help = "Exit status: 0 the script fits the GPU, 3 it does not, 1 the script failed, 2 there was nothing to rehearse or no whole answer, 4 --check: the peak grew, 5 --timeout ended it before enough was seen, 130 Ctrl-C did."
)]
pub struct RehearseOptions {
    /// The simulated GPU: a card's name, such as rtx-4090 or h100, or a size, such as 24GiB; several, each with its own --gpu, give a table
    #[arg(long, value_name = "NAME|SIZE", default_value = "24GiB")]
    pub(super) gpu: Vec<String>,

    /// The predicted time of a step: how many times as long as here the host takes between launches
    #[arg(long, value_name = "X", default_value = "1")]
    pub(super) host_factor: f64,

    /// Optimizer steps after which the script is ended, or `all`
    #[arg(long, value_name = "N|all", default_value = "3")]
    pub(super) steps: String,

    /// Write the answer as JSON to a file, or with - to the standard output
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Folder for the answer's files
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,

    /// GPUs visible to each process
    #[arg(long, value_name = "N", default_value = "1")]
    pub(super) gpus: u32,

    /// Run one rank of a job of so many processes
    #[arg(long, value_name = "N", requires = "rank")]
    pub(super) world_size: Option<u32>,

    /// Which rank; `all` rehearses those that may differ, the first two, the middle and the last, and says which needs most
    #[arg(long, value_name = "R|all", requires = "world_size")]
    pub(super) rank: Option<Rank>,

    /// Leave new parameters uninitialised, so that large models need little host memory
    #[arg(long)]
    pub(super) no_init: bool,

    /// Turn torch.compile off, as where nothing is compiled
    #[arg(long)]
    pub(super) eager: bool,

    /// Print nothing but errors; the exit status is the answer
    #[arg(long)]
    pub(super) quiet: bool,

    /// End the command after so many seconds, and report what was seen
    #[arg(long, value_name = "SECONDS")]
    pub(super) timeout: Option<f64>,

    /// Try the techniques of memory guides on the script, one by one and together: what each saves and costs, and the lines that do it
    #[arg(long)]
    pub(super) what_if: bool,

    /// Rehearse a model that comes with vramlab in place of a command; flags after -- are its training's, `-- --help` lists them
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(preset::MODELS))]
    pub(super) model: Option<String>,

    /// With --model: samples of a micro-batch. With --what-if: how the command is told its batch, as in '--batch-size {}'
    #[arg(long, value_name = "N|FLAG {}", allow_hyphen_values = true)]
    pub(super) batch: Option<BatchFlag>,

    /// With --what-if: how the command is told how many batches it accumulates before a step, as in '--grad-accum {}'
    #[arg(long, value_name = "FLAG {}", allow_hyphen_values = true, requires = "batch")]
    pub(super) accumulation: Option<FlagTemplate>,

    /// With --what-if: how many such GPUs zero1, zero2 and fsdp2 are tried on
    #[arg(long, value_name = "N", default_value = "2", requires = "what_if")]
    pub(super) cards: u32,

    #[arg(long, help = super::what_if::only_help(), value_name = "NAMES", value_delimiter = ',', requires = "what_if")]
    pub(super) only: Vec<String>,

    /// With --what-if: `cuda` measures on a real GPU, bytes and times; `dry` is the simulated one
    #[arg(long, value_name = "dry|cuda", default_value = "dry", requires = "what_if", conflicts_with = "gpu")]
    pub(super) device: Device,

    /// Compare with an earlier answer of --json; exit status 4 where the peak grew
    #[arg(long, value_name = "FILE", conflicts_with = "what_if")]
    pub(super) check: Option<PathBuf>,

    /// With --check: how much the peak may grow, in bytes or in per cent, such as 64MiB or 2%
    #[arg(long, value_name = "SIZE|%", default_value = "0%", requires = "check")]
    pub(super) tolerance: Tolerance,

    /// The command, after --, as in: vramlab rehearse --gpu rtx-4090 -- python train.py --batch-size 32
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// What `--rank` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rank {
    One(u32),
    All,
}

impl FromStr for Rank {
    type Err = String;

    fn from_str(text: &str) -> Result<Rank, String> {
        match text {
            "all" => Ok(Rank::All),
            _ => text.parse().map(Rank::One).map_err(|_| format!("'{text}' is no rank: a number from 0 on, or all")),
        }
    }
}

/// What the variants of `--what-if` run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Device {
    /// The simulated GPU.
    Dry,
    /// A real one.
    Cuda,
}

/// Exit status of a command line that is no rehearsal.
pub(super) const BAD_INPUT: u8 = 2;

pub(super) fn status(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Fits | Verdict::BarelyFits => 0,
        Verdict::ScriptFailed => 1,
        Verdict::DoesNotFit => 3,
        Verdict::TimedOut => 5,
        // As a shell gives it for a command that was interrupted.
        Verdict::Interrupted => 130,
    }
}

/// Writes to a file, or with `-` to the standard output.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).context("writing the answer")? + "\n";
    match path.as_os_str() == "-" {
        true => print!("{text}"),
        false => fs::write(path, text).with_context(|| format!("writing {}", path.display()))?,
    }
    Ok(())
}

/// Prints an answer on the standard output, unless JSON is there.
pub(super) fn print_answer(json: Option<&Path>, text: &str) {
    match json.is_some_and(|path| path.as_os_str() == "-") {
        true => eprint!("{text}"),
        false => print!("{text}"),
    }
}

/// The card of that name, once the other flags are seen to be possible.
pub(super) fn card_of(gpu: &str, options: &RehearseOptions) -> Result<Card> {
    let card: Card = gpu.parse().map_err(|e| anyhow::anyhow!("--gpu: {e}"))?;
    ensure!(
        options.steps == "all" || options.steps.parse::<u32>().is_ok_and(|n| n > 0),
        "--steps {}: write a number from 1 on, or all",
        options.steps
    );
    ensure!((1..=16).contains(&options.gpus), "--gpus {}: a process can see 1 to 16", options.gpus);
    ensure!(options.cards > 1, "--cards {}: write a number from 2 on", options.cards);
    ensure!(
        card.memory > card.context,
        "--gpu {gpu}: that is {} of memory, and the CUDA context alone takes {}; write a size like 24GiB",
        Bytes(card.memory),
        Bytes(card.context)
    );
    ensure!(
        (0.01..=100.0).contains(&options.host_factor),
        "--host-factor {}: write a number from 0.01 to 100, such as 0.7 for a host that is faster than this one",
        options.host_factor
    );
    if let (Some(size), Some(Rank::One(rank))) = (options.world_size, options.rank) {
        ensure!(rank < size, "--rank {rank}: the ranks of a job of {size} are 0 to {}", size.saturating_sub(1));
    }
    if let Some(seconds) = options.timeout {
        ensure!(seconds > 0.0 && seconds < 1e9, "--timeout {seconds}: write a number of seconds greater than 0");
    }
    Ok(card)
}

#[derive(Clone)]
pub(super) struct Rehearsal<'a> {
    pub options: &'a RehearseOptions,
    pub libraries: Libraries,
    pub card: Card,
    pub variant: Variant,
}

/// How a rehearsal differs from the one that the options ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Variant {
    /// Names of what `techniques.py` switches on.
    pub techniques: Vec<&'static str>,
    /// The rank that the process is, where it is another than the options'.
    pub rank: Option<u32>,
    /// More of the environment.
    pub settings: Vec<(&'static str, String)>,
    /// Another command than the one given.
    pub command: Option<Vec<OsString>>,
    /// Whether floating-point operations are counted.
    pub counts: bool,
}

/// What a command under rehearsal left.
pub(super) struct Run {
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

impl Run {
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

impl Rehearsal<'_> {
    fn words(&self) -> &[OsString] {
        self.variant.command.as_ref().unwrap_or(&self.options.command)
    }

    fn command(&self, session: &Path, card: Card) -> Result<Command> {
        let options = self.options;
        let asked = options.rank.map(|rank| if let Rank::One(rank) = rank { rank } else { 0 });
        let settings = Settings {
            libraries: &self.libraries.folder,
            compiled: &self.libraries.compiled,
            carried: &self.libraries.carried,
            measures: options.device == Device::Cuda,
            steps: options.steps.parse().ok(),
            gpus: options.gpus,
            cards: options.cards,
            world_size: options.world_size,
            rank: self.variant.rank.or(asked).filter(|_| options.world_size.is_some()),
            no_init: options.no_init,
            eager: options.eager,
            techniques: &self.variant.techniques,
            counts: self.variant.counts,
        };
        settings.write(session)?;
        let mut command = Command::new(&self.words()[0]);
        command.args(&self.words()[1..]);
        session::follow(&mut command, session, &self.libraries, options.device == Device::Dry);
        if options.device == Device::Dry {
            command
                .env("VRAMLAB_DRY_TAKEN", card.context.to_string())
                .env("VRAMLAB_DRY_DEVICES", options.gpus.to_string())
                .env(cards::ENVIRONMENT, card.environment())
                // Nothing is written outside of our own folders, and kernels for a simulated GPU are none that a real one should find.
                .env("USE_PYTORCH_KERNEL_CACHE", "0");
        }
        command.envs(self.variant.settings.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// The GPU, as an answer tells it.
    pub fn gpu(&self) -> Gpu {
        let (memory, context) = (self.card.memory.cast_signed(), self.card.context.cast_signed());
        Gpu { name: self.card.to_string(), memory, context, count: self.options.gpus }
    }

    /// A run that prints nothing.
    pub fn run_in_silence(&self) -> Result<Run> {
        let session = Session::new()?;
        let run = self.run(session.path(), self.card, true)?;
        ensure!(!run.interrupted, "interrupted");
        Ok(run)
    }

    /// The same on a card that is large enough for anything.
    pub fn on_a_large_card(&self) -> Self {
        Self { card: self.card.with_memory(LARGE), ..self.clone() }
    }

    pub fn run(&self, session: &Path, card: Card, again: bool) -> Result<Run> {
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
        let name = self.options.command[0].to_string_lossy();
        let mut child = command.spawn().with_context(|| format!("starting '{name}'; is it installed and spelled right?"))?;
        let (status, timed_out) = self.wait(&mut child, session)?;
        let mut run = Run {
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
            let late = self.options.timeout.is_some_and(|limit| began.elapsed().as_secs_f64() > limit);
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
                if !self.options.quiet {
                    eprintln!("vramlab: compiling for PyTorch {version}, once; about a minute");
                }
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// What the script needs of a card, where it ran as long as was wanted, and where it did not fit: then it is rehearsed once more on a
    /// card that is large enough for anything, in silence.
    ///
    /// # Errors
    /// That rehearsal did not come to its end, or PyTorch's allocator could not be asked.
    pub fn needs(&self, answer: &Answer, traces: &[Trace]) -> Result<Needs> {
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

    pub fn answer(&self, run: &Run) -> Result<Answer> {
        let name = self.options.command[0].to_string_lossy();
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
            () if ran_out => Verdict::DoesNotFit,
            () if run.timed_out && !enough => Verdict::TimedOut,
            () if run.interrupted && !enough => Verdict::Interrupted,
            () if failed => Verdict::ScriptFailed,
            () => Verdict::Fits,
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
            timed_out_after: self.options.timeout.filter(|_| verdict == Verdict::TimedOut),
            time,
            time_missing,
            processes,
            notes,
        })
    }

    /// Of the process whose steps take longest.
    fn time(&self, run: &Run, steps: u32) -> Result<Prediction, String> {
        let predicted = |trace: &Trace| {
            let mut time = predict(trace, &self.card, steps, self.options.host_factor)?;
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
    fn nothing(&self, run: &Run, name: &str) -> Result<()> {
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
