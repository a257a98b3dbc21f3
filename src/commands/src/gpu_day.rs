//! `vramlab gpu-day`: what half an hour on a machine with a GPU is worth most for, in that order, until the time is over.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use harness::machine::Gpu;
use harness::runner::{Python, interruptible, project_with, stopped};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Flags of `vramlab gpu-day`.
#[derive(Debug, Clone, Args)]
pub struct GpuDayOptions {
    /// Stop after so many minutes; called again, it goes on where it stopped
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=1440))]
    pub minutes: u64,

    /// Folder of results and logs; DIR.tar.xz is what to carry home
    #[arg(long, value_name = "DIR", default_value = "gpu-day")]
    pub out: PathBuf,

    /// Only these tasks, by the names of their logs [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,

    /// Dry run on a simulated H200, with the cells of the day; only what counts bytes gives figures
    #[arg(long)]
    pub rehearse: bool,
}

/// A piece of the day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DayTask {
    Doctor,
    /// The card's constants for predictions of time.
    Calibrate,
    /// What a process takes of the card outside of PyTorch's allocator.
    Outside,
    /// What programs of `records/gpus` take, by PyTorch's own meters and a clock.
    Programs,
    /// What `torch.cuda.memory_stats` says of the steps of `tests/reference/memory.json`.
    ReferenceMemory,
    /// An experiment's smallest cells: does everything run?
    Smoke(&'static str),
    /// Each allocation of a step of a language model, on the GPU and simulated, by pass and length.
    Events(&'static str, &'static str),
    /// Steps by the clock beside their predicted times, with variants that tell ratios.
    Times,
    /// What decides claims that only a GPU can: an experiment's quick cells that these claims rest on, as a filter.
    Decide(&'static str, &'static [&'static str], &'static str),
    /// An experiment at full size.
    Full(&'static str),
}
use DayTask::{Calibrate, Decide, Doctor, Events, Full, Outside, Programs, ReferenceMemory, Smoke, Times};

/// Cases of `records/times/clock.py`, the most telling first.
const TIMED: [&str; 10] = [
    "gpt-plain",
    "convnet-plain",
    "gpt-checkpoint",
    "convnet-last",
    "gpt-batch",
    "gpt-fp32",
    "gpt-half",
    "convnet-half",
    "gpt-loop",
    "convnet-fp32",
];

/// The half hour that decides what only a GPU can.
const HALF_HOUR: u64 = 30 * 60;

/// The most telling first, each with the seconds that it may take of the time: what it took on an H200, where that is known, and some more.
const DAY: [(DayTask, u64); 32] = [
    (Doctor, 60),
    (Calibrate, 60),
    (Outside, 60),
    (Programs, 240),
    (
        Decide(
            "pin_memory",
            &["pin-faster", "pin-larger", "pin-training", "pin-small", "pin-host-memory"],
            "direction=|bound=|workers=",
        ),
        480,
    ),
    (Decide("amp", &["amp-faster"], "bound=compute"), 60),
    (Decide("profiling", &["peak-statistics"], "tool=statistics"), 200),
    (Decide("backends", &["to-device"], "where="), 120),
    (Times, 300),
    (Events("training", "128"), 90),
    (Events("inference", "128"), 60),
    // After the half hour.
    (Events("training", "512"), 120),
    (ReferenceMemory, 180),
    (Smoke("pin_memory"), 60),
    (Smoke("agreement"), 60),
    (Smoke("amp"), 60),
    (Smoke("profiling"), 60),
    (Smoke("empty_cache"), 60),
    (Smoke("memory_model"), 60),
    (Smoke("ddp_buckets"), 60),
    (Smoke("free_tensors"), 60),
    // What only a GPU can judge.
    (Full("pin_memory"), 240),
    (Full("backends"), 180),
    (Full("load_checkpoint"), 120),
    (Full("amp"), 180),
    // What settles the assumed terms of a card.
    (Full("memory_model"), 300),
    (Full("agreement"), 300),
    // Times.
    (Full("combined"), 600),
    (Full("accumulation"), 300),
    (Full("optimizer_state"), 300),
    (Full("checkpointing"), 300),
    (Full("transfer_learning"), 300),
];

/// The card that a rehearsed day has.
const STAND_IN: &str = "h200";

/// A task with less time than this is not begun.
const LEAST: Duration = Duration::from_secs(5);

/// How long a task that is asked to stop may take to.
const TIMEOUT: Duration = Duration::from_secs(20);

impl DayTask {
    /// Name of its log and of the mark that it is done.
    fn name(self) -> String {
        match self {
            Doctor => "doctor".to_string(),
            Calibrate => "calibrate".to_string(),
            Outside => "outside".to_string(),
            Programs => "programs".to_string(),
            ReferenceMemory => "reference-memory".to_string(),
            Smoke(experiment) => format!("smoke-{experiment}"),
            Events(pass, length) => format!("events-{pass}-{length}"),
            Decide(experiment, ..) => format!("decide-{experiment}"),
            Full(experiment) => experiment.to_string(),
            Times => "times".to_string(),
        }
    }
}

/// What became of a task.
#[derive(Debug, PartialEq, Eq)]
enum Became {
    Done,
    /// It goes on when the day is called again.
    Cut,
    Failed(String),
}

/// Goes through the day and packs what came of it; gives the exit status.
///
/// # Errors
/// The folder cannot be written; a program of the lab is missing.
pub fn gpu_day(options: &GpuDayOptions) -> Result<u8> {
    let end = Instant::now() + Duration::from_secs(60 * options.minutes);
    let names = || DAY.iter().map(|(task, _)| task.name());
    if let Some(unknown) = options.only.iter().find(|wanted| !names().any(|name| name == **wanted)) {
        bail!("there is no task '{unknown}'; there are {}", names().collect::<Vec<_>>().join(", "));
    }
    let wanted = |task: DayTask| options.only.is_empty() || options.only.contains(&task.name());
    let tasks: Vec<(DayTask, u64)> = DAY.into_iter().filter(|(task, _)| wanted(*task)).collect();
    interruptible()?;
    let day = Day::new(options)?;
    day.announce(&tasks)?;
    let (mut failed, mut open) = (Vec::new(), Vec::new());
    for (task, most) in tasks.iter().copied() {
        let done = day.done(task);
        if done.exists() {
            continue;
        }
        let left = end.saturating_duration_since(Instant::now());
        if stopped() || left < LEAST {
            open.push(task.name());
            continue;
        }
        // Two cores are slower than the machines that carry GPUs, and nothing is paid for them.
        let limit = Duration::from_secs(if day.rehearse { 10 * most } else { most }).min(left);
        println!("{} (at most {} s)", task.name(), limit.as_secs());
        match day.run(task, limit)? {
            Became::Done => drop(File::create(&done).with_context(|| format!("writing {}", done.display()))?),
            Became::Cut => open.push(task.name()),
            Became::Failed(why) => {
                println!("  {why}; see {}", day.log(task).display());
                failed.push(task.name());
            }
        }
    }
    let packed = day.pack()?;
    let done = tasks.len() - failed.len() - open.len();
    println!("{done} of {} done; {} is what to carry home", tasks.len(), packed.display());
    if !open.is_empty() {
        println!("not done yet, the same command goes on: {}", open.join(", "));
    }
    if !failed.is_empty() {
        println!("failed, tried again by the same command: {}", failed.join(", "));
    }
    Ok(u8::from(!failed.is_empty()))
}

struct Day {
    out: PathBuf,
    rehearse: bool,
    /// The card that is there, as `--gpu` takes it, whose rehearsals are put beside what it measures.
    card: String,
    /// Where this program and the experiments lie.
    programs: PathBuf,
    /// The folder that holds experiments/ and records/.
    sources: PathBuf,
    python: PathBuf,
}

impl Day {
    fn new(options: &GpuDayOptions) -> Result<Day> {
        let out = std::path::absolute(&options.out)?;
        fs::create_dir_all(out.join("done")).with_context(|| format!("making {}", out.display()))?;
        let own = std::env::current_exe().context("finding this program's own file")?;
        let programs = own.parent().context("this program lies in no folder")?.to_path_buf();
        for (task, _) in DAY {
            if let Smoke(name) | Full(name) | Decide(name, ..) = task {
                let program = programs.join(name);
                ensure!(program.exists(), "there is no {}: build all of the lab first (cargo build --release)", program.display());
            }
        }
        let sources = project_with(Path::new("records/real_gpus/replay.py")).map_err(anyhow::Error::msg)?;
        let there = || Gpu::open(0).ok().and_then(|gpu| gpu.card()).map(|card| card.to_string());
        let card = if options.rehearse { None } else { there() }.unwrap_or_else(|| STAND_IN.to_string());
        Ok(Day { out, rehearse: options.rehearse, card, programs, sources, python: Python::program() })
    }

    fn done(&self, task: DayTask) -> PathBuf {
        self.out.join("done").join(task.name())
    }

    fn log(&self, task: DayTask) -> PathBuf {
        self.out.join(format!("{}.log", task.name()))
    }

    /// Says what is planned, the passes of each task and their sum, and until where half an hour reaches.
    fn announce(&self, tasks: &[(DayTask, u64)]) -> Result<()> {
        let (mut passes, mut seconds) = (0, 0);
        println!("planned on {}:", if self.rehearse { "a simulated GPU" } else { &self.card });
        for (task, most) in tasks {
            let own = self.passes(*task)?;
            let decides = if let Decide(_, claims, _) = task { format!(", decides {}", claims.join(", ")) } else { String::new() };
            println!("  {}: {own} passes, at most {most} s{decides}", task.name());
            if seconds <= HALF_HOUR && seconds + most > HALF_HOUR {
                println!("  -- half an hour reaches to here: {passes} passes");
            }
            (passes, seconds) = (passes + own, seconds + most);
        }
        println!("  in all {passes} passes, at most {} minutes", seconds.div_ceil(60));
        Ok(())
    }

    /// How many processes a task starts, where rounds are as few as they can be.
    fn passes(&self, task: DayTask) -> Result<usize> {
        let commands = self.commands(task, Duration::from_secs(1));
        if !matches!(task, Smoke(_) | Full(_) | Decide(..)) {
            return Ok(commands.len());
        }
        let rounds = match task {
            Smoke(_) => 2,
            Decide(..) => 3,
            _ => 5,
        };
        let mut passes = 0;
        for mut command in commands {
            let listed = command.arg("--list").stderr(Stdio::inherit()).output().context("asking an experiment for its cells")?;
            ensure!(listed.status.success(), "{}: its cells cannot be listed", task.name());
            let listed = String::from_utf8_lossy(&listed.stdout);
            // Memory is counted twice, times are taken in rounds.
            let of = |pass: &str| {
                if pass == "time" {
                    rounds
                } else if pass == "memory" {
                    2
                } else {
                    1
                }
            };
            passes += listed
                .lines()
                .filter_map(|line| line.split_once('\t'))
                .flat_map(|(_, passes)| passes.split(' ').map(of))
                .sum::<usize>();
        }
        Ok(passes)
    }

    /// What a task starts, one after the other.
    fn commands(&self, task: DayTask, limit: Duration) -> Vec<Command> {
        let stand_in = format!("fake-cuda:{STAND_IN}");
        let device = if self.rehearse { stand_in.as_str() } else { "cuda" };
        let experiment = |name: &str, profile: &str, results: &str| {
            let mut command = Command::new(self.programs.join(name));
            command.args(["--device", device, "--profile", profile, "--budget", &limit.as_secs().max(1).to_string()]);
            command.arg("--out").arg(self.out.join(results));
            command
        };
        let own_path = self.programs.join("vramlab");
        let own = || Command::new(&own_path);
        // A program that knows of no stand-in.
        let on_card = |program: &Path| {
            let mut command = if self.rehearse { own() } else { Command::new(program) };
            if self.rehearse {
                command.args(["rehearse", "--quiet", "--writes", "--steps", "all", "--gpu", &self.card, "--"]).arg(program);
            }
            command
        };
        match task {
            Doctor => {
                let mut command = own();
                command.arg("doctor");
                vec![command]
            }
            Smoke(name) => vec![experiment(name, "smoke", "smoke")],
            Decide(name, _, filter) => {
                let mut command = experiment(name, "quick", "decided");
                command.args(["--filter", filter]);
                vec![command]
            }
            Full(name) => vec![experiment(name, "full", "results")],
            Calibrate => {
                let mut command = on_card(&own_path);
                command.args(["calibrate", "--gpu", &self.card, "--python"]).arg(&self.python);
                command.arg("--out").arg(self.out.join("constants.csv")).arg("--records").arg(self.out.join("operators.csv"));
                vec![command]
            }
            Outside => {
                let mut command = on_card(&self.python);
                command.arg("-B").arg(self.sources.join("records/gpus/context.py"));
                vec![command]
            }
            Programs => {
                let mut command = on_card(&self.python);
                command.arg("-B").arg(self.sources.join("records/gpus/measure.py")).args(["run", "--out"]);
                command.arg(self.out.join("programs.csv"));
                vec![command]
            }
            ReferenceMemory => {
                let mut command = Command::new(&self.python);
                command.arg("-B").arg(self.sources.join("tests/reference/make/memory.py"));
                command.arg("--out").arg(self.out.join("memory_cuda.json"));
                command.args(["--device", "cuda"]);
                vec![command]
            }
            Times => {
                let clock = self.sources.join("records/times/clock.py");
                let file = |case: &str, side: &str| self.out.join(format!("{case}-{side}.json"));
                let python = |mut command: Command, words: &[&str]| {
                    command.arg("-B").arg(&clock).args(words);
                    command
                };
                let of_case = |case: &&str| {
                    let mut predicted = own();
                    predicted.args(["rehearse", "--quiet", "--gpu", &self.card, "--json"]).arg(file(case, "predicted"));
                    predicted.arg("--").arg(&self.python);
                    let mut real = python(Command::new(&self.python), &["step", case]);
                    real.arg(file(case, "clock"));
                    let real = (!self.rehearse).then_some(real);
                    [Some(python(predicted, &["step", case])), real].into_iter().flatten().collect::<Vec<_>>()
                };
                let mut compared = python(Command::new(&self.python), &["compare"]);
                compared.arg(&self.out);
                let cases = if self.rehearse { &TIMED[..1] } else { &TIMED };
                cases.iter().flat_map(of_case).chain([compared]).collect()
            }
            Events(pass, length) => {
                let replay = self.sources.join("records/real_gpus/replay.py");
                let file = |side: &str| self.out.join(format!("{}-{side}.csv.gz", task.name()));
                let plain = |words: &[&str]| {
                    let mut command = Command::new(&self.python);
                    command.arg("-B").arg(&replay).args(words);
                    command
                };
                let simulated = |side: &str| {
                    let mut command = own();
                    // What it records is written after the last step.
                    command
                        .args(["rehearse", "--quiet", "--writes", "--steps", "all", "--gpu", &self.card, "--"])
                        .arg(&self.python)
                        .arg("-B")
                        .arg(&replay);
                    command.args(["record", pass, length]).arg(file(side));
                    command
                };
                let mut real = plain(&["record", pass, length]);
                real.arg(file("gpu"));
                let mut compared = plain(&["compare"]);
                compared.arg(file("gpu")).arg(file("simulated"));
                vec![if self.rehearse { simulated("gpu") } else { real }, simulated("simulated"), compared]
            }
        }
    }

    fn run(&self, task: DayTask, limit: Duration) -> Result<Became> {
        if self.rehearse && task == ReferenceMemory {
            fs::write(self.log(task), "It really runs on a GPU, so there is nothing to rehearse.\n")?;
            return Ok(Became::Done);
        }
        let (start, log) = (Instant::now(), self.log(task));
        let written = File::create(&log).with_context(|| format!("writing {}", log.display()))?;
        for mut command in self.commands(task, limit) {
            command.stdin(Stdio::null()).stdout(written.try_clone()?).stderr(written.try_clone()?).process_group(0);
            let name = command.get_program().to_string_lossy().into_owned();
            let Some(status) = wait(&mut command, start + limit).with_context(|| format!("starting {name}"))? else {
                return Ok(Became::Cut);
            };
            if !status.success() {
                return Ok(Became::Failed(format!("{name} ended with {status}")));
            }
        }
        Ok(Became::Done)
    }

    /// Everything in one archive. Once more when the day is called again.
    fn pack(&self) -> Result<PathBuf> {
        let name = self.out.file_name().context("--out names no folder")?.to_os_string();
        let packed = self.out.with_file_name(format!("{}.tar.xz", name.to_string_lossy()));
        let folder = self.out.parent().context("--out names no folder")?;
        let status = Command::new(&self.python).args(["-m", "tarfile", "-c"]).arg(&packed).arg(&name).current_dir(folder).status();
        let status = status.with_context(|| format!("packing with {}", self.python.display()))?;
        ensure!(status.success(), "packing {} failed with {status}", packed.display());
        Ok(packed)
    }
}

/// Runs a command to its end, or asks it and what it started to stop when the time is over: none then.
fn wait(command: &mut Command, end: Instant) -> Result<Option<ExitStatus>> {
    let mut child = command.spawn()?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a process without a number")?;
    let mut asked = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if asked.is_some() { None } else { Some(status) });
        }
        let over = stopped() || Instant::now() >= end;
        match asked {
            // It may have ended by itself.
            None if over => {
                asked = Some(Instant::now());
                let _ = kill_process_group(group, Signal::INT);
            }
            Some(since) if since.elapsed() > TIMEOUT => drop(kill_process_group(group, Signal::KILL)),
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_has_a_name_of_its_own_and_the_first_half_hour_holds_what_only_a_gpu_can_tell() {
        let mut names: Vec<String> = DAY.iter().map(|(task, _)| task.name()).collect();
        let before: u64 = DAY.iter().take_while(|(task, _)| *task != Events("training", "512")).map(|(_, most)| most).sum();
        assert!(before <= HALF_HOUR, "{before} s at most for what only a GPU can tell");
        let decided: Vec<&str> =
            DAY.iter().flat_map(|(task, _)| if let Decide(_, claims, _) = task { claims.to_vec() } else { vec![] }).collect();
        for claim in ["pin-faster", "pin-larger", "pin-training", "pin-small", "to-device", "amp-faster", "peak-statistics"] {
            assert!(decided.contains(&claim), "{claim}");
        }
        assert_eq!(TIMED.len(), 10);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), DAY.len());
    }

    #[test]
    fn what_takes_too_long_is_asked_to_stop_with_all_that_it_started() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & wait"]).process_group(0);
        let start = Instant::now();
        assert_eq!(wait(&mut command, start + Duration::from_millis(200)).unwrap(), None);
        // Nobody waited for the minute to be over.
        assert!(start.elapsed() < Duration::from_secs(60));
        let status = wait(Command::new("false").process_group(0), start + Duration::from_secs(60)).unwrap();
        assert_eq!(status.unwrap().code(), Some(1));
    }
}
