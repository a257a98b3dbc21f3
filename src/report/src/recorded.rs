//! One experiment on one machine, as read from its results folder, with what the report asks of it.

use super::prose;
use anyhow::{Context, Result, ensure};
use base::stats::Interval;
use record::judge::{Judgement, Reproduction, RunContext, judge, reproduce};
use record::protocol::{COMPUTED, LEAST_FLOPS, Metric, Pass, PlainCell, PlainGrid, PlainProtocol, Platform, SubjectKind, TIME};
use record::results::{Manifest, PassRecord, Run, Samples, Status, came, folders, holds_results};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Error rate of the intervals that tables and plots show; verdicts use their own, widened for many comparisons.
const ALPHA: f64 = 0.05;

/// More cells than any grid has.
const MOST_CELLS: usize = 100_000;

#[derive(Debug)]
pub struct Recorded {
    /// Name of the results folder, which names the machine.
    pub machine: String,
    /// Whether these are the user's own results, which stand beside those that came with the project.
    pub is_own: bool,
    pub manifest: Manifest,
    pub protocol: PlainProtocol,
    pub passes: Vec<PassRecord>,
    pub samples: Samples,
    pub judgements: Vec<Judgement>,
    pub reproductions: Vec<Reproduction>,
    /// The highest rate at which this machine computed one operation in fp32, in operations a second; none where no experiment measured it.
    pub fastest: Option<f64>,
    /// Cells that were measured by an earlier form of the step, with what is the first that today's asks for otherwise.
    pub earlier_form: Vec<(PlainCell, String)>,
    planned: BTreeSet<PlainCell>,
}

impl Recorded {
    /// Whether a claim is about the lab itself.
    pub fn is_self_check(&self, id: &str) -> bool {
        let is_named = || self.protocol.claims.iter().any(|claim| claim.id == id && claim.about_the_lab);
        self.protocol.subject.kind == SubjectKind::SelfCheck || is_named()
    }

    fn new(machine: &str, run: Run) -> Result<Recorded> {
        let Run { manifest, passes, earlier_form } = run;
        for grid in &manifest.protocol.grids {
            let cells = grid.axes.iter().try_fold(1usize, |cells, axis| cells.checked_mul(axis.levels.len()));
            ensure!(cells.is_some_and(|cells| cells <= MOST_CELLS), "the grid '{}' plans more than {MOST_CELLS} cells", grid.name);
        }
        let protocol = manifest.protocol.clone();
        let samples = Samples::new(&passes);
        let taken = RunContext { machine, profile: manifest.profile, device: manifest.identity.platform, rounds: &manifest.rounds };
        let judgements = judge(&protocol, taken, &samples);
        let reproductions = reproduce(&protocol, taken, &samples);
        let planned = manifest.planned.iter().map(|text| PlainCell::parse(text).map_err(anyhow::Error::msg));
        let planned = planned.collect::<Result<_>>()?;
        Ok(Recorded {
            machine: machine.to_string(),
            is_own: false,
            manifest,
            protocol,
            passes,
            samples,
            judgements,
            reproductions,
            fastest: None,
            earlier_form,
            planned,
        })
    }

    /// The machine as pages name it.
    pub fn whose(&self) -> String {
        prose::whose(self.platform(), &self.machine)
    }

    pub fn platform(&self) -> Platform {
        self.manifest.identity.platform
    }

    /// Whether nothing here was measured: a simulated GPU allocates and never computes.
    pub fn is_prediction(&self) -> bool {
        self.platform() == Platform::Dry
    }

    /// The grids of the profile that was run.
    pub fn grids(&self) -> impl Iterator<Item = &PlainGrid> {
        self.protocol.grids(self.manifest.profile)
    }

    pub fn grid_of(&self, cell: &PlainCell) -> Option<&PlainGrid> {
        self.protocol.grid_of(self.manifest.profile, cell)
    }

    /// The cells of a grid that this run set out to measure, in the grid's order; a filter or a shard leaves the others out.
    pub fn cells(&self, grid: &PlainGrid) -> Vec<PlainCell> {
        grid.cells().into_iter().filter(|cell| self.planned.contains(cell) || self.samples.status(cell).is_some()).collect()
    }

    /// All cells of the run, grid by grid.
    pub fn all_cells(&self) -> Vec<PlainCell> {
        self.grids().flat_map(|grid| self.cells(grid)).collect()
    }

    /// What became of one kind of pass over a cell; none where it left no row.
    pub fn outcome(&self, cell: &PlainCell, pass: Pass) -> Option<(Status, &str)> {
        self.samples.outcomes(cell)?.get(&pass).map(|(status, reason)| (*status, reason.as_str()))
    }

    /// Why a cell has no figure of a kind of pass: what became of that pass, or of another that stopped it.
    pub fn obstacle(&self, cell: &PlainCell, pass: Pass) -> Option<(Status, &str)> {
        let by_pass = self.samples.outcomes(cell)?;
        let not_ok = |outcome: &&(Status, String)| outcome.0 != Status::Ok;
        let own = by_pass.get(&pass).filter(not_ok);
        let other = || by_pass.values().filter(not_ok).max_by_key(|outcome| outcome.0);
        let invalid = by_pass.values().find(|outcome| outcome.0 == Status::Invalid);
        invalid.or(own).or_else(other).map(|(status, reason)| (*status, reason.as_str()))
    }

    /// A cell's figure over that of its baseline; none for the baseline itself.
    pub fn ratio(&self, cell: &PlainCell, metric: &Metric) -> Option<Interval> {
        let baseline = self.grid_of(cell)?.baseline_of(cell);
        (*cell != baseline).then(|| self.samples.ratio(cell, &baseline, metric, ALPHA)).flatten()
    }

    /// The least operations a second of a cell's step, over the fastest that this machine computed anything.
    pub fn share_of_fastest(&self, cell: &PlainCell) -> Option<f64> {
        let operations = self.samples.value(cell, LEAST_FLOPS.name).filter(|operations| *operations > 0.0)?;
        Some(operations / self.samples.value(cell, TIME.name)? / self.fastest?)
    }

    /// The highest rate among this run's operations in fp32.
    fn highest_rate(&self) -> Option<f64> {
        let cells = self.all_cells().into_iter().filter(|cell| cell.is_fp32());
        cells.filter_map(|cell| self.samples.value(&cell, COMPUTED.name)).reduce(f64::max)
    }

    /// What went wrong with a cell, if anything; a skipped pass beside one that went well is no trouble.
    pub fn trouble(&self, cell: &PlainCell) -> Option<Status> {
        let statuses = || self.samples.outcomes(cell).into_iter().flat_map(|by_pass| by_pass.values().map(|(status, _)| *status));
        let worst = statuses().max().filter(|status| *status != Status::Ok)?;
        (worst != Status::Skipped || statuses().all(|status| status == Status::Skipped)).then_some(worst)
    }

    /// The cells of the run that lack a pass, or some of its rounds: a run that was cut short.
    pub fn awaited(&self) -> Vec<PlainCell> {
        let lacks = |grid: &PlainGrid, cell: &PlainCell| grid.passes.iter().any(|pass| self.is_awaited(cell, *pass));
        self.grids()
            .flat_map(|grid| self.cells(grid).into_iter().filter(move |cell| self.planned.contains(cell) && lacks(grid, cell)))
            .collect()
    }

    /// Whether a pass over a cell is still to be run.
    pub fn is_awaited(&self, cell: &PlainCell, pass: Pass) -> bool {
        self.samples.is_awaited(cell, pass, self.manifest.rounds.least_of(pass))
    }
}

/// Reads `results/MACHINE/EXPERIMENT/` for every machine and experiment, and what came with the project in `records` beside it; machines that
/// measured come before those that predict.
///
/// # Errors
/// There are no results; a folder cannot be read; a file is damaged (file and line are named).
pub fn read_all(results: &Path) -> Result<Vec<Recorded>> {
    let nothing = || {
        format!(
            "no results in {}: measure first with `just run-all`, or name the folder that holds MACHINE/EXPERIMENT/run.json with --results",
            results.display()
        )
    };
    let came = came(results);
    let own = if results.exists() { folders(results)? } else { Vec::new() };
    let mut recorded: Vec<Recorded> = Vec::new();
    for machine in came.iter().chain(&own) {
        let mut of_machine = experiments_of(machine)?;
        let fastest = of_machine.iter().filter_map(Recorded::highest_rate).reduce(f64::max);
        let is_known = came.iter().any(|other| name_of(other) == name_of(machine));
        for run in &mut of_machine {
            run.fastest = fastest;
            run.is_own = !came.is_empty() && !came.contains(machine);
            if run.is_own && is_known {
                run.machine = format!("{}-yours", run.machine);
            }
        }
        recorded.append(&mut of_machine);
    }
    ensure!(!recorded.is_empty(), nothing());
    recorded.sort_by_cached_key(|run| (run.protocol.name.clone(), run.is_own, run.platform(), run.machine.clone()));
    Ok(recorded)
}

/// Reads one machine's folder, `results/MACHINE`.
pub fn read_machine(machine: &Path) -> Result<Vec<Recorded>> {
    let recorded = experiments_of(machine)?;
    ensure!(
        !recorded.is_empty(),
        "no results in {}: name the folder of one machine, which holds EXPERIMENT/run.json",
        machine.display()
    );
    Ok(recorded)
}

fn experiments_of(machine: &Path) -> Result<Vec<Recorded>> {
    let experiments = folders(machine)?.into_iter().filter(|experiment| holds_results(experiment));
    experiments.map(|experiment| read_one(machine, &experiment)).collect()
}

fn read_one(machine: &Path, experiment: &Path) -> Result<Recorded> {
    let run = Run::read(experiment)?;
    let folder = name_of(experiment);
    ensure!(
        folder == run.manifest.protocol.name,
        "{} holds results of the experiment '{}'; rename the folder to it, or remove it",
        experiment.display(),
        run.manifest.protocol.name
    );
    Recorded::new(&name_of(machine), run).with_context(|| format!("reading {}", experiment.display()))
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// One record of each machine, those that measure before those that predict.
pub fn machines(recorded: &[Recorded]) -> Vec<&Recorded> {
    let by_name: BTreeMap<_, &Recorded> = recorded.iter().map(|r| ((r.platform(), &r.machine), r)).collect();
    by_name.into_values().collect()
}
