//! What a pass found out, and the rows of `samples.csv` that say so.

use crate::protocol::{Pass, PlainCell};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::Path;

pub(super) const HEADER: [&str; 8] = ["cell", "round", "sample", "metric", "unit", "value", "status", "reason"];

/// What became of a cell or a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    /// Ran out of memory: an outcome, not a failure.
    Oom,
    /// Cannot be measured here, or the budget ended first; the reason says which.
    Skipped,
    Error,
    Timeout,
    /// The child process died.
    Crashed,
    /// The figure must not be believed: a check, a limit of physics or a second pass contradicts it.
    Invalid,
}

impl Status {
    /// Whether a run that has such a cell ends with a non-zero exit status.
    pub fn is_failure(self) -> bool {
        matches!(self, Status::Error | Status::Timeout | Status::Crashed | Status::Invalid)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        self.serialize(f)
    }
}

/// One figure. `reason` says what is remarkable about it (a throttled clock), and is empty otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub metric: String,
    /// `B`, `s`, `1`, or another SI unit.
    pub unit: String,
    pub value: f64,
    /// Counts the samples of one metric within a pass.
    pub sample: u32,
    pub reason: String,
}

/// All that one child process found out about one cell.
#[derive(Debug, Clone, PartialEq)]
pub struct PassRecord {
    pub cell: PlainCell,
    pub pass: Pass,
    /// Counts the passes of one kind over one cell, from 1.
    pub round: u32,
    pub status: Status,
    pub reason: String,
    /// Wall-clock seconds of the child; none where none was started.
    pub seconds: Option<f64>,
    pub samples: Vec<Sample>,
}

/// Reason of the rows that a budget left out; such cells are measured when the run is resumed.
pub const BUDGET_ENDED: &str = "the budget ended before this cell's turn";

impl PassRecord {
    /// A pass that was not run, and why.
    pub fn not_run(cell: &PlainCell, pass: Pass, round: u32, status: Status, reason: &str) -> PassRecord {
        PassRecord { cell: cell.clone(), pass, round, status, reason: reason.to_string(), seconds: None, samples: Vec::new() }
    }

    /// What this record, of the other side of a comparison, makes of a pass that needed it.
    pub fn of_other_side(self, cell: &PlainCell, pass: Pass, round: u32) -> PassRecord {
        let reason = format!("the other side, {}: {}", self.cell, self.reason);
        PassRecord { cell: cell.clone(), pass, round, reason, samples: Vec::new(), ..self }
    }

    pub(super) fn is_to_be_repeated(&self) -> bool {
        self.status.is_failure() || (self.status == Status::Skipped && self.reason == BUDGET_ENDED)
    }
}

/// A line of `samples.csv`.
#[derive(Serialize, Deserialize)]
struct CsvRow {
    cell: PlainCell,
    round: u32,
    sample: u32,
    metric: String,
    unit: String,
    #[serde(serialize_with = "shortest")]
    value: Option<f64>,
    status: Status,
    reason: String,
}

/// The shortest text that reads back as the same number; whole numbers without a fraction.
fn shortest<S: serde::Serializer>(value: &Option<f64>, output: S) -> std::result::Result<S::Ok, S::Error> {
    match value {
        Some(v) => output.serialize_str(&v.to_string()),
        None => output.serialize_none(),
    }
}

/// Parses the rows, and gives the length of the part that holds only complete passes.
pub(super) fn parse(bytes: &[u8], path: &Path) -> Result<(Vec<PassRecord>, u64)> {
    // What follows the last newline is a torn line: a number cut short still parses, so it is never looked at.
    let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(&bytes[..whole]);
    let (mut passes, mut open, mut complete) = (Vec::new(), Vec::<CsvRow>::new(), 0);
    let mut record = csv::StringRecord::new();
    loop {
        let line = reader.position().line();
        let damaged = || format!("{}, line {line}, is damaged", path.display());
        if !reader.read_record(&mut record).with_context(damaged)? {
            break;
        }
        if line == 1 {
            ensure!(record.iter().eq(HEADER), "{}, line 1: expected the header '{}'", path.display(), HEADER.join(","));
            complete = reader.position().byte();
            continue;
        }
        let row: CsvRow = record.deserialize(Some(&HEADER.to_vec().into())).with_context(damaged)?;
        ensure!(row.value.is_none_or(f64::is_finite), "{}: the value is not finite", damaged());
        ensure!(
            open.first().is_none_or(|first| first.cell == row.cell && first.round == row.round),
            "{}: a pass of '{}' ends without its closing row",
            damaged(),
            open[0].cell
        );
        let Some(pass) = Pass::from_closing_metric(&row.metric) else {
            ensure!(row.value.is_some(), "{}: a sample without a value", damaged());
            open.push(row);
            continue;
        };
        passes.push(PassRecord {
            cell: row.cell,
            pass,
            round: row.round,
            status: row.status,
            reason: row.reason,
            seconds: row.value,
            samples: open
                .drain(..)
                .filter_map(|r| {
                    Some(Sample { value: r.value?, metric: r.metric, unit: r.unit, sample: r.sample, reason: r.reason })
                })
                .collect(),
        });
        complete = reader.position().byte();
    }
    Ok((passes, complete))
}

pub(super) fn write(passes: &[PassRecord], header: bool) -> Result<Vec<u8>> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    if header {
        writer.write_record(HEADER)?;
    }
    // A newline inside a field would make a torn line look whole.
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for pass in passes {
        for sample in &pass.samples {
            writer.serialize(CsvRow {
                cell: pass.cell.clone(),
                round: pass.round,
                sample: sample.sample,
                metric: sample.metric.clone(),
                unit: sample.unit.clone(),
                value: Some(sample.value),
                status: Status::Ok,
                reason: one_line(&sample.reason),
            })?;
        }
        writer.serialize(CsvRow {
            cell: pass.cell.clone(),
            round: pass.round,
            sample: 0,
            metric: pass.pass.closing_metric().to_string(),
            unit: "s".to_string(),
            value: pass.seconds,
            status: pass.status,
            reason: one_line(&pass.reason),
        })?;
    }
    writer.into_inner().context("formatting rows")
}

/// Prefix of a file that is written and not yet in its place.
pub(super) const ASIDE: &str = ".aside-";

/// Writes a file aside, syncs it and renames it into place.
///
/// # Errors
/// Names the file; what stood there is intact.
pub fn replace_file(path: &Path, contents: &[u8]) -> Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || -> Result<()> {
        let mut aside = tempfile::Builder::new().prefix(ASIDE).tempfile_in(dir)?;
        aside.write_all(contents)?;
        aside.as_file().sync_all()?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        aside.as_file().set_permissions(mode)?;
        aside.persist(path)?;
        Ok(File::open(dir)?.sync_all()?)
    };
    write().with_context(|| format!("writing {}", path.display()))
}

/// Reads a file of results. What is none, a pipe for instance, may never come to an end.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    let reading = || format!("reading {}", path.display());
    ensure!(std::fs::metadata(path).with_context(reading)?.is_file(), "{} is no file", path.display());
    std::fs::read(path).with_context(reading)
}
