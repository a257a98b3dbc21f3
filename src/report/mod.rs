//! From results to a report: `report.md` with its plots, built from the samples and manifests of any number of machines.
//!
//! The report is a function of the results alone: no clock, no order that a hash map gives. The same results give the same bytes.

mod claims;
mod plots;
mod prose;
mod recorded;
mod tables;

use crate::record::{Manifest, replace_file};
use crate::units::Bytes;
use anyhow::{Context, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use plots::Picture;
use recorded::Recorded;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A report that is not written yet.
#[derive(Debug)]
pub struct Report {
    pub markdown: String,
    pictures: Vec<Picture>,
}

/// Reads all results and writes the report with its plots; plots that it no longer shows are removed.
///
/// # Errors
/// There are no results; a results file is damaged (file and line named); the folder cannot be written. What stood in `out` before
/// is then still whole.
pub fn write(results: &Path, out: &Path) -> Result<PathBuf> {
    let recorded = recorded::read_all(results)?;
    assemble(&recorded, results)?.save(out)
}

impl Report {
    /// Writes plots first and the text that shows them last, each aside and renamed.
    fn save(&self, out: &Path) -> Result<PathBuf> {
        let plots = out.join("plots");
        let hint = || format!("cannot write the report to {}; name another folder with --out", out.display());
        std::fs::create_dir_all(&plots).with_context(hint)?;
        for picture in &self.pictures {
            replace_file(&plots.join(&picture.file), picture.svg.as_bytes()).with_context(hint)?;
        }
        let path = out.join("report.md");
        replace_file(&path, self.markdown.as_bytes()).with_context(hint)?;
        for entry in std::fs::read_dir(&plots).with_context(hint)? {
            let old = entry.with_context(hint)?.path();
            let shown = self.pictures.iter().any(|p| old.file_name().is_some_and(|name| name == p.file.as_str()));
            if !shown && old.extension().is_some_and(|extension| extension == "svg") {
                std::fs::remove_file(&old).with_context(|| format!("removing the outdated plot {}", old.display()))?;
            }
        }
        Ok(path)
    }
}

/// A picture as the text refers to it.
#[derive(Debug, Serialize)]
struct Shown {
    machine: String,
    file: String,
    alt: String,
}

/// One plot, or the overview, on every machine that has it.
#[derive(Debug, Default, Serialize)]
struct Gallery {
    shown: Vec<Shown>,
    /// Machines that have no figure for it.
    without: Vec<String>,
}

impl Gallery {
    fn add(&mut self, recorded: &Recorded, picture: Option<Picture>, pictures: &mut Vec<Picture>) {
        match picture {
            Some(picture) => {
                self.shown.push(Shown { machine: recorded.machine.clone(), file: picture.file.clone(), alt: picture.alt.clone() });
                pictures.push(picture);
            }
            None => self.without.push(recorded.machine.clone()),
        }
    }
}

#[derive(Debug, Serialize)]
struct Experiment {
    name: &'static str,
    title: &'static str,
    question: &'static str,
    hypothesis: &'static str,
    factors: Vec<VariedFactor>,
    galleries: Vec<Gallery>,
    measured: Vec<Measured>,
    claims: Vec<claims::ClaimSection>,
    threats: Vec<&'static str>,
    /// Whether machines ran different versions of the protocol.
    protocols_differ: bool,
}

#[derive(Debug, Serialize)]
struct VariedFactor {
    name: &'static str,
    meaning: &'static str,
    levels: Vec<String>,
    is_studied: bool,
}

/// One machine's figures for an experiment.
#[derive(Debug, Serialize)]
struct Measured {
    machine: String,
    device: &'static str,
    /// Whether the figures were taken or predicted.
    taken: &'static str,
    profile: String,
    command: String,
    tables: Vec<tables::Table>,
}

/// One way in which a machine was set up.
#[derive(Debug, PartialEq, Serialize)]
struct Setup {
    machine: String,
    device: &'static str,
    hardware: Vec<String>,
    libtorch: String,
    flags: Vec<String>,
    profile: String,
    revision: String,
}

#[derive(Debug, Serialize)]
struct SetupRow {
    #[serde(flatten)]
    setup: Setup,
    experiments: Vec<&'static str>,
}

/// Everything that the template fills in.
#[derive(Debug, Serialize)]
struct Page {
    command: String,
    summaries: Vec<String>,
    ledger: Vec<claims::Entry>,
    overview: Gallery,
    setups: Vec<SetupRow>,
    troubles: Vec<String>,
    has_predictions: bool,
    experiments: Vec<Experiment>,
}

fn assemble(recorded: &[Recorded], results: &Path) -> Result<Report> {
    let mut pictures = Vec::new();
    let machines = machines(recorded);
    let overview = overview(recorded, &machines, &mut pictures)?;
    let by_experiment = recorded.chunk_by(|a, b| a.protocol.name == b.protocol.name);
    let experiments: Vec<Experiment> = by_experiment.map(|runs| experiment(runs, &mut pictures)).collect::<Result<_>>()?;
    let page = Page {
        command: command(results),
        summaries: machines.iter().map(|machine| summary(recorded, machine)).collect(),
        ledger: claims::ledger(recorded, &machines),
        overview,
        setups: setups(recorded),
        troubles: troubles(recorded),
        has_predictions: recorded.iter().any(Recorded::is_prediction),
        experiments,
    };
    Ok(Report { markdown: tidy(&render(&page)?), pictures })
}

fn render(page: &Page) -> Result<String> {
    let mut templates = Environment::new();
    templates.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    templates.set_undefined_behavior(UndefinedBehavior::Strict);
    templates.add_filter("cell", |text: String| text.replace('|', "\\|").replace('<', "&lt;"));
    templates.add_filter("prose", |text: String| text.replace('<', "&lt;"));
    templates.add_filter("attribute", |text: String| text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;"));
    templates.add_template("report", include_str!("report.md.j2")).context("parsing the report's template")?;
    templates.get_template("report")?.render(Serde(page)).context("filling in the report's template")
}

/// The command that makes the report again; where it is written to does not change what it says.
fn command(results: &Path) -> String {
    match results.to_str() {
        Some("results" | "results/" | "./results") => "vramlab report".to_string(),
        _ => format!("vramlab report --results {}", results.display()),
    }
}

/// One record of each machine, those that measure before those that predict.
fn machines(recorded: &[Recorded]) -> Vec<&Recorded> {
    let by_name: BTreeMap<_, &Recorded> = recorded.iter().map(|r| ((r.platform(), &r.machine), r)).collect();
    by_name.into_values().collect()
}

fn overview(recorded: &[Recorded], machines: &[&Recorded], pictures: &mut Vec<Picture>) -> Result<Gallery> {
    let mut gallery = Gallery::default();
    for machine in machines {
        let own: Vec<&Recorded> = recorded.iter().filter(|r| r.machine == machine.machine).collect();
        gallery.add(machine, plots::overview(&own)?, pictures);
    }
    Ok(gallery)
}

fn experiment(runs: &[Recorded], pictures: &mut Vec<Picture>) -> Result<Experiment> {
    let protocol = runs[0].protocol;
    let mut galleries = Vec::new();
    for plot in protocol.plots {
        let mut gallery = Gallery::default();
        for run in runs {
            // Each machine's own version of the plot: an old result keeps the protocol that it was taken with.
            let own = run.protocol.plots.iter().find(|p| p.name == plot.name);
            let picture = own.map(|own| plots::draw(run, own)).transpose()?.flatten();
            gallery.add(run, picture, pictures);
        }
        galleries.push(gallery);
    }
    Ok(Experiment {
        name: protocol.name,
        title: protocol.title,
        question: protocol.question,
        hypothesis: protocol.hypothesis,
        factors: varied(runs),
        galleries,
        measured: runs.iter().map(measured).collect(),
        claims: claims::sections(runs),
        threats: protocol.threats.to_vec(),
        protocols_differ: runs.iter().any(|run| run.protocol != protocol),
    })
}

/// The factors with the levels that some machine ran.
fn varied(runs: &[Recorded]) -> Vec<VariedFactor> {
    let cells: Vec<_> = runs.iter().flat_map(Recorded::all_cells).collect();
    let factor = |factor: &'static crate::protocol::Factor| {
        let mut levels: Vec<&str> = Vec::new();
        for level in cells.iter().filter_map(|cell| cell.get(factor.name)) {
            if !levels.contains(&level) {
                levels.push(level);
            }
        }
        let explained = |level: &str| match factor.levels.iter().find(|l| l.name == level) {
            Some(l) => format!("`{level}` ({})", l.meaning),
            None => format!("`{level}`"),
        };
        VariedFactor {
            name: factor.name,
            meaning: factor.meaning,
            levels: levels.into_iter().map(explained).collect(),
            is_studied: runs.iter().any(|run| run.grids().any(|grid| grid.studied == factor.name)),
        }
    };
    runs[0].protocol.factors.iter().map(factor).filter(|factor| !factor.levels.is_empty()).collect()
}

fn measured(run: &Recorded) -> Measured {
    Measured {
        machine: run.machine.clone(),
        device: prose::platform(run.platform()),
        taken: if run.is_prediction() { "Predicted" } else { "Taken" },
        profile: run.manifest.profile.to_string(),
        command: invocation(&run.manifest.argv),
        tables: tables::tables(run),
    }
}

/// The command line that measured, without the folder of the program.
fn invocation(argv: &[String]) -> String {
    let Some((program, arguments)) = argv.split_first() else {
        return String::new();
    };
    let program = Path::new(program).file_name().map_or(program.clone(), |name| name.to_string_lossy().into_owned());
    std::iter::once(program).chain(arguments.iter().cloned()).collect::<Vec<_>>().join(" ")
}

/// Each way in which a machine was set up, with the experiments that were run so.
fn setups(recorded: &[Recorded]) -> Vec<SetupRow> {
    let mut ordered: Vec<&Recorded> = recorded.iter().collect();
    ordered.sort_by(|a, b| (a.platform(), &a.machine).cmp(&(b.platform(), &b.machine)));
    let mut rows: Vec<SetupRow> = Vec::new();
    for run in ordered {
        let setup = setup(run);
        match rows.iter_mut().find(|row| row.setup == setup) {
            Some(row) => row.experiments.push(run.protocol.name),
            None => rows.push(SetupRow { setup, experiments: vec![run.protocol.name] }),
        }
    }
    rows
}

fn setup(run: &Recorded) -> Setup {
    let Manifest { identity, profile, git_revision, git_dirty, .. } = &run.manifest;
    let pairs = |map: &BTreeMap<String, String>| map.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>();
    let mut hardware = pairs(&identity.hardware);
    if let Some(limit) = identity.memory_limit {
        hardware.push(format!("memory limited to {}", Bytes(limit)));
    }
    let short: String = git_revision.chars().take(12).collect();
    Setup {
        machine: run.machine.clone(),
        device: prose::platform(run.platform()),
        hardware,
        libtorch: identity.libtorch.clone(),
        flags: pairs(&identity.flags),
        profile: profile.to_string(),
        revision: if *git_dirty { format!("{short} with local changes") } else { short },
    }
}

/// Verdicts of one machine, counted.
fn summary(recorded: &[Recorded], machine: &Recorded) -> String {
    let own = recorded.iter().filter(|r| r.machine == machine.machine);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut order: Vec<(u8, &str)> = Vec::new();
    for judgement in own.flat_map(|r| &r.judgements) {
        use crate::verdict::Verdict::*;
        let standing = match (judgement.carries, judgement.verdict) {
            (_, NotMeasured) => (5, "not measured here"),
            (false, _) => (4, "shown, not judged"),
            (true, Confirmed) => (0, "confirmed"),
            (true, Refuted) => (1, "refuted"),
            (true, Depends) => (2, "depending"),
            (true, Inconclusive) => (3, "inconclusive"),
        };
        *counts.entry(standing.1).or_default() += 1;
        order.push(standing);
    }
    order.sort_unstable();
    order.dedup();
    let said: Vec<String> = order.iter().map(|(_, name)| format!("{} {name}", counts[name])).collect();
    let total: usize = counts.values().sum();
    let of = if machine.is_prediction() { "predictions for " } else { "" };
    format!(
        "**{}** ({}): {of}{}: {}",
        machine.machine,
        prose::platform(machine.platform()),
        prose::counted(total, "claim"),
        said.join(", ")
    )
}

/// Cells that failed, ran out of memory or were left out altogether, counted by machine and experiment.
fn troubles(recorded: &[Recorded]) -> Vec<String> {
    let mut lines = Vec::new();
    for run in recorded {
        let mut counts: BTreeMap<crate::record::Status, usize> = BTreeMap::new();
        for cell in run.all_cells() {
            if let Some(status) = run.trouble(&cell) {
                *counts.entry(status).or_default() += 1;
            }
        }
        let mut said: Vec<String> = counts.into_iter().map(|(status, n)| format!("{n} {}", prose::status(status))).collect();
        if run.not_run() > 0 {
            said.push(format!("{} not run yet", run.not_run()));
        }
        if !said.is_empty() {
            lines.push(format!("{} on {}: {}", run.protocol.name, run.machine, said.join(", ")));
        }
    }
    lines
}

/// At most one empty line in a row, and none at the end.
fn tidy(markdown: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in markdown.lines().map(str::trim_end) {
        if !(line.is_empty() && lines.last().is_none_or(|last| last.is_empty())) {
            lines.push(line);
        }
    }
    let mut text = lines.join("\n").trim_end().to_string();
    text.push('\n');
    text
}
