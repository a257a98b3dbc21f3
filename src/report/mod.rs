//! From results to a report: `report.md` with its plots, and the same as one page, `index.html`, built from the samples and manifests of any number of machines.
//!
//! The report is a function of the results alone: no clock, no order that a hash map gives. The same results give the same bytes.

mod claims;
mod files;
mod ledger;
mod machines;
mod page;
mod plots;
mod prose;
mod rankings;
mod recorded;
mod tables;

use crate::protocol::PlotKind;
use crate::results::replace_file;
use anyhow::{Context, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use plots::Picture;
use recorded::Recorded;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A report that is not written yet.
#[derive(Debug)]
pub struct Report {
    pub markdown: String,
    /// The same as one page for a browser, with the plots inside.
    pub page: String,
    pictures: Vec<Picture>,
    files: Vec<files::Linked>,
}

/// Reads all results and writes the report with its plots; plots that it no longer shows are removed. Returns where `report.md` is.
///
/// # Errors
/// There are no results; a results file is damaged (file and line named); the folder cannot be written. What stood in `out` before
/// is then still whole.
pub fn write(results: &Path, out: &Path) -> Result<PathBuf> {
    let recorded = recorded::read_all(results)?;
    assemble(&recorded, results)?.save(out)
}

const LEDGER_BEGINS: &str = "<!-- ledger: written by `just report` -->";
const LEDGER_ENDS: &str = "<!-- end of ledger -->";

/// The heading of the table of claims in the report's template.
const CLAIMS_HEADING: &str = "## All claims";

/// Puts a written report's table of claims between the two marks of a README, with links into the report.
///
/// # Errors
/// A file cannot be read or written; the README has no marks.
pub fn show_ledger(report: &Path, readme: &Path) -> Result<()> {
    let read = |path: &Path| std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()));
    let (markdown, text) = (read(report)?, read(readme)?);
    let updated = with_ledger(&text, &markdown).with_context(|| {
        format!("{} has no place for the ledger: a line '{LEDGER_BEGINS}' and after it a line '{LEDGER_ENDS}'", readme.display())
    })?;
    if updated == text { Ok(()) } else { replace_file(readme, updated.as_bytes()) }
}

/// The README with the report's ledger in its place; none where it has no place.
fn with_ledger(readme: &str, markdown: &str) -> Option<String> {
    let (before, rest) = readme.split_once(LEDGER_BEGINS)?;
    let (_, after) = rest.split_once(LEDGER_ENDS)?;
    // What its symbols mean, and the table.
    let section = markdown.lines().skip_while(|l| *l != CLAIMS_HEADING).skip(1).skip_while(|l| l.is_empty());
    let mut lines: Vec<&str> = section.take_while(|l| !l.starts_with('#')).collect();
    let rows = lines.iter().rposition(|l| l.starts_with('|'))? + 1;
    lines.truncate(rows);
    let table = lines.join("\n").replace("](#", "](report/report.md#");
    Some(format!("{before}{LEDGER_BEGINS}\n\n{table}\n\n{LEDGER_ENDS}{after}"))
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
        files::save(&self.files, out).with_context(hint)?;
        replace_file(&out.join("index.html"), self.page.as_bytes()).with_context(hint)?;
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
    published: Vec<claims::PublishedSection>,
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
    rankings: Vec<rankings::Ranking>,
    files: Vec<files::Linked>,
}

/// Everything that the template fills in.
#[derive(Debug, Serialize)]
struct Page {
    command: String,
    summaries: Vec<String>,
    machines: Vec<String>,
    claims: Vec<ledger::Line>,
    published: Vec<ledger::Line>,
    overview: Gallery,
    setups: Vec<machines::SetupRow>,
    troubles: Vec<String>,
    has_predictions: bool,
    experiments: Vec<Experiment>,
}

fn assemble(recorded: &[Recorded], results: &Path) -> Result<Report> {
    let mut pictures = Vec::new();
    let machines = machines::machines(recorded);
    let overview = overview(recorded, &machines, &mut pictures)?;
    let by_experiment = recorded.chunk_by(|a, b| a.protocol.name == b.protocol.name);
    let experiments: Vec<Experiment> = by_experiment.map(|runs| experiment(runs, &mut pictures)).collect::<Result<_>>()?;
    let page = Page {
        command: command(results),
        summaries: machines.iter().map(|machine| machines::summary(recorded, machine)).collect(),
        machines: ledger::heads(&machines),
        claims: ledger::of_claims(recorded, &machines),
        published: ledger::of_published(recorded, &machines),
        overview,
        setups: machines::setups(recorded),
        troubles: machines::troubles(recorded),
        has_predictions: recorded.iter().any(Recorded::is_prediction),
        experiments,
    };
    let markdown = tidy(&render(&page)?);
    let page = page::page(&markdown, &pictures)?;
    Ok(Report { markdown, page, pictures, files: recorded.iter().flat_map(files::of).collect() })
}

fn render(page: &Page) -> Result<String> {
    let mut templates = Environment::new();
    templates.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    templates.set_undefined_behavior(UndefinedBehavior::Strict);
    templates.add_filter("cell", |text: String| text.replace('|', "\\|").replace('<', "&lt;"));
    templates.add_filter("prose", |text: String| text.replace('<', "&lt;"));
    templates.add_filter("attribute", |text: String| attribute(&text));
    templates.add_template("report", include_str!("report.md.j2")).context("parsing the report's template")?;
    templates.get_template("report")?.render(Serde(page)).context("filling in the report's template")
}

/// Text as the value of an attribute in HTML.
fn attribute(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;")
}

/// The command that makes the report again; where it is written to does not change what it says.
fn command(results: &Path) -> String {
    match results.to_str() {
        Some("results" | "results/" | "./results") => "vramlab report".to_string(),
        _ => format!("vramlab report --results {}", results.display()),
    }
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
    for plot in protocol.plots.iter().filter(|plot| !matches!(plot.kind, PlotKind::Ranking { .. })) {
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
        published: claims::published_sections(runs),
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
        rankings: rankings::rankings(run),
        files: files::of(run),
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
