//! The memory changelog: what scripts take with each version of PyTorch and of packages, and which lines made them jump.

use super::markup::Markdown;
use anyhow::{Context, Result};
use base::units::Bytes;
use record::results::read_file;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
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
    pub peaks: String,
    pub change: String,
    pub lines: Vec<Markdown>,
    pub cause: Option<Markdown>,
}

/// Cases of one package, with the same versions.
#[derive(Debug, Serialize)]
pub struct Package {
    pub name: String,
    pub versions: Vec<String>,
    /// The case, and what each version took; a change of less than a jump is not marked.
    pub rows: Vec<(String, Vec<Markdown>)>,
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

/// By how much it changed, where that is a jump.
fn jump(before: u64, after: u64) -> Option<f64> {
    let change = after as f64 / before as f64 - 1.0;
    (before > 0 && change.abs() >= JUMP && (after as f64 - before as f64).abs() >= SMALL).then_some(change)
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
fn pairs(case: &[Row]) -> Vec<(&Row, &Row, u64, u64)> {
    let ended: Vec<(&Row, u64)> =
        case.iter().filter(|row| row.verdict != "does_not_fit").filter_map(|row| Some((row, row.peak_allocated?))).collect();
    ended.windows(2).map(|pair| (pair[0].0, pair[1].0, pair[0].1, pair[1].1)).collect()
}

fn jumps_of(case: &[Row], lines: &[Line], causes: &[Cause]) -> Vec<(f64, Jump)> {
    let of_pair = |(before, after, old, new): (&Row, &Row, u64, u64)| {
        let change = jump(old, new)?;
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
                .replace(" ``", ""),
            )
        });
        let is_its = |cause: &&Cause| [&case[0].case, &part].contains(&&cause.case) && cause.after == after.version;
        let cause = causes.iter().find(is_its).map(|cause| Markdown::link(&cause.words, &cause.link));
        let (package, old_version) = split(&before.version);
        let found = Jump {
            case: case[0].case.clone(),
            versions: format!("{package} {old_version} to {}", split(&after.version).1),
            peaks: format!("{} to {}", Bytes(old), Bytes(new)),
            change: percent(change),
            lines: lines.collect(),
            cause,
        };
        Some((change, found))
    };
    pairs(case).into_iter().filter_map(of_pair).collect()
}

fn percent(change: f64) -> String {
    format!("{}{:.0} %", if change < 0.0 { "−" } else { "+" }, change.abs() * 100.0)
}

fn package(name: &str, cases: &[&[Row]]) -> Package {
    let cases: Vec<&[Row]> = cases.iter().copied().filter(|case| split(&case[0].version).0 == name).collect();
    let mut versions: Vec<&str> = cases.iter().flat_map(|case| case.iter()).map(|row| split(&row.version).1).collect();
    versions.sort_by_cached_key(|version| numbers(version));
    versions.dedup();
    let is_level =
        |case: &&[Row]| case[0].case.contains(": ") && pairs(case).iter().all(|(.., old, new)| jump(*old, *new).is_none());
    let cell = |case: &[Row], version: &&str| {
        let Some(row) = case.iter().find(|row| split(&row.version).1 == *version) else { return Markdown::text("not tried") };
        let Some(bytes) = row.peak_allocated else { return Markdown::text("none") };
        let jumped =
            pairs(case).into_iter().find(|(_, after, ..)| after.version == row.version).and_then(|(.., old, new)| jump(old, new));
        match jumped {
            Some(change) => Markdown::trusted(format!("{}, **{}**", Bytes(bytes), percent(change))),
            None => Markdown::text(&Bytes(bytes).to_string()),
        }
    };
    let row = |case: &&[Row]| (case[0].case.clone(), versions.iter().map(|version| cell(case, version)).collect());
    // A sweep's own peak is that of its largest part.
    let is_sweep = |case: &&[Row]| cases.iter().any(|other| other[0].case.starts_with(&format!("{}: ", case[0].case)));
    let missing = |row: &&Row| !row.missing.is_empty();
    Package {
        name: name.to_string(),
        rows: cases.iter().filter(|case| !is_sweep(case) && !is_level(case)).map(row).collect(),
        level: cases.iter().filter(|case| is_level(case)).map(|case| case[0].case.clone()).collect(),
        missing: cases
            .iter()
            .flat_map(|case| case.iter())
            .filter(missing)
            .map(|row| format!("{} with {}: {}", row.case, row.version.replace("==", " "), row.missing))
            .collect(),
        versions: versions.iter().map(ToString::to_string).collect(),
    }
}
