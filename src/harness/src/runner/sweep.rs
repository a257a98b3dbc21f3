//! One run of an experiment: every planned cell is checked, counted and timed, and each pass is recorded before the next begins.

use super::INTERRUPTED;
use super::launch::{LEFT_OUT, Launcher};
use super::options::{CellShard, Options};
use super::plan::{Plan, Planned, round_order};
use super::preconditions::{faster_than_possible, has_reference, impossible, memory_disagreement};
use super::progress::Progress;
use super::provenance::{environment, invocation, revision};
use super::python::{Python, for_reference};
use super::reference_process::Exchanges;
use super::spec::Spec;
use super::start::{interruptible, refuse_other_allocators, stopped};
use super::summary::{JudgedClaim, RunSummary, Stage};
use super::template::{Templates, suits};
use crate::machine::{DeviceChoice, Machine, flags};
use anyhow::{Context, Result};
use base::order::grouped;
use base::units::{Bytes, Seconds, now};
use record::judge::{RunContext, judge, undecided};
use record::protocol::{DEVICE_MEMORY, Pass, PlainCell, PlainProtocol, Platform, Profile, TIME};
use record::results::{
    BUDGET_ENDED, Command, FolderNotWritten, Identity, Journal, Manifest, PassRecord, Place, Run, SCHEMA, SHARD, Samples, Status,
    came,
};
use record::rounds::Rounds;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::slice;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

/// What a run is to measure, on what, and who runs its passes.
struct Setting<'a> {
    protocol: &'a PlainProtocol,
    options: &'a Options,
    profile: Profile,
    rounds: Rounds,
    plan: &'a Plan<'a>,
    machine: Machine,
    launcher: Launcher,
}

/// Runs a plan and says how it went; gives the exit status.
///
/// # Errors
/// Nothing can be measured or recorded; cells that fail are rows, not errors.
pub fn run(
    protocol: &PlainProtocol,
    options: &Options,
    choice: DeviceChoice,
    profile: Profile,
    rounds: Rounds,
    plan: &Plan,
    out: &Path,
) -> Result<u8> {
    let machine = Machine::describe(choice)?;
    if choice != DeviceChoice::Cpu {
        refuse_other_allocators()?;
    }
    interruptible()?;
    let asks_python = plan.cells.iter().any(|planned| has_reference(choice, planned));
    let python = asks_python.then(|| Python::find(&protocol.name)).transpose()?;
    let usual = options.within.as_ref().map_or(BTreeMap::new(), |_| recorded_seconds(out, choice.platform(), &protocol.name));
    let launcher = Launcher { choice, device_memory: machine.device_memory, timeout: options.timeout, usual, python };
    let setting = Setting { protocol, options, profile, rounds, plan, machine, launcher };
    let mut manifest = setting.manifest()?;
    // Before a folder is chosen or made: a run that was stopped leaves nothing.
    if stopped() {
        return Ok(INTERRUPTED);
    }
    let part = options.shard.map(|CellShard { index, count }| format!("{SHARD}{index}-of-{count}"));
    let Place { dir, left } = Place::find(out, part.as_deref(), &manifest);
    let (journal, records) = Journal::open(&dir, &mut manifest, options.fresh)?;
    let mut sweep = Sweep::new(&setting, journal, records);
    let is_further_look = options.within.as_ref().is_some_and(|within| within.look > Stage::Guided);
    if sweep.resumed > 0 && !is_further_look {
        sweep.say(&format!("going on in {}, where {} passes are done", dir.display(), sweep.resumed));
    } else if options.within.is_none() {
        for FolderNotWritten { dir: there, why } in &left {
            sweep.say(&format!("{} stays as it is: {}", there.display(), why.join("; ")));
        }
    }
    sweep.run()?;
    sweep.progress.finish();
    let summary = sweep.summary(&left, &dir);
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
    let (took, failed) = (Seconds(sweep.began.elapsed().as_secs_f64()), summary.failed.len());
    if is_further_look && sweep.resumed > 0 && summary.passes + summary.lacking == 0 && !stopped() {
        return Ok(u8::from(failed > 0));
    }
    println!("{}: {state}: {} passes in {took}, {failed} failed; {}", protocol.name, summary.passes, dir.display());
    Ok(if stopped() { INTERRUPTED } else { u8::from(failed > 0) })
}

impl Setting<'_> {
    fn manifest(&self) -> Result<Manifest> {
        let Setting { protocol, options, machine, launcher, .. } = self;
        let (git_revision, git_dirty) = revision();
        let mut flags = flags(options.threads() as usize)?;
        let python = launcher.python.as_ref();
        flags.extend(python.map(|found| ("python".to_string(), found.as_ref().map_or("none".to_string(), Python::describe))));
        Ok(Manifest {
            schema: SCHEMA,
            method: protocol.method(),
            profile: self.profile,
            identity: Identity {
                machine: machine.slug.clone(),
                platform: launcher.choice.platform(),
                hardware: machine.hardware.clone(),
                libtorch: machine.libtorch.clone(),
                flags,
                memory_limit: options.device_memory.map(|b| b.0),
                seed: u64::from(options.seed),
            },
            planned: self.plan.cells.iter().map(|p| p.cell.to_string()).collect(),
            rounds: self.rounds.clone(),
            commands: vec![Command { began: now(), argv: invocation(), git_revision, git_dirty, environment: environment(python) }],
            protocol: (*protocol).clone(),
        })
    }
}

struct Sweep<'a> {
    setting: &'a Setting<'a>,
    journal: Journal,
    records: Vec<PassRecord>,
    progress: Progress,
    began: Instant,
    deadline: Option<Instant>,
    budget_ended: bool,
    /// Passes that an earlier run had done.
    resumed: usize,
    exchanges: Exchanges,
    /// Of untimed passes, for each that runs beside others. A template ends with the thread that started it, and these are needed again.
    templates: Vec<Templates>,
}

impl<'a> Sweep<'a> {
    fn new(setting: &'a Setting<'a>, journal: Journal, records: Vec<PassRecord>) -> Sweep<'a> {
        let options = setting.options;
        let began = Instant::now();
        Sweep {
            setting,
            journal,
            resumed: records.len(),
            records,
            progress: Progress::new(&setting.protocol.name, options.within.as_ref().map(|within| within.share)),
            began,
            deadline: options.budget(setting.profile).map(|budget| began + budget),
            budget_ended: false,
            exchanges: Exchanges::default(),
            templates: Vec::new(),
        }
    }

    fn say(&self, what: &str) {
        self.progress.say(&format!("{}: {what}", self.setting.protocol.name));
    }

    fn run(&mut self) -> Result<()> {
        let plan = self.setting.plan;
        let groups = plan.timed_groups();
        let untimed: usize = plan.cells.iter().map(|planned| self.check_and_memory_passes(planned).len()).sum();
        let timed: usize = groups.iter().map(Vec::len).sum();
        let planned = untimed + timed * self.least_rounds() as usize;
        self.progress.expect(planned.saturating_sub(self.records.len()));
        // Bytes without times are half an answer: a short budget is shared by both.
        let now = Instant::now();
        let share = if timed > 0 { 0.5 } else { 1.0 };
        self.count(&plan.cells, self.deadline.map(|deadline| now + deadline.saturating_duration_since(now).mul_f64(share)))?;
        self.time(groups)?;
        self.count(&plan.cells, self.deadline)?;
        if self.lacking() > 0 {
            self.over();
        }
        if self.budget_ended && !stopped() {
            self.leave_out()?;
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
    fn check_and_memory_passes(&self, planned: &Planned) -> Vec<(Pass, u32)> {
        let twice = planned.twice
            || matches!(self.setting.launcher.choice, DeviceChoice::Cuda(_))
            || self.setting.profile == Profile::Smoke;
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
    fn count(&mut self, cells: &[Planned], until: Option<Instant>) -> Result<()> {
        let mut jobs = Vec::new();
        for planned in cells {
            for (pass, round) in self.check_and_memory_passes(planned) {
                // Both sides of a comparison hand things to each other.
                let chain = if planned.grid.is_shared() { &planned.baseline } else { &planned.cell };
                jobs.extend(self.ask(planned, pass, round)?.map(|spec| (chain, spec)));
            }
        }
        let chains = grouped(jobs).into_iter().map(|(_, chain)| (chain[0].threads, chain));
        grouped(chains).into_iter().try_for_each(|(threads, chains)| self.run_side_by_side(chains, threads, until))
    }

    /// Runs chains of passes, as many at a time as the machine has cores for.
    fn run_side_by_side(&mut self, chains: Vec<Vec<Spec>>, threads: u32, until: Option<Instant>) -> Result<()> {
        let launcher = &self.setting.launcher;
        let workers = launcher.choice.side_by_side(threads, chains.len());
        let mut templates = std::mem::take(&mut self.templates);
        templates.resize_with(templates.len().max(workers), Templates::default);
        let all: Vec<&Spec> = chains.iter().flatten().collect();
        templates.iter_mut().take(workers).for_each(|templates| launcher.prepare(&all, templates));
        let waiting = Mutex::new(chains.into_iter());
        let next = || waiting.lock().ok().and_then(|mut waiting| waiting.next());
        let is_over = || stopped() || until.is_some_and(|until| Instant::now() >= until);
        let (sender, records) = channel();
        let work = |templates: &mut Templates, sender: Sender<Result<PassRecord>>| {
            while let Some(chain) = next() {
                let mut settled: Option<PlainCell> = None;
                for spec in chain {
                    if settled.as_ref() == Some(&spec.cell) {
                        continue;
                    }
                    if is_over() {
                        return;
                    }
                    // None where it was stopped.
                    let Some(record) = launcher.run(&spec, templates).transpose() else { return };
                    if record.as_ref().is_ok_and(settles) {
                        settled = Some(spec.cell);
                    }
                    if sender.send(record).is_err() {
                        return;
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for templates in templates.iter_mut().take(workers) {
                let sender = sender.clone();
                let work = &work;
                scope.spawn(move || work(templates, sender));
            }
            drop(sender);
            records.iter().try_for_each(|record| self.keep(record?))
        })?;
        self.templates = templates;
        Ok(())
    }

    /// What a child is to be asked for; none where that is done, an earlier pass settled it, or it cannot be, which is recorded.
    fn ask(&mut self, planned: &Planned, pass: Pass, round: u32) -> Result<Option<Spec>> {
        let Planned { cell, baseline, grid, .. } = planned;
        let Setting { protocol, options, launcher, .. } = self.setting;
        if self.find(cell, pass, round).is_some() || self.is_settled(cell) {
            return Ok(None);
        }
        if let Some(reason) = self.impossible(planned, pass) {
            // One row says it.
            if !self.records.iter().any(|r| r.cell == *cell && r.pass == pass) {
                self.keep(PassRecord::not_run(cell, pass, round, Status::Skipped, &reason))?;
            }
            return Ok(None);
        }
        let threads = self.threads(cell, pass)?;
        let times_more = || protocol.metrics.iter().any(|metric| metric.pass == Pass::Time && metric.name != TIME.name);
        Ok(Some(Spec {
            cell: cell.clone(),
            pass,
            round,
            device: launcher.choice.to_string(),
            threads,
            seed: options.seed,
            memory_limit: self.memory_limit(cell, pass)?,
            baseline: baseline.clone(),
            expected: if pass == Pass::Check { protocol.check_of(cell).cloned() } else { None },
            exchange: grid.is_shared().then(|| self.exchanges.files(cell)).transpose()?,
            writes_for_other_side: false,
            waits: false,
            anew: pass == Pass::Time && times_more(),
            reference: cell.is_reference().then(|| for_reference(threads)).transpose()?,
            witness: None,
            alloc_conf: cell.alloc_conf().map(str::to_string),
            parent: std::process::id(),
        }))
    }

    /// The threads that the cell asks for, or else the user. A check has one: of two, who computes which part of a product can change from process to
    /// process, and with it the last bit.
    fn threads(&self, cell: &PlainCell, pass: Pass) -> Result<u32> {
        match cell.threads() {
            Some(level) => {
                level.parse().ok().filter(|n| *n > 0).with_context(|| format!("'{level}' is no number of threads, and not 'all'"))
            }
            None if pass == Pass::Check => Ok(1),
            None => Ok(self.setting.options.threads()),
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

    /// Why a pass over a cell cannot be run here; none where it can.
    fn impossible(&self, planned: &Planned, pass: Pass) -> Option<String> {
        impossible(self.setting.launcher.choice, planned, pass).or_else(|| match &self.setting.launcher.python {
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
        let users = self.setting.options.device_memory.map(|b| b.0);
        Ok(own.into_iter().chain(users).min())
    }

    /// What a second pass or the limits of physics have against a record.
    fn contradiction(&self, record: &PassRecord) -> Option<(Status, String)> {
        if record.status != Status::Ok {
            return None;
        }
        match record.pass {
            Pass::Memory => {
                let apart = memory_disagreement(self.setting.protocol, self.find(&record.cell, Pass::Memory, 1)?, record)?;
                Some((apart.status(self.setting.launcher.choice), apart.reason))
            }
            Pass::Time => Some((Status::Invalid, faster_than_possible(record, self.setting.machine.flops_limit?)?)),
            Pass::Check => None,
        }
    }

    /// Timed rounds over all groups, until each has had enough, the rounds are used up or the budget ends. One comparison with the rounds that
    /// an interval needs answers more than many without: under a budget no more groups are begun than can have them, and the others follow.
    fn time(&mut self, mut waiting: Vec<Vec<Planned>>) -> Result<()> {
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
        if self.setting.options.within.as_ref().is_some_and(|within| within.look < Stage::Again) {
            return Ok(());
        }
        let looks = self.setting.rounds.looks();
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
        self.setting.rounds.least().max(1)
    }

    /// The cells that claims leave undecided after so many rounds.
    fn undecided(&self, look: u32) -> BTreeSet<PlainCell> {
        let until = self.records.iter().filter(|record| record.pass != Pass::Time || record.round <= look).cloned();
        undecided(self.setting.protocol, self.taken(), &Samples::new(&until.collect::<Vec<_>>()))
    }

    fn taken(&self) -> RunContext<'a> {
        let setting = self.setting;
        let machine = &setting.machine.slug;
        RunContext { machine, profile: setting.profile, device: setting.launcher.choice.platform(), rounds: &setting.rounds }
    }

    /// The first round of as many groups as the budget allows all rounds of, those that are worth most first; gives their number, which is
    /// one at least.
    fn first_round(&mut self, groups: &[Vec<Planned>]) -> Result<usize> {
        let began = Instant::now();
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(began));
        let mut templates = Templates::default();
        for (position, group) in groups.iter().enumerate() {
            self.round(slice::from_ref(group), 1, &mut templates)?;
            if left.is_some_and(|left| began.elapsed() * self.least_rounds() >= left) {
                return Ok(position + 1);
            }
        }
        Ok(groups.len())
    }

    /// One timed round, until the budget ends. Its templates are no other round's.
    fn round(&mut self, groups: &[Vec<Planned>], round: u32, templates: &mut Templates) -> Result<()> {
        let choice = self.setting.launcher.choice;
        for next in round_order(groups, round, self.setting.options.seed).chunks(choice.preloaded_processes()) {
            let mut jobs = Vec::new();
            for planned in next {
                if self.over() {
                    break;
                }
                jobs.extend(self.ask(planned, Pass::Time, round)?);
            }
            match jobs.iter().all(|spec| suits(choice, spec)) {
                true => self.time_in_copies(jobs, templates)?,
                false => self.time_in_processes(jobs, templates)?,
            }
        }
        Ok(())
    }

    /// Timed passes, one after the other, each in a copy of the round's template.
    fn time_in_copies(&mut self, jobs: Vec<Spec>, templates: &mut Templates) -> Result<()> {
        for spec in jobs {
            if self.over() {
                break;
            }
            let record = self.setting.launcher.run(&spec, templates)?;
            record.map_or(Ok(()), |record| self.keep(record))?;
        }
        Ok(())
    }

    /// Timed passes, one after the other. Their processes load libtorch side by side beforehand, and each then waits for its turn: loading
    /// takes longer than many passes, and one core.
    fn time_in_processes(&mut self, jobs: Vec<Spec>, templates: &mut Templates) -> Result<()> {
        let Setting { launcher, options, .. } = self.setting;
        let mut started = Vec::new();
        for spec in jobs {
            match launcher.provide(&spec, templates)? {
                ControlFlow::Continue(()) => started.push(launcher.start(&Spec { waits: true, ..spec })?),
                ControlFlow::Break(Some(failed)) => self.keep(failed)?,
                ControlFlow::Break(None) => break,
            }
        }
        started.iter().for_each(|started| started.wait_until_loaded(options.timeout));
        for next in started {
            // What has waited for nothing is ended.
            match self.over() {
                true => next.abandon(),
                false => {
                    let limit = launcher.limit(next.spec());
                    next.finish(limit, limit < options.timeout).map_or(Ok(()), |record| self.keep(record))?;
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
        self.is_settled(&planned.cell) || self.check_and_memory_passes(planned).into_iter().all(is_done)
    }

    /// Passes that the plan asks for at least and that are not done.
    fn lacking(&self) -> usize {
        let passes = |planned: &Planned| {
            let rounds = if planned.grid.passes.contains(&Pass::Time) { self.least_rounds() } else { 0 };
            self.check_and_memory_passes(planned)
                .into_iter()
                .chain((1..=rounds).map(|round| (Pass::Time, round)))
                .collect::<Vec<_>>()
        };
        let lacks = |planned: &Planned, pass: Pass, round: u32| {
            let round = if self.impossible(planned, pass).is_some() { 1 } else { round };
            self.find(&planned.cell, pass, round).is_none_or(|record| record.reason == BUDGET_ENDED)
        };
        let open = self.setting.plan.cells.iter().filter(|planned| !self.is_ended(&planned.cell));
        open.map(|planned| passes(planned).into_iter().filter(|(pass, round)| lacks(planned, *pass, *round)).count()).sum()
    }

    /// Whether a cell came to an end of its own before all of its passes were run.
    fn is_ended(&self, cell: &PlainCell) -> bool {
        self.records.iter().any(|r| r.cell == *cell && settles(r) && r.reason != BUDGET_ENDED)
    }

    /// Writes a row for each cell that the budget left out.
    fn leave_out(&mut self) -> Result<()> {
        let seen: BTreeSet<(PlainCell, Pass)> = self.records.iter().map(|r| (r.cell.clone(), r.pass)).collect();
        let mut left_out = Vec::new();
        for planned in self.setting.plan.cells.iter().filter(|planned| !self.is_settled(&planned.cell)) {
            let passes = planned.grid.passes.iter().filter(|pass| !seen.contains(&(planned.cell.clone(), **pass)));
            left_out.extend(passes.map(|pass| PassRecord::not_run(&planned.cell, *pass, 1, Status::Skipped, BUDGET_ENDED)));
        }
        self.journal.append(&left_out)?;
        self.records.append(&mut left_out);
        Ok(())
    }

    /// What the run came to.
    fn summary(&self, left: &[FolderNotWritten], dir: &Path) -> RunSummary {
        let setting = self.setting;
        let judgements = match setting.profile {
            Profile::Smoke => Vec::new(),
            _ => judge(setting.protocol, self.taken(), &Samples::new(&self.records)),
        };
        let is_failed = |record: &&PassRecord| record.status.is_failure() && !record.reason.starts_with(LEFT_OUT);
        let failed = self.records.iter().filter(is_failed);
        let folder = if setting.options.shard.is_some() { dir.parent().unwrap_or(dir) } else { dir };
        RunSummary {
            dir: folder.to_path_buf(),
            left: left.iter().map(|left| left.dir.clone()).collect(),
            // What could only be skipped started no process.
            passes: self.records.iter().skip(self.resumed).filter(|record| record.seconds.is_some()).count(),
            lacking: self.lacking(),
            is_open: setting.rounds.looks().len() > 1 && !self.undecided(self.least_rounds()).is_empty(),
            failed: failed.map(|record| format!("{} {}: {}: {}", record.pass, record.cell, record.status, record.reason)).collect(),
            judged: judgements.iter().map(JudgedClaim::of).collect(),
        }
    }
}

/// Whether a record leaves nothing more to find out about its cell. A pass that the device cannot do leaves the others; a reference that ran
/// and lacks a package lacks it in all.
fn settles(record: &PassRecord) -> bool {
    let lacks = record.cell.is_reference() && record.seconds.is_some();
    record.status != Status::Ok && !(record.status == Status::Skipped && record.reason != BUDGET_ENDED && !lacks)
}

/// What the passes of an experiment took on a platform where the project's own results were taken: the longest of each kind and cell.
fn recorded_seconds(out: &Path, platform: Platform, experiment: &str) -> BTreeMap<(PlainCell, Pass), f64> {
    let runs = came(out).into_iter().filter_map(|machine| Run::read(&machine.join(experiment)).ok());
    let mut usual = BTreeMap::new();
    for pass in runs.filter(|run| run.manifest.identity.platform == platform).flat_map(|run| run.passes) {
        let most: &mut f64 = usual.entry((pass.cell, pass.pass)).or_default();
        *most = most.max(pass.seconds.unwrap_or(0.0));
    }
    usual
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_package_settles_a_cell() {
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
