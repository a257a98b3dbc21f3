//! The memory changelog: what scripts take with each version of PyTorch and of packages, and which lines made them jump.

use super::markup::Markdown;
use anyhow::{Context, Result};
use base::units::{Bytes, Seconds, thousands};
use record::results::read_file;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Beside the folder of results; `just versions` writes it.
const FOLDER: &str = "records/versions";
/// From here on a change is a jump: as a part of the peak, and in bytes.
const JUMP: f64 = 0.05;
const SMALL: f64 = 8e6;

#[derive(Debug, Deserialize)]
struct Row {
    case: String,
    /// `torch==2.9.1`
    version: String,
    peak_allocated: Option<u64>,
    peak_reserved: Option<u64>,
    /// The smallest GPU memory on which it runs, and the time of a step, predicted; rows of before have neither.
    needs_at_least: Option<u64>,
    step_seconds: Option<f64>,
    /// Of a server.
    kv_cache: Option<u64>,
    tokens: Option<u64>,
    verdict: String,
    /// Why there is no figure.
    missing: String,
    date: String,
}

/// A line of a jump, the largest first.
#[derive(Debug, Deserialize)]
struct Line {
    case: String,
    before: String,
    after: String,
    bytes: i64,
    change: String,
    line: String,
    source: String,
}

/// What was found to have made a jump.
#[derive(Debug, Deserialize)]
struct Cause {
    case: String,
    after: String,
    /// Of the project: a release, a commit or a pull request.
    link: String,
    words: String,
}

#[derive(Debug, Serialize)]
pub struct Jump {
    pub case: String,
    pub versions: String,
    /// One a figure that jumped.
    pub peaks: Markdown,
    pub change: Markdown,
    pub lines: Vec<Markdown>,
    pub cause: Option<Markdown>,
}

/// Versions, and of each case what it took with each of them.
type Table = (Vec<String>, Vec<(String, Vec<Markdown>)>);

/// Cases of one package.
#[derive(Debug, Serialize)]
pub struct Package {
    pub name: String,
    /// One for cases that were tried with just the same versions; a change of less than a jump is not marked.
    pub tables: Vec<Table>,
    /// Parts of a sweep without a jump.
    pub level: Vec<String>,
    pub missing: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Changelog {
    pub jumps: Vec<Jump>,
    pub packages: Vec<Package>,
    pub rehearsals: usize,
    pub dates: (String, String),
}

fn table<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<Vec<T>> {
    let path = folder.join(name);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let rows = csv::Reader::from_reader(read_file(&path)?.as_slice()).into_deserialize().collect::<csv::Result<Vec<T>>>();
    rows.with_context(|| format!("{} is damaged; `just versions` writes it anew", path.display()))
}

fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

fn split(version: &str) -> (&str, &str) {
    version.split_once("==").unwrap_or((version, ""))
}

impl Row {
    /// By its name, what it came to, as it is shown; of a step nanoseconds. A server's allocator fills the card whatever the version is.
    fn figures(&self) -> [(&'static str, Option<u64>); 4] {
        let step = self.step_seconds.map(|seconds| (seconds * 1e9).round() as u64);
        let [first, second] = match self.kv_cache {
            Some(_) => [("KV cache", self.kv_cache), ("tokens", self.tokens)],
            None => [("allocated", self.peak_allocated), ("reserved", self.peak_reserved)],
        };
        [first, second, ("needs", self.needs_at_least), ("step", step)]
    }
}

fn shown(figure: &str, value: u64) -> String {
    match figure {
        "step" => Seconds(value as f64 / 1e9).to_string(),
        "tokens" => thousands(value),
        _ => Bytes(value).to_string(),
    }
}

/// The figures that jumped from one row to the next: names, both values and the change.
fn jumped(before: &Row, after: &Row) -> Vec<(&'static str, u64, u64, f64)> {
    let both = before.figures().into_iter().zip(after.figures());
    let changed = both.filter_map(|((name, old), (_, new))| {
        let (old, new) = (old.filter(|old| *old > 0)?, new?);
        let change = new as f64 / old as f64 - 1.0;
        let is_small = !["step", "tokens"].contains(&name) && (new as f64 - old as f64).abs() < SMALL;
        (change.abs() >= JUMP && !is_small).then_some((name, old, new, change))
    });
    changed.collect()
}

/// The changelog of the project that the results are of; none where nothing was rehearsed.
pub fn read(results: &Path) -> Result<Option<Changelog>> {
    let folder = results.parent().unwrap_or(Path::new("")).join(FOLDER);
    let mut rows: Vec<Row> = table(&folder, "rows.csv")?;
    let (lines, causes): (Vec<Line>, Vec<Cause>) = (table(&folder, "jumps.csv")?, table(&folder, "causes.csv")?);
    rows.sort_by_cached_key(|row| (row.case.clone(), numbers(split(&row.version).1)));
    let (Some(first), Some(last)) = (rows.iter().map(|row| &row.date).min(), rows.iter().map(|row| &row.date).max()) else {
        return Ok(None);
    };
    let dates = (first.clone(), last.clone());
    // Parts of a sweep are of one rehearsal.
    let rehearsals = rows.iter().filter(|row| !row.case.contains(": ")).count();
    let cases: Vec<&[Row]> = rows.chunk_by(|a, b| a.case == b.case).collect();
    let mut jumps: Vec<(f64, Jump)> = cases.iter().flat_map(|case| jumps_of(case, &lines, &causes)).collect();
    jumps.sort_by(|a, b| b.0.abs().total_cmp(&a.0.abs()));
    let mut names: Vec<&str> = rows.iter().map(|row| split(&row.version).0).collect();
    names.sort_unstable();
    names.dedup();
    let packages = names.into_iter().map(|name| package(name, &cases)).collect();
    Ok(Some(Changelog { jumps: jumps.into_iter().map(|(_, jump)| jump).collect(), packages, rehearsals, dates }))
}

/// Pairs of versions that follow each other, of those that came to their end.
fn pairs(case: &[Row]) -> Vec<(&Row, &Row)> {
    let ended: Vec<&Row> = case.iter().filter(|row| row.verdict != "does_not_fit" && row.peak_allocated.is_some()).collect();
    ended.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

fn jumps_of(case: &[Row], lines: &[Line], causes: &[Cause]) -> Vec<(f64, Jump)> {
    let of_pair = |(before, after): (&Row, &Row)| {
        let figures = jumped(before, after);
        let change = figures.iter().map(|figure| figure.3).max_by(|a, b| a.abs().total_cmp(&b.abs()))?;
        let part = case[0].case.replacen(": ", " ", 1);
        let is_of = |line: &&Line| {
            [&case[0].case, &part].contains(&&line.case) && (&line.before, &line.after) == (&before.version, &after.version)
        };
        let lines = lines.iter().filter(is_of).take(3).map(|line| {
            let sign = if line.bytes < 0 { "−" } else { "+" };
            let at = if line.line.is_empty() { "the allocator".to_string() } else { line.line.clone() };
            Markdown::text(
                &format!(
                    "{sign}{} {} {at} `{}`",
                    Bytes(line.bytes.unsigned_abs()),
                    line.change.replace('_', " "),
                    line.source.replace('`', "'")
                )
                .replace(" ``", "")
                .replace("  ", " "),
            )
        });
        let is_its = |cause: &&Cause| [&case[0].case, &part].contains(&&cause.case) && cause.after == after.version;
        let cause = causes.iter().find(is_its).map(|cause| Markdown::link(&cause.words, &cause.link));
        let (package, old_version) = split(&before.version);
        let found = Jump {
            case: case[0].case.clone(),
            versions: format!("{package} {old_version} to {}", split(&after.version).1),
            peaks: lines_of(
                figures.iter().map(|(name, old, new, _)| format!("{name} {} to {}", shown(name, *old), shown(name, *new))),
            ),
            change: lines_of(figures.iter().map(|(.., change)| percent(*change))),
            lines: lines.collect(),
            cause,
        };
        Some((change, found))
    };
    pairs(case).into_iter().filter_map(of_pair).collect()
}

fn lines_of(lines: impl Iterator<Item = String>) -> Markdown {
    Markdown::trusted(lines.collect::<Vec<String>>().join("<br>"))
}

fn percent(change: f64) -> String {
    format!("{}{:.0} %", if change < 0.0 { "−" } else { "+" }, change.abs() * 100.0)
}

fn package(name: &str, cases: &[&[Row]]) -> Package {
    let cases: Vec<&[Row]> = cases.iter().copied().filter(|case| split(&case[0].version).0 == name).collect();
    let is_level = |case: &&[Row]| case[0].case.contains(": ") && pairs(case).iter().all(|(old, new)| jumped(old, new).is_empty());
    let cell = |case: &[Row], row: &Row| {
        let [(name, Some(bytes)), others @ ..] = row.figures() else { return Markdown::text("none") };
        let found = pairs(case).into_iter().find(|(_, after)| after.version == row.version);
        let jumps = found.map_or(Vec::new(), |(before, after)| jumped(before, after));
        let marked = |name: &str, text: String| match jumps.iter().find(|jump| jump.0 == name) {
            Some(jump) => format!("{text}, **{}**", percent(jump.3)),
            None => text,
        };
        let of_server = if row.kv_cache.is_some() { "KV cache " } else { "" };
        let first = marked(name, format!("{of_server}{}", Bytes(bytes)));
        // Rows that have all four show them.
        let others = others.into_iter().filter_map(|(name, value)| {
            row.needs_at_least?;
            Some(marked(name, format!("{name} {}", shown(name, value?))))
        });
        lines_of([first].into_iter().chain(others))
    };
    let versions_of = |case: &[Row]| case.iter().map(|row| split(&row.version).1.to_string()).collect::<Vec<String>>();
    // A sweep's own peak is that of its largest part.
    let is_sweep = |case: &&[Row]| cases.iter().any(|other| other[0].case.starts_with(&format!("{}: ", case[0].case)));
    let missing = |row: &&Row| !row.missing.is_empty();
    let mut tables: BTreeMap<Vec<Vec<u64>>, Table> = BTreeMap::new();
    for case in cases.iter().filter(|case| !is_sweep(case) && !is_level(case)) {
        let versions = versions_of(case);
        let key = versions.iter().map(|version| numbers(version)).collect();
        let table = tables.entry(key).or_insert_with(|| (versions, Vec::new()));
        table.1.push((case[0].case.clone(), case.iter().map(|row| cell(case, row)).collect()));
    }
    Package {
        name: name.to_string(),
        tables: tables.into_values().collect(),
        level: cases.iter().filter(|case| is_level(case)).map(|case| case[0].case.clone()).collect(),
        missing: cases
            .iter()
            .flat_map(|case| case.iter())
            .filter(missing)
            .map(|row| format!("{} with {}: {}", row.case, row.version.replace("==", " "), row.missing))
            .collect(),
    }
}
