//! One run of an experiment: every planned cell is checked, counted and timed, and each pass is recorded before the next begins.

use super::launch::Started;
use super::options::{CellShard, Options};
use super::plan::{Plan, Planned, round_order};
use super::preconditions::{beyond_physics, counted_difference, has_reference, impossible};
use super::progress::Progress;
use super::python::{Python, for_reference};
use super::reference_process::{Exchanges, Provision, program, provide, provided};
use super::spec::Spec;
use super::start::{interruptible, refuse_other_allocators, stopped};
use super::summary::{JudgedClaim, RunSummary};
use super::template::{Templates, suits};
use super::{EXPERIMENTS, INTERRUPTED};
use crate::machine::{DeviceChoice, Machine, cores, exact_cpu, flags, kernel};
use anyhow::{Context, Result};
use base::units::{Bytes, Seconds, now};
use rand::seq::SliceRandom;
use record::judge::{Judgement, RunContext, judge, undecided};
use record::protocol::{DEVICE_MEMORY, Pass, PlainCell, PlainProtocol, Platform, Profile, Relation, TIME};
use record::results::{
    BUDGET_ENDED, Command, FolderNotWritten, Identity, Journal, Manifest, PassRecord, Place, SCHEMA, SHARD, Samples, Status,
    predictions_that_came,
};
use record::rounds::Rounds;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::slice;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

/// Runs a plan and says how it went; gives the exit status.
///
/// # Errors
/// Nothing can be measured or recorded; cells that fail are rows, not errors.
pub fn run(
    protocol: &PlainProtocol,
    options: &Options,
    (choice, profile, rounds): (DeviceChoice, Profile, Rounds),
    plan: &Plan,
    out: &Path,
) -> Result<u8> {
    let machine = Machine::describe(choice)?;
    if choice != DeviceChoice::Cpu {
        refuse_other_allocators()?;
    }
    interruptible()?;
    let python = plan.cells.iter().any(|planned| has_reference(choice, planned)).then(|| Python::find(&protocol.name));
    let python = python.transpose()?;
    let mut manifest = manifest(protocol, options, (choice, profile, &rounds), plan, &machine, python.as_ref())?;
    // Before a folder is chosen or made: a run that was stopped leaves nothing.
    if stopped() {
        return Ok(INTERRUPTED);
    }
    let part = options.shard.map(|CellShard { index, count }| format!("{SHARD}{index}-of-{count}"));
    let setting = (choice, profile, &rounds);
    if let Some(code) = take_over(protocol, options, setting, plan, (&machine, python.as_ref()), (&manifest, out))? {
        return Ok(code);
    }
    let Place { dir, left } = Place::find(out, part.as_deref(), &manifest);
    let (journal, records) = Journal::open(&dir, &mut manifest, options.fresh)?;
    let start = Instant::now();
    let deadline = options.budget(profile).map(|budget| start + budget);
    let resumed = records.len();
    let mut sweep = Sweep {
        protocol,
        options,
        choice,
        profile,
        machine,
        python,
        journal,
        records,
        progress: Progress::new(&protocol.name, options.within.as_ref().and_then(|within| within.share)),
        deadline,
        budget_ended: false,
        resumed,
        rounds,
        exchanges: Exchanges::default(),
    };
    if resumed > 0 {
        sweep.progress.say(&format!("{}: going on in {}, where {resumed} passes are done", protocol.name, dir.display()));
    } else if options.within.is_none() {
        for FolderNotWritten { dir: there, why } in &left {
            let why = why.join("; ");
            sweep.progress.say(&format!("{}: {} stays as it is: {why}", protocol.name, there.display()));
        }
    }
    sweep.run(plan)?;
    sweep.progress.finish();
    let summary = summary(&sweep, plan, &left, &dir);
    match &options.within {
        Some(within) => summary.write(&within.summary)?,
        None => summary.judged.iter().for_each(|judged| println!("{judged}")),
    }
    let state = match (stopped(), summary.lacking) {
        (true, _) => "stopped; the same command goes on from here".to_string(),
        (_, 0) if sweep.budget_ended => "done; the budget ended before every claim was decided".to_string(),
        (_, 0) => "done".to_string(),
        (_, lacking) => format!("the budget ended with {lacking} passes to go; the same command goes on from here"),
    };
    println!(
        "{}: {state}: {} passes in {}, {} failed; {}",
        protocol.name,
        summary.passes,
        Seconds(start.elapsed().as_secs_f64()),
        summary.failed.len(),
        dir.display()
    );
    Ok(if stopped() { INTERRUPTED } else { u8::from(!summary.failed.is_empty()) })
}

/// One in so many predictions is made again before those that came with the project are taken for this run's own.
const SAMPLED: usize = 8;
/// But no more of an experiment than this: each run draws others.
const MOST_SAMPLED: usize = 2;

/// In a run of all, stands by the predictions that came with the project where this run would make the same, after a sample of them was made
/// again and was equal to the byte; gives the exit status. None where the run makes its own. Nothing is copied: they stay what they are, the
/// project's.
fn take_over(
    protocol: &PlainProtocol,
    options: &Options,
    (choice, profile, rounds): (DeviceChoice, Profile, &Rounds),
    plan: &Plan,
    (machine, python): (&Machine, Option<&Result<Python, String>>),
    (now, out): (&Manifest, &Path),
) -> Result<Option<u8>> {
    let is_of_all = options.within.as_ref().filter(|within| within.share.is_some());
    let Some(within) = is_of_all.filter(|_| matches!(choice, DeviceChoice::Dry(_)) && !options.fresh) else { return Ok(None) };
    let Some((dir, came)) = predictions_that_came(out, now)? else { return Ok(None) };
    let counted =
        |planned: &&Planned| planned.grid.passes.contains(&Pass::Memory) && impossible(choice, planned, Pass::Memory).is_none();
    let mut sample: Vec<Planned> = plan.cells.iter().filter(counted).cloned().collect();
    let all = sample.len();
    // Another sample each time, so that many users make all of them.
    sample.shuffle(&mut rand::rng());
    sample.truncate(all.div_ceil(SAMPLED).min(MOST_SAMPLED));
    sample.iter_mut().for_each(|planned| planned.twice = false);
    let scratch = tempfile::tempdir().context("making a folder for predictions that are made again")?;
    let mut manifest = now.clone();
    let (journal, _) = Journal::open(scratch.path(), &mut manifest, true)?;
    let start = Instant::now();
    let mut sweep = Sweep {
        protocol,
        options,
        choice,
        profile,
        machine: machine.clone(),
        python: python.cloned(),
        journal,
        records: Vec::new(),
        progress: Progress::new(&protocol.name, within.share),
        deadline: options.budget(profile).map(|budget| start + budget),
        budget_ended: false,
        resumed: 0,
        rounds: rounds.clone(),
        exchanges: Exchanges::default(),
    };
    sweep.progress.expect(sample.iter().map(|planned| sweep.untimed_passes(planned).len()).sum());
    // However short the time is: without them nothing is taken over.
    sweep.count(&Plan { cells: sample }, None)?;
    sweep.progress.finish();
    if stopped() {
        return Ok(Some(INTERRUPTED));
    }
    let made: Vec<&PassRecord> = sweep
        .records
        .iter()
        .filter(|record| {
            record.pass == Pass::Memory && record.round == 1 && record.seconds.is_some() && record.status != Status::Skipped
        })
        .collect();
    let theirs = |record: &PassRecord| came.passes.iter().find(|pass| pass.cell == record.cell && pass.pass == Pass::Memory);
    let apart = made.iter().find_map(|record| match theirs(record) {
        Some(theirs) if theirs.status != record.status => {
            Some(format!("'{}' ends otherwise: {} {}", record.cell, record.status, record.reason))
        }
        Some(theirs) => counted_difference(protocol, theirs, record).map(|apart| format!("'{}': {}", record.cell, apart.reason)),
        None => Some(format!("there is no '{}'", record.cell)),
    });
    if let Some(apart) = apart {
        sweep.progress.say(&format!("{}: not equal to {}, so all are made here: {apart}", protocol.name, dir.display()));
        return Ok(None);
    }
    if made.is_empty() && all > 0 {
        return Ok(None);
    }
    let taken = RunContext { profile, device: choice.platform(), rounds: &came.manifest.rounds };
    let judgements = judge(protocol, taken, &Samples::new(&came.passes));
    let summary = RunSummary {
        dir: dir.clone(),
        left: Vec::new(),
        came: Some((made.len(), all)),
        passes: made.len(),
        lacking: 0,
        is_open: false,
        failed: Vec::new(),
        judged: judgements.into_iter().map(judged).collect(),
    };
    summary.write(&within.summary)?;
    println!("{}: {} of {all} predictions made again, all equal to {}", protocol.name, made.len(), dir.display());
    Ok(Some(0))
}

fn manifest(
    protocol: &PlainProtocol,
    options: &Options,
    (choice, profile, rounds): (DeviceChoice, Profile, &Rounds),
    plan: &Plan,
    machine: &Machine,
    python: Option<&Result<Python, String>>,
) -> Result<Manifest> {
    let sources = EXPERIMENTS.iter().find(|(name, _)| *name == protocol.name);
    let (_, sources) = sources.with_context(|| format!("experiments/ has no {}: file and protocol share a name", protocol.name))?;
    let mut flags = flags(options.threads() as usize)?;
    flags.extend(python.map(|found| ("python".to_string(), found.as_ref().map_or("none".to_string(), Python::describe))));
    Ok(Manifest {
        schema: SCHEMA,
        profile,
        identity: Identity {
            machine: machine.slug.clone(),
            platform: choice.platform(),
            hardware: machine.hardware.clone(),
            libtorch: machine.libtorch.clone(),
            flags,
            memory_limit: options.device_memory.map(|b| b.0),
            seed: u64::from(options.seed),
            sources: sources.to_string(),
        },
        planned: plan.cells.iter().map(|p| p.cell.to_string()).collect(),
        rounds: rounds.clone(),
        commands: vec![Command {
            began: now(),
            argv: invocation(),
            git_revision: env!("VRAMLAB_REVISION").to_string(),
            git_dirty: env!("VRAMLAB_DIRTY") == "true",
            environment: environment(python),
        }],
        protocol: protocol.clone(),
    })
}

/// What a run ran on and was built with, beyond what must agree between runs.
fn environment(python: Option<&Result<Python, String>>) -> BTreeMap<String, String> {
    let known = [("kernel", kernel()), ("exact cpu", exact_cpu()), ("compilers", Some(env!("VRAMLAB_COMPILERS").to_string()))];
    let mut environment: BTreeMap<String, String> =
        known.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))).collect();
    if let Some(Ok(python)) = python {
        environment.extend(python.packages.clone());
    }
    environment
}

/// The command line, as it can be typed elsewhere: the program by its name, paths from the folder that it was started in, and without where
/// the results go, which may be a private folder, and the summary that only the run of all experiments around it can read.
fn invocation() -> Vec<String> {
    let here = std::env::current_dir().map(|here| format!("{}/", here.display())).unwrap_or_default();
    let mut arguments: Vec<String> =
        std::env::args().map(|argument| argument.strip_prefix(&here).map_or(argument.clone(), str::to_string)).collect();
    if let Some(program) = arguments.first_mut() {
        let name = Path::new(program.as_str()).file_name().map(|name| name.to_string_lossy().into_owned());
        *program = name.unwrap_or_default();
    }
    for of_here in ["--within", "--out"] {
        while let Some(at) = arguments.iter().position(|argument| argument == of_here) {
            arguments.drain(at..(at + 2).min(arguments.len()));
        }
    }
    arguments.retain(|argument| !argument.starts_with("--out="));
    arguments
}

struct Sweep<'a> {
    protocol: &'a PlainProtocol,
    options: &'a Options,
    choice: DeviceChoice,
    profile: Profile,
    machine: Machine,
    /// Who runs the cells that are PyTorch's, or why nobody can; none where there are no such cells.
    python: Option<Result<Python, String>>,
    journal: Journal,
    records: Vec<PassRecord>,
    progress: Progress,
    deadline: Option<Instant>,
    budget_ended: bool,
    /// Passes that an earlier run had done.
    resumed: usize,
    rounds: Rounds,
    exchanges: Exchanges,
}

/// A pass that is to be run.
struct Job {
    cell: PlainCell,
    spec: Spec,
    round: u32,
}

impl Sweep<'_> {
    fn run(&mut self, plan: &Plan) -> Result<()> {
        let groups = plan.timed_groups();
        let untimed: usize = plan.cells.iter().map(|planned| self.untimed_passes(planned).len()).sum();
        let timed: usize = groups.iter().map(Vec::len).sum();
        let planned = untimed + timed * self.least_rounds() as usize;
        self.progress.expect(planned.saturating_sub(self.records.len()));
        // Bytes without times are half an answer: a short budget is shared by both.
        let now = Instant::now();
        let share = if timed > 0 { 0.5 } else { 1.0 };
        self.count(plan, self.deadline.map(|deadline| now + deadline.saturating_duration_since(now).mul_f64(share)))?;
        self.time(&groups)?;
        self.count(plan, self.deadline)?;
        if self.lacking(plan) > 0 {
            self.over();
        }
        if self.budget_ended && !stopped() {
            self.leave_out(plan)?;
        }
        Ok(())
    }

    fn over(&mut self) -> bool {
        self.budget_ended |= self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        self.budget_ended || stopped()
    }

    fn find(&self, cell: &PlainCell, pass: Pass, round: u32) -> Option<&PassRecord> {
        self.records.iter().find(|r| r.cell == *cell && r.pass == pass && r.round == round)
    }

    /// The check once and the memory pass, as far as the grid asks for them. On a real GPU each cell is counted twice, since the driver's
    /// threads have a say there; elsewhere each level is in one place, and the smoke profile's few cells are.
    fn untimed_passes(&self, planned: &Planned) -> Vec<(Pass, u32)> {
        let twice = planned.twice || matches!(self.choice, DeviceChoice::Cuda(_)) || self.profile == Profile::Smoke;
        let rounds = |pass: &Pass| match pass {
            Pass::Check => 1,
            Pass::Memory => 1 + u32::from(twice),
            Pass::Time => 0,
        };
        planned.grid.passes.iter().flat_map(|pass| (1..=rounds(pass)).map(move |round| (*pass, round))).collect()
    }

    /// Whether an earlier pass already says what becomes of this cell.
    fn is_settled(&self, cell: &PlainCell) -> bool {
        self.records.iter().any(|r| r.cell == *cell && settles(r))
    }

    /// Checks and counts cells until a time comes. Untimed passes run concurrently; the passes over one cell
    /// follow one another.
    fn count(&mut self, plan: &Plan, until: Option<Instant>) -> Result<()> {
        let mut chains: Vec<(&Planned, Vec<Job>)> = Vec::new();
        for planned in &plan.cells {
            let mut jobs = Vec::new();
            for (pass, round) in self.untimed_passes(planned) {
                let spec = self.ask(planned, pass, round)?;
                jobs.extend(spec.map(|spec| Job { cell: planned.cell.clone(), spec, round }));
            }
            // Both sides of a comparison hand things to each other.
            let other = chains.iter_mut().find(|(other, _)| planned.grid.is_shared() && other.baseline == planned.baseline);
            match other {
                Some((_, chain)) => chain.extend(jobs),
                None => chains.push((planned, jobs)),
            }
        }
        let mut by_threads: Vec<(u32, Vec<Vec<Job>>)> = Vec::new();
        for jobs in chains.into_iter().map(|(_, jobs)| jobs).filter(|jobs| !jobs.is_empty()) {
            let threads = jobs[0].spec.threads;
            match by_threads.iter_mut().find(|(known, _)| *known == threads) {
                Some((_, chains)) => chains.push(jobs),
                None => by_threads.push((threads, vec![jobs])),
            }
        }
        by_threads.into_iter().try_for_each(|(threads, chains)| self.count_side_by_side(chains, threads, until))
    }

    /// Runs chains of passes, as many at a time as the machine has cores for.
    fn count_side_by_side(&mut self, chains: Vec<Vec<Job>>, threads: u32, until: Option<Instant>) -> Result<()> {
        let waiting = Mutex::new(chains.into_iter());
        let next = || waiting.lock().ok().and_then(|mut waiting| waiting.next());
        let is_over = || stopped() || until.is_some_and(|until| Instant::now() >= until);
        let (device, timeout) = ((self.choice, self.machine.device_memory), self.options.timeout);
        let python = self.python.clone();
        let (sender, records) = channel();
        let work = |sender: Sender<Result<PassRecord>>| {
            let mut templates = Templates::default();
            while let Some(jobs) = next() {
                let mut settled: Option<PlainCell> = None;
                for Job { cell, spec, round } in jobs {
                    if settled.as_ref() == Some(&cell) {
                        continue;
                    }
                    if is_over() {
                        return;
                    }
                    let record = match provided((python.as_ref(), Some(&mut templates)), &spec, &cell, round, device, timeout) {
                        Ok(Some(record)) => Ok(record),
                        Ok(None) => return,
                        Err(e) => Err(e),
                    };
                    if record.as_ref().is_ok_and(settles) {
                        settled = Some(cell);
                    }
                    if sender.send(record).is_err() {
                        return;
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..side_by_side(self.choice, threads) {
                let sender = sender.clone();
                scope.spawn(|| work(sender));
            }
            drop(sender);
            records.iter().try_for_each(|record| self.keep(record?))
        })
    }

    /// What a child is to be asked for; none where that is done, an earlier pass settled it, or it cannot be, which is recorded.
    fn ask(&mut self, planned: &Planned, pass: Pass, round: u32) -> Result<Option<Spec>> {
        if self.find(&planned.cell, pass, round).is_some() || self.is_settled(&planned.cell) {
            return Ok(None);
        }
        if let Some(reason) = self.impossible(planned, pass) {
            // One row says it.
            if !self.records.iter().any(|r| r.cell == planned.cell && r.pass == pass) {
                self.keep(PassRecord::not_run(&planned.cell, pass, round, Status::Skipped, &reason))?;
            }
            return Ok(None);
        }
        let threads = self.threads(&planned.cell)?;
        Ok(Some(Spec {
            cell: planned.cell.to_string(),
            pass,
            profile: self.profile,
            device: self.choice.to_string(),
            threads,
            seed: self.options.seed,
            memory_limit: self.memory_limit(&planned.cell, pass)?,
            baseline: planned.baseline.to_string(),
            expected: self.expected(planned, pass),
            exchange: planned.grid.is_shared().then(|| self.exchanges.files(&planned.cell)).transpose()?,
            hand_over: false,
            waits: false,
            anew: pass == Pass::Time
                && self.protocol.metrics.iter().any(|metric| metric.pass == Pass::Time && metric.name != TIME.name),
            reference: planned.cell.is_reference().then(|| for_reference(threads)).transpose()?,
            alloc_conf: planned.cell.alloc_conf().map(str::to_string),
            parent: std::process::id(),
        }))
    }

    /// The threads that the cell asks for, or else the user.
    fn threads(&self, cell: &PlainCell) -> Result<u32> {
        match cell.threads() {
            Some(level) => {
                level.parse().ok().filter(|n| *n > 0).with_context(|| format!("'{level}' is no number of threads, and not 'all'"))
            }
            None => Ok(self.options.threads()),
        }
    }

    fn keep(&mut self, mut record: PassRecord) -> Result<()> {
        if let Some((status, reason)) = self.contradiction(&record) {
            (record.status, record.reason) = (status, reason);
        }
        self.journal.append(slice::from_ref(&record))?;
        self.progress.done(&record);
        self.records.push(record);
        Ok(())
    }

    /// The relation that the PyTorch reference must see; a child of our own finds it in its protocol.
    fn expected(&self, planned: &Planned, pass: Pass) -> Option<Relation> {
        (pass == Pass::Check && planned.cell.is_reference()).then(|| self.protocol.check_of(&planned.cell).cloned()).flatten()
    }

    /// Why a pass over a cell cannot be run here; none where it can.
    fn impossible(&self, planned: &Planned, pass: Pass) -> Option<String> {
        impossible(self.choice, planned, pass).or_else(|| match &self.python {
            Some(Err(reason)) if planned.cell.is_reference() => Some(reason.clone()),
            Some(Err(reason)) if planned.grid.is_shared() => Some(format!("there is no PyTorch to compare with: {reason}")),
            _ => None,
        })
    }

    /// The user's limit, and the cell's own where it has one: a check compares results, so it gets the memory that it needs.
    fn memory_limit(&self, cell: &PlainCell, pass: Pass) -> Result<Option<u64>> {
        let own = match cell.get(DEVICE_MEMORY) {
            Some(level) if pass != Pass::Check => Some(level.parse::<Bytes>().map_err(anyhow::Error::msg)?.0),
            _ => None,
        };
        let users = self.options.device_memory.map(|b| b.0);
        Ok(own.into_iter().chain(users).min())
    }

    /// What a second pass or the limits of physics have against a record.
    fn contradiction(&self, record: &PassRecord) -> Option<(Status, String)> {
        if record.status != Status::Ok {
            return None;
        }
        match record.pass {
            Pass::Memory => {
                let apart = counted_difference(self.protocol, self.find(&record.cell, Pass::Memory, 1)?, record)?;
                Some((apart.status(self.choice), apart.reason))
            }
            Pass::Time => Some((Status::Invalid, beyond_physics(record, self.machine.flops_limit?)?)),
            Pass::Check => None,
        }
    }

    /// Timed rounds over all groups, until each has had enough, the rounds are used up or the budget ends. One comparison with the rounds that
    /// an interval needs answers more than many without: under a budget no more groups are begun than can have them, and the others follow.
    fn time(&mut self, groups: &[Vec<Planned>]) -> Result<()> {
        let mut waiting: Vec<Vec<Planned>> = groups.to_vec();
        // What is not checked is not timed, and without its baseline a time says nothing.
        waiting.iter_mut().for_each(|group| group.retain(|planned| self.is_counted(planned)));
        waiting.retain(|group| group.iter().any(|planned| planned.cell == planned.baseline));
        let mut timed: Vec<Vec<Planned>> = Vec::new();
        while !waiting.is_empty() && !self.over() {
            let later = waiting.split_off(self.first_round(&waiting)?);
            // What cannot run here has its one row.
            waiting.retain(|group| group.iter().any(|planned| self.impossible(planned, Pass::Time).is_none()));
            for round in 2..=self.least_rounds() {
                self.round(&waiting, round, &mut Templates::default())?;
            }
            timed.append(&mut waiting);
            waiting = later;
        }
        if self.options.within.as_ref().is_some_and(|within| within.first_look) {
            return Ok(());
        }
        let looks = self.rounds.looks().to_vec();
        for (look, next) in looks.iter().zip(looks.iter().skip(1)) {
            let open = self.undecided(*look);
            timed.retain(|group| group.iter().any(|planned| open.contains(&planned.cell)));
            let cells: usize = timed.iter().map(Vec::len).sum();
            self.progress.expect(self.records.len() - self.resumed + cells * (next - look) as usize);
            for round in look + 1..=*next {
                self.round(&timed, round, &mut Templates::default())?;
            }
        }
        Ok(())
    }

    /// One row says of each cell why it has no time, where there is none.
    fn least_rounds(&self) -> u32 {
        self.rounds.least().max(1)
    }

    /// The cells that claims leave undecided after so many rounds.
    fn undecided(&self, look: u32) -> BTreeSet<PlainCell> {
        let until = self.records.iter().filter(|record| record.pass != Pass::Time || record.round <= look).cloned();
        undecided(self.protocol, self.taken(), &Samples::new(&until.collect::<Vec<_>>()))
    }

    fn taken(&self) -> RunContext<'_> {
        RunContext { profile: self.profile, device: self.choice.platform(), rounds: &self.rounds }
    }

    /// The first round of as many groups as the budget allows all rounds of, those that are worth most first; gives their number, which is
    /// one at least.
    fn first_round(&mut self, groups: &[Vec<Planned>]) -> Result<usize> {
        let began = Instant::now();
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(began));
        let mut templates = Templates::default();
        for (position, group) in groups.iter().enumerate() {
            self.round(std::slice::from_ref(group), 1, &mut templates)?;
            if left.is_some_and(|left| began.elapsed() * self.least_rounds() >= left) {
                return Ok(position + 1);
            }
        }
        Ok(groups.len())
    }

    /// One timed round, until the budget ends. Its templates are no other round's.
    fn round(&mut self, groups: &[Vec<Planned>], round: u32, templates: &mut Templates) -> Result<()> {
        for next in round_order(groups, round, self.options.seed).chunks(loaded_together(self.choice)) {
            let mut jobs = Vec::new();
            for planned in next {
                if self.over() {
                    break;
                }
                let spec = self.ask(planned, Pass::Time, round)?;
                jobs.extend(spec.map(|spec| (planned.cell.clone(), spec)));
            }
            match jobs.iter().all(|(_, spec)| suits(self.choice, spec)) {
                true => self.time_copies(jobs, round, templates)?,
                false => self.time_next(jobs, round)?,
            }
        }
        Ok(())
    }

    /// Timed passes, one after the other, each in a copy of the round's template.
    fn time_copies(&mut self, jobs: Vec<(PlainCell, Spec)>, round: u32, templates: &mut Templates) -> Result<()> {
        let device = (self.choice, self.machine.device_memory);
        let python = self.python.clone();
        for (cell, spec) in jobs {
            if self.over() {
                break;
            }
            let record = provided((python.as_ref(), Some(templates)), &spec, &cell, round, device, self.options.timeout)?;
            record.map_or(Ok(()), |record| self.keep(record))?;
        }
        Ok(())
    }

    /// Timed passes, one after the other. Their processes load libtorch side by side beforehand, and each then waits for its turn: loading
    /// takes longer than many passes, and one core.
    fn time_next(&mut self, jobs: Vec<(PlainCell, Spec)>, round: u32) -> Result<()> {
        let device = (self.choice, self.machine.device_memory);
        let python = self.python.clone();
        let mut started = VecDeque::new();
        for (cell, spec) in jobs {
            match provide((python.as_ref(), None), &spec, &cell, device, self.options.timeout)? {
                Provision::Ready => {
                    let spec = Spec { waits: true, ..spec };
                    started.push_back((Started::ahead(program(python.as_ref(), &cell), &spec, device)?, cell));
                }
                Provision::Failed(given) => self.keep(given.of_other_side(&cell, Pass::Time, round))?,
                Provision::Stopped => break,
            }
        }
        started.iter().for_each(|(started, _)| started.wait_until_loaded(self.options.timeout));
        while let Some((next, cell)) = started.pop_front() {
            // What has waited for nothing is ended.
            match self.over() {
                true => next.abandon(),
                false => {
                    if let Some(record) = next.finish(Pass::Time, &cell, round, self.options.timeout)? {
                        self.keep(record)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether nothing is left to check or to count of a cell.
    fn is_counted(&self, planned: &Planned) -> bool {
        let is_done = |(pass, round): (Pass, u32)| {
            self.impossible(planned, pass).is_some() || self.find(&planned.cell, pass, round).is_some()
        };
        self.is_settled(&planned.cell) || self.untimed_passes(planned).into_iter().all(is_done)
    }

    /// Passes that the plan asks for at least and that are not done.
    fn lacking(&self, plan: &Plan) -> usize {
        let least = self.least_rounds();
        let timed = plan
            .cells
            .iter()
            .filter(|p| p.grid.passes.contains(&Pass::Time))
            .flat_map(|p| (1..=least).map(move |n| (p, Pass::Time, n)));
        let untimed = plan.cells.iter().flat_map(|p| self.untimed_passes(p).into_iter().map(move |(pass, round)| (p, pass, round)));
        let all = untimed.chain(timed);
        let lacks = |(p, pass, round): &(&Planned, Pass, u32)| {
            let round = if self.impossible(p, *pass).is_some() { &1 } else { round };
            self.find(&p.cell, *pass, *round).is_none_or(|record| record.reason == BUDGET_ENDED) && !self.is_ended(&p.cell)
        };
        all.filter(lacks).count()
    }

    /// Whether a cell came to an end of its own before all of its passes were run.
    fn is_ended(&self, cell: &PlainCell) -> bool {
        self.records.iter().any(|r| r.cell == *cell && settles(r) && r.reason != BUDGET_ENDED)
    }

    /// Writes a row for each cell that the budget left out.
    fn leave_out(&mut self, plan: &Plan) -> Result<()> {
        let seen: BTreeSet<(PlainCell, Pass)> = self.records.iter().map(|r| (r.cell.clone(), r.pass)).collect();
        let mut left_out = Vec::new();
        for planned in plan.cells.iter().filter(|planned| !self.is_settled(&planned.cell)) {
            let passes = planned.grid.passes.iter().filter(|pass| !seen.contains(&(planned.cell.clone(), **pass)));
            left_out.extend(passes.map(|pass| PassRecord::not_run(&planned.cell, *pass, 1, Status::Skipped, BUDGET_ENDED)));
        }
        self.journal.append(&left_out)?;
        self.records.append(&mut left_out);
        Ok(())
    }
}

/// Whether a record leaves nothing more to find out about its cell. A pass that the device cannot do leaves the others; a reference that ran
/// and lacks a package lacks it in all.
fn settles(record: &PassRecord) -> bool {
    let lacks = record.cell.is_reference() && record.seconds.is_some();
    record.status != Status::Ok && !(record.status == Status::Skipped && record.reason != BUDGET_ENDED && !lacks)
}

/// How many processes load libtorch at the same time before they are timed one by one.
fn loaded_together(choice: DeviceChoice) -> usize {
    match choice {
        DeviceChoice::Cpu => cores().clamp(1, 4),
        // Each would hold memory of the GPU.
        DeviceChoice::Cuda(_) | DeviceChoice::Dry(_) | DeviceChoice::FakeCuda(_) => 1,
    }
}

/// How many cells can be counted at the same time without one changing the bytes of another. On a GPU they would share its memory.
fn side_by_side(choice: DeviceChoice, threads: u32) -> usize {
    match choice {
        DeviceChoice::Cuda(_) => 1,
        DeviceChoice::Cpu => (cores() / threads as usize).max(1),
        // It computes nothing, so one thread is all that a cell takes.
        DeviceChoice::Dry(_) | DeviceChoice::FakeCuda(_) => cores(),
    }
}

/// What the run came to.
fn summary(sweep: &Sweep, plan: &Plan, left: &[FolderNotWritten], dir: &Path) -> RunSummary {
    let judgements = match sweep.profile {
        Profile::Smoke => Vec::new(),
        _ => judge(sweep.protocol, sweep.taken(), &Samples::new(&sweep.records)),
    };
    let failed = sweep.records.iter().filter(|record| record.status.is_failure());
    let folder = if sweep.options.shard.is_some() { dir.parent().unwrap_or(dir) } else { dir };
    RunSummary {
        dir: folder.to_path_buf(),
        left: left.iter().map(|left| left.dir.clone()).collect(),
        came: None,
        // What could only be skipped started no process.
        passes: sweep.records.iter().skip(sweep.resumed).filter(|record| record.seconds.is_some()).count(),
        lacking: sweep.lacking(plan),
        is_open: sweep.rounds.looks().len() > 1 && !sweep.undecided(sweep.least_rounds()).is_empty(),
        failed: failed.map(|record| format!("{} {}: {}: {}", record.pass, record.cell, record.status, record.reason)).collect(),
        judged: judgements.into_iter().map(judged).collect(),
    }
}

fn judged(judgement: Judgement) -> JudgedClaim {
    JudgedClaim {
        claim: judgement.of.id.to_string(),
        text: judgement.of.text.to_string(),
        verdict: judgement.verdict,
        so_far: judgement.so_far,
        measured: judgement.measured(),
        parts: judgement.parts(),
        counts: judgement.carries,
        in_python: judgement.platform == Platform::Python,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_that_lacks_a_package_is_asked_once_and_a_pass_that_the_device_cannot_do_leaves_the_others() {
        let skipped = |cell: &str, seconds| {
            let cell = PlainCell::parse(cell).unwrap();
            PassRecord { seconds, ..PassRecord::not_run(&cell, Pass::Check, 1, Status::Skipped, "this needs torchvision") }
        };
        assert!(settles(&skipped("by=pytorch k=1", Some(2.0))), "it ran and said so");
        assert!(!settles(&skipped("by=pytorch k=1", None)), "it never ran");
        assert!(!settles(&skipped("k=1", Some(2.0))), "a simulated GPU goes through a check and still counts");
        let ended = PassRecord { reason: BUDGET_ENDED.to_string(), ..skipped("k=1", None) };
        assert!(settles(&ended), "until the run is resumed");
    }
}
