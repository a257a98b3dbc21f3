//! Runs every experiment, one after the other, and says what came of it.

use super::start::{interruptible, stopped};
use super::summary::{JudgedClaim, RunAllContext, RunSummary, Share, Stage};
use super::{INTERRUPTED, Options, experiments};
use crate::machine::DeviceChoice;
use anyhow::{Context, Result, bail, ensure};
use base::units::Seconds;
use record::judge::Verdict;
use record::protocol::{Pass, Platform, Profile};
use record::results::{PassRecord, Run, came};
use record::rounds::usual;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What all measurements of the quick profile may take. With the report this is less than a quarter of an hour.
const QUICK: Duration = Duration::from_secs(885);

/// What the guides claim, in their order: the seven techniques of the project's name, then the others. The lab's own claims come after them.
pub const GUIDED: [&str; 20] = [
    "accumulation",
    "inplace",
    "pin_memory",
    "num_workers",
    "amp",
    "checkpointing",
    "empty_cache",
    "batch_loading",
    "as_written",
    "free_tensors",
    "profiling",
    "memory_model",
    "combined",
    "lr_warmup",
    "step_timeline",
    "optimizer_state",
    "ddp_buckets",
    "load_checkpoint",
    "no_grad",
    "backends",
];

/// An experiment that was cut short is gone on with, as long as there is more time left than it takes to start everything again.
const LEAST_TURN: Duration = Duration::from_secs(10);

/// What became of one experiment.
#[derive(Debug, Default)]
struct ExperimentTurn {
    name: &'static str,
    /// Its exit status; none where it has not run.
    code: Option<u8>,
    /// The last look that it had.
    look: Option<Stage>,
    /// Whether all that decides the guides' claims here is measured.
    decided: bool,
    /// What came of it; none where it could not run, or has no cell that is wanted.
    summary: Option<RunSummary>,
    /// Whether the last time brought it any further.
    went_on: bool,
}

/// What came of all runs.
#[derive(Debug)]
pub struct RunAllSummary {
    device: DeviceChoice,
    /// Exit status: the worst of all.
    pub code: u8,
    /// Folder of all results; none where they are not kept or nothing was run.
    pub results: Option<PathBuf>,
    took: Duration,
    turns: Vec<ExperimentTurn>,
}

/// Runs all experiments with the same flags, as the programs that stand next to this one.
///
/// # Errors
/// A program is missing or cannot be started; the results cannot be written; another run of all writes them. An experiment that fails does
/// not stop the others.
pub fn run_all(options: &Options, only: &[String], flags: &[String]) -> Result<Option<RunAllSummary>> {
    if let Some(unknown) = only.iter().find(|wanted| !experiments().any(|name| name == **wanted)) {
        bail!("there is no experiment '{unknown}'; there are: {}", experiments().collect::<Vec<_>>().join(", "));
    }
    interruptible()?;
    let device = options.device();
    let mut chosen: Vec<&str> = experiments().filter(|name| only.is_empty() || only.iter().any(|wanted| wanted == name)).collect();
    chosen.sort_by_key(|name| GUIDED.iter().position(|guided| guided == name).unwrap_or(GUIDED.len()));
    if options.list {
        chosen.into_iter().try_for_each(|name| status(command(name, flags, options)?).map(|_| ()))?;
        return Ok(None);
    }
    let profile = options.profile(device);
    let kept = options.results(profile);
    let scratch = tempfile::tempdir().context("making a folder for what is not kept")?;
    let results = kept.clone().unwrap_or_else(|| scratch.path().to_path_buf());
    let _lock = hold(&results)?;
    let start = Instant::now();
    let each = |seconds: u64| Duration::from_secs(seconds * chosen.len() as u64);
    let limit = options.budget.unwrap_or(match profile {
        Profile::Smoke => each(20),
        Profile::Quick => QUICK,
        Profile::Full => each(600),
    });
    eprintln!(
        "run-all: {} experiments, at most {} in all (--budget sets another limit): {} on {device}, profile {profile}; into {}",
        chosen.len(),
        Seconds(limit.as_secs_f64()),
        if matches!(device, DeviceChoice::Dry(_)) { "predictions" } else { "measurements" },
        results.display()
    );
    let left = || limit.saturating_sub(start.elapsed());
    let mut turns: Vec<ExperimentTurn> = chosen.iter().map(|name| ExperimentTurn { name, ..ExperimentTurn::default() }).collect();
    let weights = weights(&results, device.platform());
    // The first turn is everybody's; what is left after it is for those who were cut short.
    loop {
        let mut looks = [Stage::Guided, Stage::First, Stage::Again].into_iter();
        let Some(look) = looks.find(|look| turns.iter().any(|turn| turn.wants(*look))) else { break };
        let waiting: Vec<usize> = (0..turns.len()).filter(|turn| turns[*turn].wants(look)).collect();
        let began = waiting.iter().any(|turn| turns[*turn].look == Some(look));
        if left().is_zero() || (began && left() < LEAST_TURN) {
            break;
        }
        // In seconds, with what every experiment takes; the same for all where nothing is known.
        let weighed: Vec<f64> = waiting.iter().map(|turn| 5.0 + weights.get(turns[*turn].name).unwrap_or(&20.0)).collect();
        for (position, next) in waiting.iter().enumerate() {
            let left = left().as_secs_f64();
            // A look at each of those that are left would take minutes, and decide nothing.
            if left == 0.0 {
                break;
            }
            // What guides claim is completed before the next begins: a claim that is half measured is worth nothing.
            let share = weighed[position] / weighed[position..].iter().sum::<f64>();
            let own = (left * if look == Stage::Guided { 1.0 } else { share }).max(1.0);
            let share = Share { before: start.elapsed().as_secs_f64(), own, after: (left - own).max(0.0) };
            let within = RunAllContext { summary: scratch.path().join("summary.json"), share, look };
            turns[*next].run(options, flags, &results, &within)?;
            if turns[*next].code == Some(INTERRUPTED) || stopped() {
                eprintln!("run-all: stopped; the same command goes on from here");
                return Ok(Some(RunAllSummary { device, code: INTERRUPTED, results: None, took: start.elapsed(), turns }));
            }
        }
    }
    let wanted = options.filter.as_ref().map_or("", |filter| filter.as_str());
    ensure!(
        turns.iter().any(|turn| turn.summary.is_some() || turn.code != Some(0)),
        "no cell of any experiment matches '{wanted}'"
    );
    let code = turns.iter().filter_map(|turn| turn.code).max().unwrap_or(0);
    let results = kept.filter(|_| turns.iter().any(|turn| turn.summary.is_some()));
    Ok(Some(RunAllSummary { device, code, results, took: start.elapsed(), turns }))
}

/// What each experiment took of a platform's time where the project's own results were taken, in seconds: shares of the time for all are such
/// that all end at about the same state.
fn weights(results: &Path, platform: Platform) -> BTreeMap<&'static str, f64> {
    let taken = |machine: &Path, name: &'static str| {
        let run = Run::read(&machine.join(name)).ok()?;
        // They may have more rounds than a run of all takes.
        let usual = usual(run.manifest.profile).least();
        let counts = |pass: &&PassRecord| pass.pass != Pass::Time || pass.round <= usual;
        let seconds = run.passes.iter().filter(counts).filter_map(|pass| pass.seconds).sum();
        (run.manifest.identity.platform == platform).then_some((name, seconds))
    };
    let machines = came(results);
    machines.iter().flat_map(|machine| experiments().filter_map(move |name| taken(machine, name))).collect()
}

impl ExperimentTurn {
    /// Whether a look would bring it further: it has not had that one, or a budget cut it short and it came further the last time.
    fn wants(&self, look: Stage) -> bool {
        let goes_on = self.went_on && self.summary.as_ref().is_some_and(|summary| summary.lacking > 0);
        if self.code.is_some() && self.summary.is_none() {
            return false;
        }
        match look {
            Stage::Guided if !GUIDED.contains(&self.name) => false,
            Stage::Guided | Stage::First => self.look < Some(look) || (self.look == Some(look) && goes_on),
            Stage::Again => self.look < Some(look) && self.summary.as_ref().is_some_and(|summary| summary.is_open),
        }
    }

    fn run(&mut self, options: &Options, flags: &[String], results: &Path, within: &RunAllContext) -> Result<()> {
        let _ = std::fs::remove_file(&within.summary);
        // Only the first turn may start over.
        let flags: Vec<String> = flags.iter().filter(|flag| self.code.is_none() || *flag != "--fresh").cloned().collect();
        let mut command = command(self.name, &flags, options)?;
        command.args(["--budget", &format!("{:.0}", within.share.own)]);
        command.arg("--within").arg(serde_json::to_string(within)?).arg("--out").arg(results);
        self.code = Some(status(command)?);
        self.look = Some(within.look);
        let earlier = self.summary.as_ref().map_or(0, |earlier| earlier.passes);
        let summary = RunSummary::read(&within.summary)?;
        self.went_on = summary.as_ref().is_some_and(|summary| summary.passes > 0);
        self.summary = summary.map(|summary| RunSummary { passes: summary.passes + earlier, ..summary });
        self.decided |= self.summary.as_ref().is_some_and(|summary| summary.lacking == 0);
        Ok(())
    }
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

/// The program of an experiment, next to this one.
pub(super) fn program(name: &str) -> Result<Command> {
    let here = std::env::current_exe().context("finding this program's own file")?;
    let program = here.parent().context("this program stands in no folder")?.join(name);
    ensure!(program.exists(), "{} is missing; build all programs with `cargo build --release`", program.display());
    Ok(Command::new(program))
}

/// The command that runs an experiment, as the program next to this one.
fn command(name: &str, flags: &[String], options: &Options) -> Result<Command> {
    let mut command = program(name)?;
    command.args(flags);
    if options.device.is_none() {
        command.args(["--device", &options.device().to_string()]);
    }
    Ok(command)
}

fn status(mut command: Command) -> Result<u8> {
    let status = command.status().with_context(|| format!("starting {}", command.get_program().display()))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

impl fmt::Display for RunAllSummary {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let summaries = || self.turns.iter().filter_map(|turn| Some((turn, turn.summary.as_ref()?)));
        let passes: usize = summaries().map(|(_, summary)| summary.passes).sum();
        let of_turn = |(turn, summary): (&ExperimentTurn, &RunSummary)| -> Vec<String> {
            summary.failed.iter().map(|cell| format!("{} {cell}", turn.name)).collect()
        };
        let failed: Vec<String> = summaries().flat_map(of_turn).collect();
        let took = Seconds(self.took.as_secs_f64());
        writeln!(f, "run-all: {passes} passes in {took}, {} cells failed", failed.len())?;
        let judged = summaries().flat_map(|(_, summary)| &summary.judged).filter(|judged| judged.counts && !judged.in_python);
        write_judged(f, self.device, &judged.collect::<Vec<_>>())?;
        for cell in failed.iter().take(3) {
            writeln!(f, "  failed: {cell}")?;
        }
        if failed.len() > 3 {
            writeln!(f, "  and {} more failed, which the report names", failed.len() - 3)?;
        }
        let not_run = self.turns.iter().filter(|turn| turn.summary.is_none() && turn.code.is_some_and(|code| code != 0));
        let not_run: Vec<&str> = not_run.map(|turn| turn.name).collect();
        if !not_run.is_empty() {
            writeln!(f, "  could not run, for the reasons above: {}", not_run.join(", "))?;
        }
        let cut_short: Vec<&str> = summaries().filter(|(_, summary)| summary.lacking > 0).map(|(turn, _)| turn.name).collect();
        let decided = self.turns.iter().filter(|turn| GUIDED.contains(&turn.name) && turn.decided).map(|turn| turn.name);
        let decided = base::order::distinct(decided);
        writeln!(f, "  decided of what guides claim: {} of {} experiments: {}", decided.len(), GUIDED.len(), decided.join(", "))?;
        if !cut_short.is_empty() {
            writeln!(
                f,
                "  cut short by the time limit: {}; `just run-all` goes on with them",
                base::order::distinct(cut_short).join(", ")
            )?;
        }
        let not_begun: Vec<&str> = self.turns.iter().filter(|turn| turn.code.is_none()).map(|turn| turn.name).collect();
        if !not_begun.is_empty() {
            writeln!(f, "  not begun when the time was over: {}; `just run-all` goes on with them", not_begun.join(", "))?;
        }
        if self.results.is_none() {
            return Ok(());
        }
        let folder = |dir: &PathBuf| dir.parent().unwrap_or(dir).display().to_string();
        let folders: BTreeSet<String> = summaries().map(|(_, summary)| folder(&summary.dir)).collect();
        let left: BTreeSet<String> = summaries().flat_map(|(_, summary)| summary.left.iter().map(folder)).collect();
        let list = |folders: &BTreeSet<String>| folders.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        writeln!(f, "  results: {}", list(&folders))?;
        if !left.is_empty() {
            writeln!(f, "  as they were, because they were taken in another way: {}", list(&left))?;
        }
        for there in &left {
            if let Some(yours) = folders.iter().find(|folder| folder.starts_with(&format!("{there}-"))) {
                writeln!(f, "  side by side: vramlab diff {there} {yours}")?;
            }
        }
        Ok(())
    }
}

/// What became of a device's claims.
fn write_judged(f: &mut fmt::Formatter, device: DeviceChoice, judged: &[&JudgedClaim]) -> fmt::Result {
    if judged.iter().all(|judged| judged.verdict == Verdict::NotMeasured) {
        return Ok(());
    }
    let of = |verdict: Verdict| judged.iter().filter(move |judged| judged.verdict == verdict);
    let counts = [
        (Verdict::Confirmed, "confirmed"),
        (Verdict::Depends, "depend on the case"),
        (Verdict::FallsShort, "fall short"),
        (Verdict::InPart, "hold in part"),
        (Verdict::Inconclusive, "not decided"),
        (Verdict::Refuted, "refuted"),
    ];
    let counts = counts.map(|(verdict, word)| format!("{} {word}", of(verdict).count())).join(", ");
    let refuted: Vec<&str> = of(Verdict::Refuted).map(|judged| judged.claim.as_str()).collect();
    let refuted = if refuted.is_empty() { String::new() } else { format!(": {}", refuted.join(", ")) };
    writeln!(f, "  claims on {device}: {counts}{refuted}")?;
    let incomplete =
        of(Verdict::Incomplete).map(|judged| format!("{} ({} of {})", judged.claim, judged.measured.0, judged.measured.1));
    let incomplete: Vec<String> = incomplete.collect();
    if incomplete.is_empty() {
        return Ok(());
    }
    writeln!(f, "  no verdict yet on {device}, because not all of it is measured: {}", incomplete.join(", "))
}
