//! Runs every experiment, one after the other, and says what came of it.

use super::start::{interruptible, stopped};
use super::summary::{JudgedClaim, RunAllContext, RunSummary, Share};
use super::{EXPERIMENTS, INTERRUPTED, Options};
use crate::machine::DeviceChoice;
use anyhow::{Context, Result, bail, ensure};
use base::units::Seconds;
use record::judge::Verdict;
use record::protocol::{Pass, Platform, Profile};
use record::results::{PassRecord, Run, YOURS, reference};
use record::rounds::usual;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use torch::dry;

/// What all predictions may take, where those that came with the project are not what this machine would make.
const PREDICTIONS: Duration = Duration::from_secs(240);

/// What all measurements of the quick profile may take, with the predictions before them. With the report this is less than a quarter of an hour.
const QUICK: Duration = Duration::from_secs(885);

/// An experiment that was cut short is gone on with, as long as there is more time left than it takes to start everything again.
const WORTH_ANOTHER_TURN: Duration = Duration::from_secs(10);

/// One experiment on one device.
struct ExperimentTurn {
    device: DeviceChoice,
    name: &'static str,
    /// Its exit status; none where it has not run.
    code: Option<u8>,
    /// What came of it; none where it could not run, or has no cell that is wanted.
    summary: Option<RunSummary>,
    /// Whether the last time brought it any further.
    went_on: bool,
    /// Whether it took more than the rounds that every comparison gets.
    looked_again: bool,
}

/// What came of all runs.
#[derive(Debug)]
pub struct RunAllSummary {
    /// Exit status: the worst of all.
    pub code: u8,
    /// Folder of all results; none where they are not kept or nothing was run.
    pub results: Option<PathBuf>,
    took: Duration,
    /// For each device what was found there.
    found: Vec<(DeviceChoice, Vec<JudgedClaim>)>,
    passes: usize,
    failed: Vec<String>,
    cut_short: Vec<&'static str>,
    /// Of the predictions that came with the project and are this run's, too: how many were made again, and how many there are.
    came: (usize, usize),
    not_run: Vec<&'static str>,
    folders: BTreeSet<PathBuf>,
    left: BTreeSet<PathBuf>,
}

/// Runs all experiments with the same flags, as the programs that stand next to this one.
///
/// # Errors
/// A program is missing or cannot be started; the results cannot be written; another run of all writes them. An experiment that fails does
/// not stop the others.
pub fn run_all(options: &Options, only: &[String], flags: &[String]) -> Result<Option<RunAllSummary>> {
    let names = || EXPERIMENTS.iter().map(|(name, _)| *name);
    if let Some(unknown) = only.iter().find(|wanted| !names().any(|name| name == **wanted)) {
        bail!("there is no experiment '{unknown}'; there are: {}", names().collect::<Vec<_>>().join(", "));
    }
    interruptible()?;
    let here = std::env::current_exe().context("finding this program's own file")?;
    let programs = here.parent().context("this program stands in no folder")?;
    let devices = devices(options);
    if options.list {
        for (device, name) in turns(&devices, only) {
            run_one(&programs.join(name), flags, options, device, None, None)?;
        }
        return Ok(None);
    }
    // What is kept depends on the profile's being smoke alone, which is the same for all devices.
    let kept = options.results(options.profile(devices[0]));
    let scratch = tempfile::tempdir().context("making a folder for what is not kept")?;
    let results = kept.clone().unwrap_or_else(|| scratch.path().to_path_buf());
    let _lock = hold(&results)?;
    let start = Instant::now();
    let count = turns(&devices[..1], only).count();
    let limits: Vec<Duration> = devices.iter().map(|device| limit(options, *device, devices.len() > 1, count)).collect();
    announce(options, count, &devices, &limits, &results);
    let mut all: Vec<ExperimentTurn> = turns(&devices, only)
        .map(|(device, name)| ExperimentTurn { device, name, code: None, summary: None, went_on: false, looked_again: false })
        .collect();
    let weights = Weights::of(&results);
    for (position, device) in devices.iter().enumerate() {
        let later: Duration = limits[position + 1..].iter().sum();
        // What predictions leave over is for measuring.
        let end = start + limits[..=position].iter().sum::<Duration>();
        // The first turn is everybody's; what is left after it is for those who were cut short.
        loop {
            let of_device = |is_wanted: fn(&ExperimentTurn) -> bool| -> Vec<usize> {
                (0..all.len()).filter(|i| all[*i].device == *device && is_wanted(&all[*i])).collect()
            };
            let mut waiting = of_device(ExperimentTurn::is_waiting);
            // More rounds come when everything has the first ones.
            let first_look = !waiting.is_empty();
            if !first_look {
                waiting = of_device(ExperimentTurn::is_undecided);
            }
            let began = waiting.iter().any(|i| all[*i].code.is_some());
            let left = end.saturating_duration_since(Instant::now());
            if waiting.is_empty() || (began && left < WORTH_ANOTHER_TURN) {
                break;
            }
            for (position, i) in waiting.iter().enumerate() {
                let left = end.saturating_duration_since(Instant::now()).as_secs_f64();
                let weight = |i: &usize| weights.of_experiment(*device, all[*i].name);
                let own = (left * weight(i) / waiting[position..].iter().map(weight).sum::<f64>()).max(1.0);
                let share =
                    Share { before: start.elapsed().as_secs_f64(), own, after: (left - own).max(0.0) + later.as_secs_f64() };
                let file = scratch.path().join("summary.json");
                let _ = std::fs::remove_file(&file);
                let within = RunAllContext { summary: file.clone(), share: Some(share), first_look };
                let turn = &mut all[*i];
                // Only the first turn may start over.
                let flags: Vec<String> = flags.iter().filter(|flag| turn.code.is_none() || *flag != "--fresh").cloned().collect();
                let code = run_one(&programs.join(turn.name), &flags, options, *device, Some(own), Some((&within, &results)))?;
                if code == INTERRUPTED || stopped() {
                    eprintln!("run-all: stopped; the same command goes on from here");
                    return Ok(Some(RunAllSummary {
                        code: INTERRUPTED,
                        results: None,
                        ..RunAllSummary::new(&all, start.elapsed())
                    }));
                }
                turn.take(code, RunSummary::read(&file)?);
                turn.looked_again = !first_look;
            }
        }
    }
    let wanted = options.filter.as_ref().map_or("", |filter| filter.as_str());
    ensure!(all.iter().any(|turn| turn.summary.is_some() || turn.code != Some(0)), "no cell of any experiment matches '{wanted}'");
    let summary = RunAllSummary::new(&all, start.elapsed());
    let results = kept.filter(|_| all.iter().any(|turn| turn.summary.is_some()));
    Ok(Some(RunAllSummary { results, ..summary }))
}

/// What each experiment took of a device's time where the project's own results were taken: shares of the time for all are such that all end
/// at about the same state.
struct Weights(BTreeMap<(Platform, String), f64>);

impl Weights {
    fn of(results: &Path) -> Weights {
        let mut weights = BTreeMap::new();
        for (machine, (name, _)) in reference(results).iter().flat_map(|machine| EXPERIMENTS.iter().map(move |e| (machine, e))) {
            let Ok(run) = Run::read(&results.join(machine).join(name)) else { continue };
            // They may have more rounds than a run of all takes.
            let usual = usual(run.manifest.profile).least();
            let counts = |pass: &&PassRecord| pass.pass != Pass::Time || pass.round <= usual;
            let seconds = run.passes.iter().filter(counts).filter_map(|pass| pass.seconds).sum::<f64>();
            weights.insert((run.manifest.identity.platform, (*name).to_string()), seconds);
        }
        Weights(weights)
    }

    /// In seconds, with what every experiment takes; the same for all where nothing is known.
    fn of_experiment(&self, device: DeviceChoice, name: &str) -> f64 {
        5.0 + self.0.get(&(device.platform(), name.to_string())).copied().unwrap_or(20.0)
    }
}

impl ExperimentTurn {
    /// Whether there is anything left to measure: it has not begun, or a budget cut it short and it came further the last time.
    fn is_waiting(&self) -> bool {
        self.code.is_none() || (self.went_on && self.summary.as_ref().is_some_and(|summary| summary.lacking > 0))
    }

    /// Whether more rounds might decide one of its claims, and it has not had them.
    fn is_undecided(&self) -> bool {
        !self.looked_again && self.summary.as_ref().is_some_and(|summary| summary.is_open)
    }

    fn take(&mut self, code: u8, summary: Option<RunSummary>) {
        let earlier = self.summary.as_ref().map_or(0, |earlier| earlier.passes);
        self.went_on = summary.as_ref().is_some_and(|summary| summary.passes > 0);
        self.summary = summary.map(|summary| RunSummary { passes: summary.passes + earlier, ..summary });
        self.code = Some(code);
    }
}

/// The device that the user names; else the GPU, or without one a simulated GPU, which predicts in a short time what a GPU would need, and
/// the CPU.
fn devices(options: &Options) -> Vec<DeviceChoice> {
    match (options.device, DeviceChoice::best()) {
        (Some(device), _) => vec![device],
        (None, DeviceChoice::Cpu) if dry::is_built() => vec![DeviceChoice::dry(), DeviceChoice::Cpu],
        (None, best) => vec![best],
    }
}

fn turns(devices: &[DeviceChoice], only: &[String]) -> impl Iterator<Item = (DeviceChoice, &'static str)> {
    let names =
        EXPERIMENTS.iter().map(|(name, _)| *name).filter(|name| only.is_empty() || only.iter().any(|wanted| wanted == name));
    devices.iter().flat_map(move |device| names.clone().map(|name| (*device, name)))
}

/// What all experiments on a device may take.
fn limit(options: &Options, device: DeviceChoice, beside_others: bool, experiments: usize) -> Duration {
    let each = |each: u64| Duration::from_secs(each * experiments as u64);
    let is_dry = matches!(device, DeviceChoice::Dry(_));
    match (options.budget, options.profile(device)) {
        (Some(budget), _) if beside_others && is_dry => PREDICTIONS.min(budget / 4),
        (Some(budget), _) if beside_others => budget - PREDICTIONS.min(budget / 4),
        (Some(budget), _) => budget,
        (None, Profile::Smoke) => each(20),
        (None, _) if is_dry => PREDICTIONS,
        (None, Profile::Quick) if beside_others => QUICK - PREDICTIONS,
        (None, Profile::Quick) => QUICK,
        (None, Profile::Full) => each(600),
    }
}

/// Says what will be done, where and how long it takes.
fn announce(options: &Options, experiments: usize, devices: &[DeviceChoice], limits: &[Duration], results: &Path) {
    let time = |limit: &Duration| Seconds(limit.as_secs_f64()).to_string();
    let each = devices.iter().zip(limits).map(|(device, limit)| {
        let what = if matches!(device, DeviceChoice::Dry(_)) { "predictions" } else { "measurements" };
        format!("{what} on {device}, profile {}, for at most {}", options.profile(*device), time(limit))
    });
    let each: Vec<String> = each.collect();
    let all = time(&limits.iter().sum());
    eprintln!(
        "run-all: {experiments} experiments, at most {all} in all (--budget sets another limit): {}; into {}",
        each.join("; "),
        results.display()
    );
}

/// Holds the folder of all results, so that no two runs of all disturb each other's times.
fn hold(results: &Path) -> Result<File> {
    let writing = || format!("cannot write to {}; name another folder with --out", results.display());
    std::fs::create_dir_all(results).with_context(writing)?;
    tempfile::tempfile_in(results).with_context(writing)?;
    let lock = File::open(results).with_context(writing)?;
    ensure!(
        lock.try_lock().is_ok(),
        "another run-all is writing to {}; wait for it, or give this one a folder of its own with --out",
        results.display()
    );
    Ok(lock)
}

fn run_one(
    program: &Path,
    flags: &[String],
    options: &Options,
    device: DeviceChoice,
    seconds: Option<f64>,
    within: Option<(&RunAllContext, &Path)>,
) -> Result<u8> {
    ensure!(program.exists(), "{} is missing; build all programs with `cargo build --release`", program.display());
    let mut command = Command::new(program);
    command.args(flags);
    if options.device.is_none() {
        command.args(["--device", &device.to_string()]);
    }
    if let Some(seconds) = seconds {
        command.args(["--budget", &format!("{seconds:.0}")]);
    }
    if let Some((within, results)) = within {
        command.arg("--within").arg(serde_json::to_string(within)?).arg("--out").arg(results);
    }
    let status = command.status().with_context(|| format!("starting {}", program.display()))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

impl RunAllSummary {
    fn new(all: &[ExperimentTurn], took: Duration) -> RunAllSummary {
        let summaries = || all.iter().filter_map(|turn| Some((turn, turn.summary.as_ref()?)));
        let mut found: Vec<(DeviceChoice, Vec<JudgedClaim>)> = Vec::new();
        for (turn, summary) in summaries() {
            let judged = summary.judged.iter().filter(|judged| judged.counts && !judged.in_python).cloned();
            match found.iter_mut().find(|(device, _)| *device == turn.device) {
                Some((_, known)) => known.extend(judged),
                None => found.push((turn.device, judged.collect())),
            }
        }
        let failed = summaries().flat_map(|(turn, summary)| summary.failed.iter().map(move |cell| format!("{} {cell}", turn.name)));
        let folder = |dir: &PathBuf| dir.parent().unwrap_or(dir).to_path_buf();
        RunAllSummary {
            code: all.iter().filter_map(|turn| turn.code).max().unwrap_or(0),
            results: None,
            took,
            found,
            passes: summaries().map(|(_, summary)| summary.passes).sum(),
            failed: failed.collect(),
            came: summaries().filter_map(|(_, summary)| summary.came).fold((0, 0), |sum, came| (sum.0 + came.0, sum.1 + came.1)),
            cut_short: summaries().filter(|(_, summary)| summary.lacking > 0).map(|(turn, _)| turn.name).collect(),
            not_run: all
                .iter()
                .filter(|turn| turn.summary.is_none() && turn.code.is_some_and(|code| code != 0))
                .map(|turn| turn.name)
                .collect(),
            folders: summaries().map(|(_, summary)| folder(&summary.dir)).collect(),
            left: summaries().flat_map(|(_, summary)| summary.left.iter().map(folder)).collect(),
        }
    }
}

impl fmt::Display for RunAllSummary {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let list = |paths: &BTreeSet<PathBuf>| paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        let took = Seconds(self.took.as_secs_f64());
        writeln!(f, "run-all: {} passes in {took}, {} cells failed", self.passes, self.failed.len())?;
        if let (again, all @ 1..) = self.came {
            writeln!(
                f,
                "  predictions: {again} of {all} made again, all equal to those that came with the project, which stand for yours"
            )?;
        }
        for (device, judged) in &self.found {
            let of = |verdict: Verdict| judged.iter().filter(move |judged| judged.verdict == verdict).map(|j| j.claim.as_str());
            if judged.iter().all(|judged| judged.verdict == Verdict::NotMeasured) {
                continue;
            }
            let count = |verdict: Verdict, word: &str| format!("{} {word}", of(verdict).count());
            let counts = [
                count(Verdict::Confirmed, "confirmed"),
                count(Verdict::Depends, "depend on the case"),
                count(Verdict::FallsShort, "fall short"),
                count(Verdict::InPart, "hold in part"),
                count(Verdict::Inconclusive, "not decided"),
                count(Verdict::Refuted, "refuted"),
            ];
            let refuted: Vec<&str> = of(Verdict::Refuted).collect();
            let refuted = if refuted.is_empty() { String::new() } else { format!(": {}", refuted.join(", ")) };
            writeln!(f, "  claims on {device}: {}{refuted}", counts.join(", "))?;
            let incomplete = judged.iter().filter(|judged| judged.verdict == Verdict::Incomplete);
            let incomplete: Vec<String> =
                incomplete.map(|judged| format!("{} ({} of {})", judged.claim, judged.measured.0, judged.measured.1)).collect();
            if !incomplete.is_empty() {
                writeln!(f, "  no verdict yet on {device}, because not all of it is measured: {}", incomplete.join(", "))?;
            }
        }
        for cell in self.failed.iter().take(3) {
            writeln!(f, "  failed: {cell}")?;
        }
        if self.failed.len() > 3 {
            writeln!(f, "  and {} more failed, which the report names", self.failed.len() - 3)?;
        }
        if !self.not_run.is_empty() {
            writeln!(f, "  could not run, for the reasons above: {}", self.not_run.join(", "))?;
        }
        if !self.cut_short.is_empty() {
            writeln!(f, "  cut short by the time limit, and the same command goes on with them: {}", self.cut_short.join(", "))?;
        }
        if self.results.is_some() {
            writeln!(f, "  results: {}", list(&self.folders))?;
            if !self.left.is_empty() {
                writeln!(f, "  as they were, because they are the reference or were taken in another way: {}", list(&self.left))?;
            }
            let name = |path: &&PathBuf| path.to_string_lossy().into_owned();
            for there in &self.left {
                let beside = format!("{}-{YOURS}", name(&there));
                if let Some(yours) = self.folders.iter().find(|folder| name(folder).starts_with(&beside)) {
                    writeln!(f, "  side by side: vramlab diff {} {}", there.display(), yours.display())?;
                }
            }
        }
        Ok(())
    }
}
