//! From results to a report: markdown pages with their pictures, built from the samples and manifests of any number of machines.
//!
//! The report is a function of the results and of the pages that stand beside the experiments: no clock, no order that a hash map gives. The
//! same results and words give the same bytes.

mod changes;
mod check;
mod claims;
mod contribute;
mod data;
mod diff;
mod effects;
mod examples;
mod findings;
mod front;
mod guides;
mod ladder;
mod machines;
mod markup;
mod measured;
mod notes;
mod others;
mod pages;
mod pairs;
mod plausible;
mod plots;
mod prose;
mod rankings;
mod recorded;
mod sentences;
mod verdicts;
mod versions;
mod words;

pub use check::check;
pub use contribute::{Contribution, contribute};
pub use diff::diff;
pub use verdicts::diff_verdicts;

use anyhow::{Context, Result};
use claims::VerdictRow;
use findings::{ExperimentFindings, Findings};
use markup::Markdown;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, UndefinedBehavior, context};
use pages::Page;
use plots::{Picture, PictureLink};
use record::protocol::{Platform, PlotKind, Profile, SubjectKind};
use record::results::replace_file;
use recorded::Recorded;
use std::path::{Path, PathBuf};

/// A report that is not written yet.
#[derive(Debug)]
pub struct Report {
    /// The pages, by file name; the front page first.
    pub pages: Vec<(String, String)>,
    /// The lines for a README: what to try against what fills memory, and what the lab found.
    remedies: String,
    summary: String,
    /// For METHODOLOGY: what was changed after a look at figures, with the verdicts without the change.
    changes: String,
    pictures: Vec<Picture>,
    /// As CSV, by file name.
    tables: Vec<(String, Vec<u8>)>,
}

/// Reads all results and writes the report with its pictures; what an earlier report left and this one does not have is removed. Returns
/// where the front page is.
///
/// # Errors
/// There are no results; a results file is damaged (file and line named); the folder cannot be written. What stood in `out` before
/// is then still whole.
pub fn write(results: &Path, out: &Path) -> Result<PathBuf> {
    read(results)?.save(out)
}

/// Reads all results and makes the report of them.
///
/// # Errors
/// There are no results; a results file is damaged (file and line named).
pub fn read(results: &Path) -> Result<Report> {
    assemble(&Findings::new(&recorded::read_all(results)?), results)
}

/// What every page that this program writes begins with.
const MADE: &str = "<!-- Made by `vramlab report";

/// Puts what a README shows between its marks, with links into the report; and into METHODOLOGY.md beside it, where there is one, the table of
/// what was changed after a look at figures.
///
/// # Errors
/// A file cannot be read or written, or has no marks.
pub fn show_summary(results: &Path, readme: &Path) -> Result<()> {
    let report = read(results)?;
    show(readme, "results", &report.summary)?;
    let project = readme.parent().unwrap_or(Path::new(""));
    let example = project.join("tests/ecosystem/nanogpt.txt");
    // A project that keeps only its results has none of these.
    if let Ok(text) = std::fs::read_to_string(&example) {
        show(readme, "remedies", &report.remedies)?;
        let of_real = report.tables.iter().find(|(name, _)| name.starts_with("data/real_gpus-"));
        let of_real = of_real.map_or(Ok(""), |(_, csv)| std::str::from_utf8(csv))?;
        show(readme, "trust", &examples::trust(project, of_real)?)?;
        let what_if = std::fs::read_to_string(example.with_file_name("nanogpt-what-if.txt")).unwrap_or_default();
        let table =
            examples::table(&what_if).with_context(|| format!("{} has no table of --what-if beside it", example.display()))?;
        show(readme, "example", &table)?;
        replace_file(&project.join("docs/answer.svg"), examples::terminal(&text).as_bytes())?;
    }
    let methodology = readme.with_file_name("METHODOLOGY.md");
    if methodology.exists() { show(&methodology, "changes", &report.changes) } else { Ok(()) }
}

/// Puts what was written between the marks of this name.
fn show(file: &Path, name: &str, written: &str) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    // The first mark may say more, as what it was written from.
    let (begins, ends) = (format!("<!-- {name}: written by `just report`"), format!("<!-- end of {name} -->"));
    let updated = between(&text, written, &begins, &ends).with_context(|| {
        format!("{} has no place for the results: a line '{begins} -->' and after it a line '{ends}'", file.display())
    })?;
    if updated == text { Ok(()) } else { replace_file(file, updated.as_bytes()) }
}

fn between(text: &str, written: &str, begins: &str, ends: &str) -> Option<String> {
    let (before, rest) = text.split_once(begins)?;
    let (more, rest) = rest.split_once("-->")?;
    let (_, after) = rest.split_once(ends)?;
    Some(format!("{before}{begins}{more}-->\n\n{}\n\n{ends}{after}", written.trim()))
}

impl Report {
    /// Writes pictures first and the text that shows them last, each aside and renamed; then removes what an earlier report wrote and this one
    /// does not have.
    fn save(&self, out: &Path) -> Result<PathBuf> {
        let (plots, data) = (out.join("plots"), out.join(data::FOLDER));
        let pictures = self
            .pictures
            .iter()
            .flat_map(|picture| [(&picture.link.file, &picture.svg), (&picture.link.narrow, &picture.narrow_svg)]);
        let pictures = pictures.map(|(name, svg)| (plots.join(name), svg.as_bytes()));
        let tables = self.tables.iter().map(|(name, csv)| (out.join(name), csv.as_slice()));
        let pages = self.pages.iter().map(|(name, markdown)| (out.join(name), markdown.as_bytes()));
        let files: Vec<(PathBuf, &[u8])> = pictures.chain(tables).chain(pages).collect();
        let hint = || format!("cannot write the report to {}; name another folder with --out", out.display());
        for folder in [&plots, &data] {
            std::fs::create_dir_all(folder).with_context(hint)?;
        }
        for (file, contents) in &files {
            replace_file(file, contents).with_context(hint)?;
        }
        for (folder, extension) in [(plots.as_path(), "svg"), (data.as_path(), "csv"), (out, "md")] {
            for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
                let old = entry.with_context(|| format!("reading {}", folder.display()))?.path();
                let is_kept = old.extension().is_none_or(|found| found != extension) || files.iter().any(|(file, _)| *file == old);
                let is_ours = || extension != "md" || std::fs::read_to_string(&old).is_ok_and(|text| text.starts_with(MADE));
                if !is_kept && is_ours() {
                    std::fs::remove_file(&old).with_context(|| format!("removing the outdated file {}", old.display()))?;
                }
            }
        }
        Ok(out.join("README.md"))
    }
}

/// Each experiment's page, what saves most first, and all pictures.
fn pages_and_pictures(
    findings: &Findings,
    results: &Path,
    order: &mut Option<ladder::Ladder>,
) -> Result<(Vec<Page>, Vec<Picture>)> {
    let (mut pages, mut pictures): (Vec<Page>, Vec<Picture>) = (Vec::new(), Vec::new());
    let mut experiments: Vec<&ExperimentFindings> = findings.experiments.iter().collect();
    experiments.sort_by(|a, b| a.saving().total_cmp(&b.saving()));
    for experiment in experiments {
        let words = words::PageWords::of(&words::page_of(results, experiment.name()), experiment.runs, order.as_ref());
        let own = pictures_of(experiment.runs, words.placed.as_deref())?;
        let beside = own.iter().filter(|(_, picture)| !picture.is_on_front);
        let links = beside.map(|(name, picture)| (name.clone(), picture.link.clone())).collect();
        pages.push(pages::page(experiment, words, links));
        pictures.extend(own.into_iter().map(|(_, picture)| picture));
    }
    if let Some(order) = order {
        // To the first page that shows it.
        order.link(|technique| {
            let shows = |page: &&Page| page.words.blocks.iter().any(|block| block.head.contains(&format!("`{technique}`")));
            pages.iter().find(shows).map_or(String::new(), |page| page.file.clone())
        });
    }
    Ok((pages, pictures))
}

fn assemble(findings: &Findings, results: &Path) -> Result<Report> {
    let Findings { recorded, machines, .. } = findings;
    let made = format!("<!-- Made by `{}`; edit nothing here. -->\n", command(results));
    let mut order = ladder::read(results)?;
    let (pages, pictures) = pages_and_pictures(findings, results, &mut order)?;
    let shown: Vec<&PictureLink> = pictures.iter().filter(|picture| picture.is_on_front).map(|picture| &picture.link).collect();
    let together = together(results);
    let changelog = versions::read(results)?;
    let front = context! {
        pictures => Serde(shown), order => Serde(&order), together, has_changelog => changelog.is_some(),
        ..front::front(findings, &pages, order.as_ref())
    };

    let templates = templates()?;
    let render = |name: &str, with: Value| -> Result<String> {
        let text = templates.get_template(name)?.render(with).with_context(|| format!("filling in the template '{name}'"))?;
        Ok(tidy(&text))
    };
    let mut written: Vec<(String, String)> = Vec::new();
    let mut write = |file: &str, template: &str, with: Value| -> Result<()> {
        written.push((file.to_string(), made.clone() + &render(template, with)?));
        Ok(())
    };
    write("README.md", "front", front.clone())?;
    let sorted = |kind: SubjectKind| pages.iter().filter(move |page| page.kind == kind).collect::<Vec<&Page>>();
    for page in sorted(SubjectKind::Technique) {
        write(&page.file, "subject", context! { page => Serde(page) })?;
    }
    let guides = context! { titles => guides::titles(), sentences => guides::sentences(findings), ..front.clone() };
    write("guides.md", "guides", guides)?;
    write("others.md", "others", context! { advice => others::advice(findings) })?;
    if let Some(order) = &order {
        write("order.md", "order", context! { order => Serde(order) })?;
    }
    if let Some(log) = &changelog {
        write("versions.md", "versions", context! { log => Serde(log) })?;
    }
    let several = |title: &str, lead: &str, kind: SubjectKind, rows: &[VerdictRow], published: &[Value]| {
        let pages = Serde(sorted(kind));
        context! { title, lead, pages, verdict_rows => Serde(rows), published => published.to_vec() }
    };
    let checks: Vec<VerdictRow> = self_checks(findings);
    let published = published_rows(findings);
    let lead = "What the lab says of itself: that it computes what PyTorch computes, takes as many bytes, and does not see differences where \
                there are none. None of this is advice.";
    write("self-checks.md", "several", several("Self-checks", lead, SubjectKind::SelfCheck, &checks, &[]))?;
    let lead = "Figures that others published, beside ours. A figure is reproduced if ours lies within a tenth of it, or within the range \
                that its source gives, or as much as its source says at least. Times were published of GPUs; only a GPU's times are put beside them.";
    write("published.md", "several", several("Published figures", lead, SubjectKind::Published, &[], &published))?;
    let lead = match sorted(SubjectKind::RealGpus).is_empty() {
        true => "No results of this kind yet: predictions have not been put beside figures of real GPUs.",
        false => {
            "What the simulated GPU predicts, beside what others recorded of real GPUs. docs/time.md has predicted times, \
                  records/gpus/README.md what an H200 said of both."
        }
    };
    write("real-gpus.md", "several", several("Real GPUs", lead, SubjectKind::RealGpus, &[], &[]))?;
    let machines_page = context! {
        summaries => machines.iter().map(|machine| machines::summary(recorded, machine)).collect::<Vec<_>>(),
        setups => machines::setups(recorded),
        troubles => machines::troubles(recorded),
    };
    write("machines.md", "machines", machines_page)?;
    let (columns, rows) = machines::claims(findings);
    write("claims.md", "claims", context! { columns, rows })?;
    Ok(Report {
        pages: written,
        remedies: render("remedies", front.clone())?,
        summary: render("summary", front)?,
        changes: changes::table(recorded),
        pictures,
        tables: recorded
            .iter()
            .filter(|run| data::has_rows(run))
            .map(data::table)
            .chain([verdicts::table(recorded)])
            .collect::<Result<_>>()?,
    })
}

/// Techniques one on the other, as docs/ecosystem.md has them.
fn together(results: &Path) -> Option<Markdown> {
    let project = results.parent().unwrap_or(Path::new(""));
    let read = |file: &str| std::fs::read_to_string(project.join(file)).ok();
    let (ecosystem, entry_points) = read("docs/ecosystem.md").zip(read("tests/ecosystem/entry_points.csv"))?;
    examples::ladder(&ecosystem, &entry_points).map(Markdown::trusted)
}

/// What was not reproduced comes first.
fn published_rows(findings: &Findings) -> Vec<Value> {
    let mut rows: Vec<Value> = findings.experiments.iter().flat_map(|each| claims::published_sections(each.runs)).collect();
    rows.sort_by_key(|of| {
        let ours = of.get_attr("ours").map_or_else(|_| String::new(), |ours| ours.to_string());
        ["✘", "◐", "✔", "?"].iter().position(|mark| ours.starts_with(mark)).unwrap_or(usize::MAX)
    });
    rows
}

/// The lab's claims about itself that stand among those of techniques, and those of its own experiments.
fn self_checks(findings: &Findings) -> Vec<VerdictRow> {
    let others = findings.experiments.iter().filter(|experiment| experiment.kind() != SubjectKind::SelfCheck);
    let about_the_lab =
        others.flat_map(|experiment| experiment.verdicts.iter().filter(|row| experiment.runs[0].is_self_check(&row.id)).cloned());
    // Another kind of device than the check is about neither holds nor breaks it.
    let checked = |mut row: VerdictRow| {
        if row.kind == "informational" {
            (row.effect, row.verdict) = ("–".into(), "? not known yet: about another kind of device".into());
        }
        row
    };
    about_the_lab.map(checked).collect()
}

/// The pictures of an experiment by their plots' names: those that its page places, or all. One machine of each plot is drawn, models of full size
/// before small ones, of these a GPU before a simulated one before a CPU, but those last whose filter left out most of the configurations; and the
/// user's own beside it.
fn pictures_of(runs: &[Recorded], placed: Option<&[(String, String)]>) -> Result<Vec<(String, Picture)>> {
    let mut pictures = Vec::new();
    let mut first: Vec<&Recorded> = runs.iter().collect();
    first.sort_by_key(|run| {
        let all: usize = run.grids().map(|grid| grid.cells().len()).sum();
        let of_kind = [Platform::Gpu, Platform::Dry].iter().position(|kind| run.platform() == *kind).unwrap_or(2);
        (2 * run.all_cells().len() < all, run.manifest.profile != Profile::Full, of_kind)
    });
    let is_drawn = |plot: &&record::protocol::PlainPlot| {
        !matches!(plot.kind, PlotKind::Ranking { .. })
            && (plot.on_front || placed.is_none_or(|placed| placed.iter().any(|(name, _)| *name == plot.name)))
    };
    // An old result may know fewer of them.
    let plots = plots::grouped(runs.iter().flat_map(|run| &run.protocol.plots).map(|plot| (&plot.name, plot)));
    for plot in plots.into_iter().map(|(_, alike)| alike[0]).filter(is_drawn) {
        let mut is_there = false;
        let title = placed.and_then(|placed| placed.iter().find(|(name, title)| *name == plot.name && !title.is_empty()));
        for run in first.iter().filter(|run| !run.is_own).chain(first.iter().filter(|run| run.is_own)) {
            // Each machine's own version of the plot: an old result keeps the protocol that it was taken with.
            let own = run.protocol.plots.iter().find(|p| p.name == plot.name).filter(|_| run.is_own || !is_there);
            let drawn = own
                .map(|own| plots::draw(run, own, title.filter(|_| !run.is_own).map(|(_, title)| title.as_str())))
                .transpose()?
                .flatten();
            if plot.on_front && !is_there {
                pictures.extend(plots::front(run, plot)?.map(|picture| (String::new(), picture)));
            }
            is_there |= drawn.is_some();
            pictures.extend(drawn.map(|picture| (plot.name.clone(), picture)));
        }
    }
    for published in claims::published_of(runs) {
        pictures.extend(plots::beside(runs, published)?.map(|picture| (format!("beside {}", published.id), picture)));
    }
    Ok(pictures)
}

/// The templates. Whatever they print is escaped, unless the report itself wrote it as markup.
fn templates() -> Result<Environment<'static>> {
    let mut templates = Environment::new();
    templates.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    templates.set_undefined_behavior(UndefinedBehavior::Strict);
    templates.set_auto_escape_callback(|_| minijinja::AutoEscape::Custom("markdown".into()));
    templates.set_formatter(|out, _, value| {
        if value.is_undefined() {
            return Err(minijinja::ErrorKind::UndefinedError.into());
        }
        let written = match value.as_str() {
            Some(text) if !value.is_safe() => out.write_str(Markdown::text(text).as_str()),
            Some(text) => out.write_str(text),
            None => write!(out, "{value}"),
        };
        written.map_err(minijinja::Error::from)
    });
    templates.add_filter("attribute", |text: String| Value::from_safe_string(markup::attribute(&text)));
    templates.add_filter("capitalised", |text: String| prose::capitalised(&text));
    for (name, text) in [
        ("parts", include_str!("parts.md.j2")),
        ("front", include_str!("front.md.j2")),
        ("summary", include_str!("summary.md.j2")),
        ("remedies", include_str!("remedies.md.j2")),
        ("subject", include_str!("subject.md.j2")),
        ("several", include_str!("several.md.j2")),
        ("machines", include_str!("machines.md.j2")),
        ("claims", include_str!("claims.md.j2")),
        ("order", include_str!("order.md.j2")),
        ("versions", include_str!("versions.md.j2")),
        ("guides", include_str!("guides.md.j2")),
        ("others", include_str!("others.md.j2")),
    ] {
        templates.add_template(name, text).with_context(|| format!("parsing the template '{name}'"))?;
    }
    Ok(templates)
}

/// The command that makes the report again; where it is written to does not change what it says.
fn command(results: &Path) -> String {
    match results.to_str() {
        Some("results" | "results/" | "./results") => "vramlab report".to_string(),
        // A comment ends at its end.
        _ => format!("vramlab report --results {}", results.display().to_string().replace(['-', '`', '>'], "_")),
    }
}

/// At most one empty line in a row, none at the end, and none between rows of a table.
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
