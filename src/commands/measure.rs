//! `vramlab measure`: a training step really run, in a process of its own. On a simulated GPU it is run, too, for its bytes; it has no times.

use super::{ConfigurationFlags, bytes_by_phase, dry_child};
use crate::dry;
use crate::machine::{DeviceChoice, Machine, available_memory, cores, libtorch_version};
use crate::predict::taken;
use crate::runner::{end_with_parent, exit_reason, open, prepare_cuda};
use crate::stats::{mad, median};
use crate::torch::{self, Backend, Categories, Mark, Phase, Recorder, Recording, Stage};
use crate::training::{Configuration, OutOfMemory, Trainer};
use crate::units::{Bytes, Seconds};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Iterations whose bytes are followed: the second is the first that has optimizer state from its beginning.
const FOLLOWED: u32 = 2;

/// When timing ends: after so many steps, or after these seconds with at least so many.
const MOST_SAMPLES: usize = 30;
const LEAST_SAMPLES: usize = 5;
const TIMING: Duration = Duration::from_secs(3);

/// Lines of progress come no closer together than this.
const PAUSE: Duration = Duration::from_secs(3);

/// Version of the JSON that is printed; a key that changes its meaning raises it.
const SCHEMA: u32 = 1;

/// Flags of `vramlab measure`. The parent repeats some to its child, and the last one counts.
#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub struct MeasureOptions {
    #[command(flatten)]
    pub configuration: ConfigurationFlags,

    /// Samples of one step; with --accumulate those of all its micro-batches together
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub batch: i64,

    /// Where to measure: cpu, cuda or cuda:N; dry:CARD or dry:SIZE predicts the bytes alone [default: the first GPU that libtorch can use,
    /// else cpu]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,

    /// Threads that libtorch computes with [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,

    /// Limit the device's memory; what needs more runs out of it [default: what the GPU has, or what is available to the CPU now]
    #[arg(long, value_name = "SIZE")]
    pub device_memory: Option<Bytes>,

    /// Print JSON with bytes and seconds as plain numbers
    #[arg(long)]
    pub json: bool,

    /// Measure in this process, for the parent of this number
    #[arg(long, hide = true)]
    pub child: Option<u32>,
}

/// What the child tells its parent, as one line.
#[derive(Debug, Serialize, Deserialize)]
enum Told {
    Found(Found),
    Error(String),
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Found {
    parameters: Option<usize>,
    stages: Vec<Stage>,
    out_of_memory: Option<OutOfMemory>,
    step_seconds: Vec<f64>,
    skipped_steps: u32,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    schema: u32,
    command: &'static str,
    device: String,
    threads: u32,
    libtorch: String,
    configuration: &'a Configuration,
    parameters: Option<usize>,
    /// Bytes that the device was limited to.
    device_memory: Option<u64>,
    fits: bool,
    out_of_memory: Option<&'a OutOfMemory>,
    phases: &'a [Stage],
    second_iteration: Option<Whole>,
    peak: Option<Peak>,
    step_seconds: Option<Spread<'a>>,
    skipped_steps: u32,
}

/// A whole iteration.
#[derive(Debug, Serialize)]
struct Whole {
    live: i64,
    peak: i64,
}

#[derive(Debug, Serialize)]
struct Peak {
    bytes: i64,
    iteration: u32,
    phase: Phase,
    categories: Categories,
}

/// Times of single steps in seconds; `mad` is the median absolute deviation from the median.
#[derive(Debug, Serialize)]
struct Spread<'a> {
    median: f64,
    mad: f64,
    min: f64,
    max: f64,
    samples: &'a [f64],
}

/// Trains what the flags say, in a process of its own, and prints what was found. Memory that runs out is a finding.
///
/// # Errors
/// A configuration that cannot be trained; a device that cannot be used; a child process that ends without a finding.
pub fn measure(options: &MeasureOptions) -> Result<()> {
    let configuration = options.configuration.configuration(options.batch)?;
    let choice = options.device.unwrap_or_else(DeviceChoice::best);
    if let Some(parent) = options.child {
        return child(options, &configuration, choice, parent);
    }
    let total = match choice {
        DeviceChoice::Cpu => available_memory(),
        DeviceChoice::Cuda(_) => Machine::describe(choice)?.device_memory,
        DeviceChoice::Dry(card) => {
            dry_child::check(card)?;
            Some(card.memory)
        }
        DeviceChoice::Plumbing(_) => bail!("plumbing:CARD is for `vramlab gpu-day --rehearse`; dry:CARD predicts a card's bytes"),
    };
    let limit = options.device_memory.map(|bytes| bytes.0).or(total);
    let found = launch(choice, limit, total)?;
    let report = Report::new(&configuration, choice, options, limit, &found)?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.text());
    }
    Ok(())
}

/// Runs this program again with the same flags, as a child.
fn launch(choice: DeviceChoice, limit: Option<u64>, total: Option<u64>) -> Result<Found> {
    let mut command = Command::new(std::env::current_exe().context("finding this program's own file")?);
    command.args(std::env::args_os().skip(1)).arg("--child").arg(std::process::id().to_string());
    command.args(["--device", &choice.to_string()]);
    if let Some(limit) = limit {
        command.args(["--device-memory", &limit.to_string()]);
    }
    if let DeviceChoice::Dry(card) = choice {
        dry::prepare_beside(&mut command, card, taken(&card))?;
    }
    if choice != DeviceChoice::Cpu {
        prepare_cuda(&mut command, limit.filter(|limit| Some(*limit) < total), total, None);
    }
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("starting a process that measures")?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().next_back().map(serde_json::from_str) {
        Some(Ok(Told::Found(found))) => Ok(found),
        Some(Ok(Told::Error(message))) => bail!(message),
        _ => bail!("the process that measures was {}", exit_reason(output.status, "")),
    }
}

fn child(options: &MeasureOptions, configuration: &Configuration, choice: DeviceChoice, parent: u32) -> Result<()> {
    end_with_parent(parent)?;
    // A panic becomes an error; the default hook would only disturb the progress lines.
    std::panic::set_hook(Box::new(|_| {}));
    tch::set_num_threads(i32::try_from(threads(options))?);
    let limit = options.device_memory.map(|bytes| bytes.0);
    let is_timed = !matches!(choice, DeviceChoice::Dry(_));
    let found = open(choice, limit).and_then(|backend| train(configuration, &*backend, is_timed));
    let told = found.map_or_else(|error| Told::Error(format!("{error:#}")), Told::Found);
    println!("{}", serde_json::to_string(&told)?);
    Ok(())
}

/// Follows the allocations of the first iterations, then times further ones where there is a clock.
fn train(configuration: &Configuration, backend: &dyn Backend, is_timed: bool) -> Result<Found> {
    tch::manual_seed(1);
    let mut found = Found::default();
    let mut progress = Progress::new();
    let mut last = None;
    let result = run(configuration, backend, is_timed, &mut found, &mut progress, &mut last);
    let Err(error) = result else { return Ok(found) };
    let at = last.map_or((0, Phase::Load), |mark: Mark| mark.following(configuration.accumulate));
    found.out_of_memory = OutOfMemory::of(&error, at);
    if found.out_of_memory.is_none() {
        return Err(error);
    }
    found.step_seconds.clear();
    Ok(found)
}

fn run(
    configuration: &Configuration,
    backend: &dyn Backend,
    is_timed: bool,
    found: &mut Found,
    progress: &mut Progress,
    last: &mut Option<Mark>,
) -> Result<()> {
    let mut recorder = Recorder::begin(backend, Recording { meter: true, operations: false })?;
    let mut trainer = None;
    let followed = follow(configuration, backend, &mut trainer, found, &mut |mark, trainer| {
        *last = Some(mark);
        progress.say(|| format!("{} of iteration {} is done", mark.phase, mark.iteration));
        trainer.record(mark, &mut recorder)
    });
    found.stages = recorder.end().stages_in_detail();
    followed?;
    if !is_timed {
        return Ok(());
    }
    let trainer = trainer.as_mut().context("nothing was loaded")?;
    let mut again = || {
        trainer.iterate(&mut |mark, _| {
            *last = Some(mark);
            Ok(())
        })
    };
    // One iteration more warms up what the clock will see.
    again()?;
    let start = Instant::now();
    while found.step_seconds.len() < LEAST_SAMPLES || (found.step_seconds.len() < MOST_SAMPLES && start.elapsed() < TIMING) {
        let seconds = backend.time(&mut again)?;
        found.step_seconds.push(seconds);
        let count = found.step_seconds.len();
        progress.say(|| format!("{count} steps timed; the last took {}", Seconds(seconds)));
    }
    found.skipped_steps = trainer.skipped_steps();
    Ok(())
}

/// Loads, and runs the iterations whose bytes are followed.
fn follow(
    configuration: &Configuration,
    backend: &dyn Backend,
    loaded: &mut Option<Trainer>,
    found: &mut Found,
    ended: &mut dyn FnMut(Mark, &Trainer) -> Result<()>,
) -> Result<()> {
    let trainer = loaded.insert(Trainer::load(configuration, backend.device())?);
    found.parameters = Some(trainer.model().parameter_count());
    ended(Mark::LOADED, trainer)?;
    for _ in 0..FOLLOWED {
        trainer.iterate(ended)?;
    }
    Ok(())
}

/// Lines on standard error for the person who waits.
struct Progress {
    last: Instant,
}

impl Progress {
    fn new() -> Progress {
        Progress { last: Instant::now() }
    }

    fn say(&mut self, line: impl FnOnce() -> String) {
        if self.last.elapsed() >= PAUSE {
            self.last = Instant::now();
            eprintln!("measure: {}", line());
        }
    }
}

fn threads(options: &MeasureOptions) -> u32 {
    options.threads.unwrap_or_else(|| u32::try_from(cores()).unwrap_or(1))
}

impl<'a> Report<'a> {
    fn new(
        configuration: &'a Configuration,
        choice: DeviceChoice,
        options: &MeasureOptions,
        limit: Option<u64>,
        found: &'a Found,
    ) -> Result<Report<'a>> {
        let stages = &found.stages;
        let second = stages.iter().filter(|stage| stage.iteration == 2);
        let whole = second
            .clone()
            .find(|stage| stage.phase == Phase::Step)
            .map(|last| Whole { live: last.live, peak: second.map(|stage| stage.peak).max().unwrap_or(last.peak) });
        let top = stages.iter().rev().max_by_key(|stage| stage.peak);
        let peak = top.map(|s| Peak { bytes: s.peak, iteration: s.iteration, phase: s.phase, categories: s.at_peak });
        let samples = found.step_seconds.as_slice();
        let spread = (!samples.is_empty()).then(|| Spread {
            median: median(samples),
            mad: mad(samples),
            min: samples.iter().copied().fold(f64::INFINITY, f64::min),
            max: samples.iter().copied().fold(0.0, f64::max),
            samples,
        });
        let is_timed = !matches!(choice, DeviceChoice::Dry(_));
        ensure!(found.out_of_memory.is_some() || spread.is_some() || !is_timed, "the measurement ended without a single step");
        Ok(Report {
            schema: SCHEMA,
            command: "measure",
            device: choice.to_string(),
            threads: threads(options),
            libtorch: libtorch_version().unwrap_or_else(|_| torch::compiled_version()),
            configuration,
            parameters: found.parameters,
            device_memory: limit,
            fits: found.out_of_memory.is_none(),
            out_of_memory: found.out_of_memory.as_ref(),
            phases: stages,
            second_iteration: whole,
            peak,
            step_seconds: spread,
            skipped_steps: found.skipped_steps,
        })
    }

    fn text(&self) -> String {
        let mut text = format!("{} device={} threads={}\n", self.configuration, self.device, self.threads);
        if let Some(parameters) = self.parameters {
            text += &format!("{parameters} parameters\n");
        }
        text += &format!("\n{}\n", bytes_by_phase(self.phases));
        let limit = self.device_memory.map_or("memory".to_string(), |bytes| Bytes(bytes).to_string());
        match (self.out_of_memory, &self.step_seconds) {
            (Some(out), _) => text += &format!("does not fit: {limit} ran out in {}: {}\n", out.place(), out.message),
            (None, Some(spread)) => {
                let (least, most) = (Seconds(spread.min), Seconds(spread.max));
                text += &format!(
                    "fits in {limit}\n{} a step, {least} to {most} in {} steps\n",
                    Seconds(spread.median),
                    spread.samples.len()
                );
            }
            (None, None) => text += &format!("fits in {limit}\npredicted: a simulated GPU computes nothing, so it has no times\n"),
        }
        if self.skipped_steps > 0 {
            text += &format!("{} steps were skipped: a gradient overflowed\n", self.skipped_steps);
        }
        text
    }
}
