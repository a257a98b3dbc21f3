//! Sample rows and the run manifest: the only reader and writer of result files.
//!
//! A results folder holds `run.json` (what was run, where, with which protocol) and `samples.csv` (raw samples, one row each). Rows
//! are appended and synced pass by pass; the row that closes a pass comes last, so a pass without it was cut short and is measured
//! again. Nothing that was complete is ever lost: files that are replaced are written aside, synced and renamed.

use crate::protocol::{Cell, Pass, Platform, Profile, Protocol};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Version of both files' layout.
pub const SCHEMA: u32 = 1;
const HEADER: [&str; 8] = ["cell", "round", "sample", "metric", "unit", "value", "status", "reason"];
const SAMPLES: &str = "samples.csv";
const MANIFEST: &str = "run.json";
/// Prefix of a file that is written and not yet in its place.
const ASIDE: &str = ".aside-";

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
        f.pad(match self {
            Status::Ok => "ok",
            Status::Oom => "oom",
            Status::Skipped => "skipped",
            Status::Error => "error",
            Status::Timeout => "timeout",
            Status::Crashed => "crashed",
            Status::Invalid => "invalid",
        })
    }
}

/// One figure. `reason` says what is remarkable about it (a throttled clock), and is empty otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    pub cell: Cell,
    pub pass: Pass,
    /// Counts the passes of one kind over one cell, from 1.
    pub round: u32,
    pub status: Status,
    pub reason: String,
    /// Wall-clock seconds of the child; none where none was started.
    pub seconds: Option<f64>,
    pub samples: Vec<Sample>,
}

/// A line of `samples.csv`.
#[derive(Serialize, Deserialize)]
struct Row {
    cell: String,
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

/// What must agree between two runs whose rows may stand in one file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// Readable name of the machine and of its results folder: `amd-epyc-2c`, `nvidia-h200`.
    pub machine: String,
    pub platform: Platform,
    /// CPU, cores, memory, GPU, driver, power limit, under readable names.
    pub hardware: BTreeMap<String, String>,
    pub libtorch: String,
    /// Thread count, TF32, cuDNN benchmark, allocator configuration.
    pub flags: BTreeMap<String, String>,
    /// Limit on the device's memory that the user set.
    pub memory_limit: Option<u64>,
    pub seed: u64,
    /// Hash of the sources that take figures (not of those that report them).
    pub sources: String,
}

/// What was run, where and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub schema: u32,
    pub profile: Profile,
    pub identity: Identity,
    /// Every cell that this folder is to hold, as canonical text.
    pub planned: Vec<String>,
    pub argv: Vec<String>,
    /// Recorded, never compared.
    pub git_revision: String,
    pub git_dirty: bool,
    pub protocol: Protocol,
}

/// A results folder as read.
#[derive(Debug, Clone)]
pub struct Run {
    pub manifest: Manifest,
    pub passes: Vec<PassRecord>,
    /// What cells keep beside their figures, by name: a trace, a snapshot.
    pub files: Vec<PathBuf>,
}

/// Folder of the files that cells keep, inside the experiment's folder.
pub const FILES: &str = "files";

/// Prefix of the folders that the parts of a sweep write to, inside the experiment's folder.
pub const SHARD: &str = "shard-";

impl Run {
    /// Reads an experiment's results folder, and joins the parts of a sweep that stand in it.
    ///
    /// # Errors
    /// Names the file, and the line where one is damaged; parts that were taken in different ways, with the difference.
    pub fn read(dir: &Path) -> Result<Run> {
        let mut parts: Vec<PathBuf> = shards(dir)?;
        if dir.join(MANIFEST).exists() || parts.is_empty() {
            parts.insert(0, dir.to_path_buf());
        }
        let mut runs = parts.iter().map(|part| Run::read_part(part));
        let mut joined = runs.next().context("no results")??;
        for (run, part) in runs.zip(&parts[1..]) {
            let run = run?;
            let differences = differences(&joined.manifest, &run.manifest)?;
            ensure!(
                differences.is_empty(),
                "{} cannot be joined with {}: {}",
                part.display(),
                parts[0].display(),
                differences.join("; ")
            );
            joined.manifest.planned.extend(run.manifest.planned);
            joined.passes.extend(run.passes);
            joined.files.extend(run.files);
        }
        Ok(joined)
    }

    fn read_part(dir: &Path) -> Result<Run> {
        let manifest = read_manifest(&dir.join(MANIFEST))?;
        let path = dir.join(SAMPLES);
        let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let (passes, _) = parse_samples(&text, &path)?;
        Ok(Run { manifest, passes, files: files(dir)? })
    }
}

/// The files that cells kept, in order of name.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let folder = dir.join(FILES);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let reading = || format!("reading {}", folder.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(reading)? {
        let entry = entry.with_context(reading)?;
        if !entry.file_name().to_string_lossy().starts_with(ASIDE) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Whether a folder is an experiment's results folder, whole or damaged.
pub fn holds_results(dir: &Path) -> bool {
    dir.join(MANIFEST).exists() || dir.join(SAMPLES).exists() || shards(dir).is_ok_and(|parts| !parts.is_empty())
}

/// Folders of the parts of a sweep, in order of name.
fn shards(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("reading {}", dir.display()))?.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(SHARD)) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read_manifest(path: &Path) -> Result<Manifest> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let value: serde_json::Value = serde_json::from_str(&text).with_context(|| format!("{} is not valid JSON", path.display()))?;
    match value.get("schema").and_then(serde_json::Value::as_u64) {
        Some(schema) if schema == u64::from(SCHEMA) => {}
        Some(other) => bail!(
            "{} has results of schema {other}, and this vramlab reads schema {SCHEMA}; read them with the version that wrote them, or measure again with --fresh",
            path.display()
        ),
        None => bail!("{} names no schema: it is no manifest of a run", path.display()),
    }
    serde_json::from_value(value).with_context(|| format!("{} is no manifest of schema {SCHEMA}", path.display()))
}

/// Parses the rows, and gives the length of the part that holds only complete passes.
fn parse_samples(bytes: &[u8], path: &Path) -> Result<(Vec<PassRecord>, u64)> {
    // What follows the last newline is a torn line: a number cut short still parses, so it is never looked at.
    let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(&bytes[..whole]);
    let (mut passes, mut open, mut complete) = (Vec::new(), Vec::<Row>::new(), 0);
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
        let row: Row = record.deserialize(Some(&HEADER.to_vec().into())).with_context(damaged)?;
        let cell = Cell::parse(&row.cell).map_err(anyhow::Error::msg).with_context(damaged)?;
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
            cell,
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

fn write_samples(passes: &[PassRecord], header: bool) -> Result<Vec<u8>> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    if header {
        writer.write_record(HEADER)?;
    }
    // A newline inside a field would make a torn line look whole.
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for pass in passes {
        for sample in &pass.samples {
            writer.serialize(Row {
                cell: pass.cell.to_string(),
                round: pass.round,
                sample: sample.sample,
                metric: sample.metric.clone(),
                unit: sample.unit.clone(),
                value: Some(sample.value),
                status: Status::Ok,
                reason: one_line(&sample.reason),
            })?;
        }
        writer.serialize(Row {
            cell: pass.cell.to_string(),
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

/// Removes files that a killed run had written aside and not renamed yet.
fn sweep_aside(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(ASIDE) {
            // It is litter; a run need not fail for it.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The one writer of a results folder; holds the folder's lock while it lives.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Length of the part of the file that holds complete passes.
    length: u64,
    _lock: File,
}

impl Journal {
    /// Opens a folder for a run: a new one, or one to go on with. Gives back the passes that need not be measured again; what failed,
    /// what a budget left out and what was cut short is removed, so that it is measured now.
    ///
    /// # Errors
    /// Another run holds the folder; it holds results of another protocol, machine, libtorch, flags, seed, profile or sources (each
    /// difference named) and `fresh` is not given; a damaged row (file and line named); a file cannot be written.
    pub fn open(dir: &Path, manifest: &mut Manifest, fresh: bool) -> Result<(Journal, Vec<PassRecord>)> {
        std::fs::create_dir_all(dir).with_context(|| format!("making the results folder {}", dir.display()))?;
        let lock = File::open(dir).with_context(|| format!("opening the results folder {}", dir.display()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!("another run is writing to {}; wait for it, or give this one a folder of its own with --out", dir.display())
            }
            Err(TryLockError::Error(e)) => {
                return Err(e).with_context(|| format!("locking {}", dir.display()));
            }
        }
        sweep_aside(dir);
        sweep_aside(&dir.join(FILES));
        let (path, manifest_path) = (dir.join(SAMPLES), dir.join(MANIFEST));
        let mut kept = Vec::new();
        if fresh || !manifest_path.exists() {
            ensure!(
                fresh || !path.exists(),
                "{} has samples but no {MANIFEST}, so nobody knows what they are; --fresh starts over and removes them",
                dir.display()
            );
            // The manifest goes first: samples without one belong to nothing.
            let _ = std::fs::remove_file(&manifest_path);
            // What cells kept belongs to the figures that go.
            let _ = std::fs::remove_dir_all(dir.join(FILES));
            replace_file(&path, &write_samples(&[], true)?)?;
            replace_file(&manifest_path, &serde_json::to_vec_pretty(manifest)?)?;
        } else {
            let stored = read_manifest(&manifest_path)?;
            let differences = differences(&stored, manifest)?;
            ensure!(
                differences.is_empty(),
                "{} holds results that this run may not add to:\n{}\nGive --fresh to start over, or another folder with --out",
                dir.display(),
                differences.iter().map(|d| format!("  - {d}\n")).collect::<String>().trim_end()
            );
            for cell in stored.planned {
                if !manifest.planned.contains(&cell) {
                    manifest.planned.push(cell);
                }
            }
            let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            let (passes, complete) = parse_samples(&text, &path)?;
            let read = passes.len();
            kept.extend(passes.into_iter().filter(|p| !p.is_to_be_repeated()));
            if kept.len() < read || complete < HEADER.join(",").len() as u64 {
                replace_file(&path, &write_samples(&kept, true)?)?;
            } else if complete < text.len() as u64 {
                let file = OpenOptions::new().write(true).open(&path)?;
                file.set_len(complete).and_then(|()| file.sync_all()).context("cutting off a torn row")?;
            }
            replace_file(&manifest_path, &serde_json::to_vec_pretty(manifest)?)?;
        }
        let open = || OpenOptions::new().read(true).append(true).open(&path);
        let file = open().with_context(|| format!("opening {}", path.display()))?;
        let length = file.metadata()?.len();
        Ok((Journal { path, file, length, _lock: lock }, kept))
    }

    /// Appends a pass and syncs it to the disk.
    ///
    /// # Errors
    /// The disk is full or gone; what was there before stays as it was.
    pub fn append(&mut self, pass: &PassRecord) -> Result<()> {
        let rows = write_samples(std::slice::from_ref(pass), false)?;
        let written = self.file.write_all(&rows).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // Shrinking needs no space, so the half-written rows can go even on a full disk.
            let _ = self.file.set_len(self.length).and_then(|()| self.file.sync_data());
            return Err(error).with_context(|| {
                format!(
                    "cannot write to {}: what was measured before is kept; make room and run the same command again to go on",
                    self.path.display()
                )
            });
        }
        self.length += rows.len() as u64;
        Ok(())
    }

    /// The passes written so far, read back from the file.
    ///
    /// # Errors
    /// The file cannot be read, or someone else has changed it.
    pub fn read_back(&mut self) -> Result<Vec<PassRecord>> {
        let mut text = Vec::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_end(&mut text).with_context(|| format!("reading {}", self.path.display()))?;
        Ok(parse_samples(&text, &self.path)?.0)
    }
}

/// Reason of the rows that a budget left out; such cells are measured when the run is resumed.
pub const BUDGET_ENDED: &str = "the budget ended before this cell's turn";

impl PassRecord {
    /// A pass that was not run, and why.
    pub fn not_run(cell: &Cell, pass: Pass, round: u32, status: Status, reason: &str) -> PassRecord {
        PassRecord { cell: cell.clone(), pass, round, status, reason: reason.to_string(), seconds: None, samples: Vec::new() }
    }

    fn is_to_be_repeated(&self) -> bool {
        self.status.is_failure() || (self.status == Status::Skipped && self.reason == BUDGET_ENDED)
    }
}

/// What of two runs does not agree, as sentences; what is only recorded is left out.
fn differences(stored: &Manifest, now: &Manifest) -> Result<Vec<String>> {
    let mut found = Vec::new();
    if stored.protocol.name != now.protocol.name {
        found.push(format!("experiment: there '{}', now '{}'", stored.protocol.name, now.protocol.name));
    } else if stored.protocol != now.protocol {
        found.push("protocol: its factors, grids, checks or claims were others".to_string());
    }
    if stored.profile != now.profile {
        found.push(format!("profile: there {}, now {}", stored.profile, now.profile));
    }
    compare("", &serde_json::to_value(&stored.identity)?, &serde_json::to_value(&now.identity)?, &mut found);
    Ok(found)
}

fn compare(name: &str, there: &serde_json::Value, now: &serde_json::Value, found: &mut Vec<String>) {
    use serde_json::Value::{Null, Object};
    match (there, now) {
        (Object(a), Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                compare(key, a.get(key).unwrap_or(&Null), b.get(key).unwrap_or(&Null), found);
            }
        }
        _ if there != now => found.push(format!("{}: there {there}, now {now}", name.replace('_', " "))),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pass(cell: &str, pass: Pass, round: u32, values: &[f64]) -> PassRecord {
        let samples = values.iter().enumerate().map(|(i, v)| Sample {
            metric: "time".into(),
            unit: "s".into(),
            value: *v,
            sample: i as u32,
            reason: String::new(),
        });
        PassRecord {
            cell: Cell::parse(cell).unwrap(),
            pass,
            round,
            status: Status::Ok,
            reason: String::new(),
            seconds: Some(0.5),
            samples: samples.collect(),
        }
    }

    fn manifest() -> Manifest {
        Manifest {
            schema: SCHEMA,
            profile: Profile::Quick,
            identity: Identity {
                machine: "somewhere".into(),
                platform: Platform::Cpu,
                hardware: BTreeMap::from([("cpu".into(), "a".into())]),
                libtorch: "2.11.0".into(),
                flags: BTreeMap::from([("threads".into(), "2".into())]),
                memory_limit: None,
                seed: 1,
                sources: "f00".into(),
            },
            planned: vec!["k=1".into()],
            argv: vec![],
            git_revision: String::new(),
            git_dirty: false,
            protocol: Protocol {
                name: "x",
                title: "x \"quoted\"",
                question: "",
                hypothesis: "",
                factors: &[],
                grids: &[],
                metrics: &[],
                checks: &[],
                claims: &[],
                published: &[],
                plots: &[],
                threats: &["one\nline"],
            },
        }
    }

    #[test]
    fn what_was_written_is_read_back_and_resumed() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, kept) = Journal::open(dir.path(), &mut manifest(), false).unwrap();
        assert!(kept.is_empty());
        let good = pass("k=1", Pass::Time, 1, &[0.1, 1e-9, 123456789.125]);
        let mut crashed = pass("k=2", Pass::Memory, 1, &[]);
        crashed.status = Status::Crashed;
        crashed.reason = "signal 9,\n\"killed\"".into();
        let mut oom = pass("k=4", Pass::Memory, 1, &[]);
        oom.status = Status::Oom;
        for p in [&good, &crashed, &oom] {
            journal.append(p).unwrap();
        }
        drop(journal);
        let run = Run::read(dir.path()).unwrap();
        assert_eq!(run.manifest, manifest());
        assert_eq!(run.passes[0], good);
        assert_eq!(run.passes[1].reason, "signal 9, \"killed\"");
        let (_, kept) = Journal::open(dir.path(), &mut manifest(), false).unwrap();
        assert_eq!(kept, [good, oom], "what failed is measured again, an outcome is not");
        assert_eq!(Run::read(dir.path()).unwrap().passes.len(), 2);
    }

    #[test]
    fn parts_of_a_sweep_are_joined_if_they_were_taken_alike() {
        let dir = tempfile::tempdir().unwrap();
        let write = |part: &str, cell: &str, manifest: &mut Manifest| {
            manifest.planned = vec![cell.to_string()];
            let (mut journal, _) = Journal::open(&dir.path().join(part), manifest, true).unwrap();
            journal.append(&pass(cell, Pass::Memory, 1, &[1.0])).unwrap();
        };
        write("shard-1-of-2", "k=1", &mut manifest());
        write("shard-2-of-2", "k=2", &mut manifest());
        let run = Run::read(dir.path()).unwrap();
        assert_eq!(run.manifest.planned, ["k=1", "k=2"]);
        assert_eq!(run.passes.len(), 2);
        let mut other = manifest();
        other.identity.libtorch = "2.12.0".into();
        write("shard-2-of-2", "k=2", &mut other);
        let error = Run::read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("cannot be joined") && error.contains("libtorch: there \"2.11.0\", now \"2.12.0\""), "{error}");
    }

    #[test]
    fn kept_files_are_read_in_order_and_go_with_their_figures() {
        let dir = tempfile::tempdir().unwrap();
        drop(Journal::open(dir.path(), &mut manifest(), false).unwrap());
        assert!(Run::read(dir.path()).unwrap().files.is_empty());
        let folder = dir.path().join(FILES);
        std::fs::create_dir(&folder).unwrap();
        for name in ["b.pickle", "a.json.gz", ".aside-half-written"] {
            std::fs::write(folder.join(name), name).unwrap();
        }
        drop(Journal::open(dir.path(), &mut manifest(), false).unwrap());
        assert_eq!(Run::read(dir.path()).unwrap().files, [folder.join("a.json.gz"), folder.join("b.pickle")]);
        assert!(!folder.join(".aside-half-written").exists(), "litter of a killed run is swept");
        drop(Journal::open(dir.path(), &mut manifest(), true).unwrap());
        assert!(Run::read(dir.path()).unwrap().files.is_empty(), "a fresh run starts without them");
    }

    #[test]
    fn a_second_writer_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let first = Journal::open(dir.path(), &mut manifest(), false).unwrap();
        let error = Journal::open(dir.path(), &mut manifest(), true).unwrap_err().to_string();
        assert!(error.contains("another run is writing to"), "{error}");
        drop(first);
        Journal::open(dir.path(), &mut manifest(), false).unwrap();
    }

    #[test]
    fn every_difference_is_named() {
        let dir = tempfile::tempdir().unwrap();
        drop(Journal::open(dir.path(), &mut manifest(), false).unwrap());
        let mut other = manifest();
        other.profile = Profile::Full;
        other.identity.flags.insert("threads".into(), "4".into());
        other.identity.sources = "bad".into();
        other.identity.hardware.insert("gpu".into(), "H200".into());
        other.git_revision = "recorded only".into();
        let error = Journal::open(dir.path(), &mut other, false).unwrap_err().to_string();
        for part in ["profile: there quick, now full", "threads: there \"2\", now \"4\"", "sources", "gpu: there null", "--fresh"] {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
        assert!(!error.contains("seed") && !error.contains("revision"), "{error}");
        drop(Journal::open(dir.path(), &mut other, true).unwrap());
        assert_eq!(Run::read(dir.path()).unwrap().manifest, other);
    }

    #[test]
    fn other_schemas_and_damaged_rows_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path(), &mut manifest(), false).unwrap();
        journal.append(&pass("k=1", Pass::Time, 1, &[0.25, 0.5])).unwrap();
        drop(journal);
        let file = dir.path().join(SAMPLES);
        let text = std::fs::read_to_string(&file).unwrap();
        for (from, to) in [
            ("0.5,ok", "half,ok"),
            (",ok,", ",fine,"),
            ("k=1,1,1,", "k=1,1,"),
            ("0.25", "inf"),
            ("k=1,1,1", "k,1,1"),
            ("k=1,1,1", "k=2,1,1"),
        ] {
            std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
            let error = format!("{:#}", Run::read(dir.path()).unwrap_err());
            assert!(error.contains("samples.csv, line ") && error.contains("damaged"), "{from} -> {to}: {error}");
        }
        std::fs::write(&file, text.replacen("cell", "zelle", 1)).unwrap();
        assert!(format!("{:#}", Run::read(dir.path()).unwrap_err()).contains("line 1: expected the header"));
        let json = dir.path().join(MANIFEST);
        let good = std::fs::read_to_string(&json).unwrap();
        std::fs::write(&json, good.replace("\"schema\": 1", "\"schema\": 7")).unwrap();
        assert!(format!("{:#}", Run::read(dir.path()).unwrap_err()).contains("schema 7"));
        std::fs::write(&json, "{").unwrap();
        assert!(format!("{:#}", Run::read(dir.path()).unwrap_err()).contains("run.json is not valid JSON"));
    }

    /// A disk that takes only so many bytes: what was complete is kept, and the error says what to do.
    #[test]
    fn a_failed_write_keeps_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path(), &mut manifest(), false).unwrap();
        let first = pass("k=1", Pass::Time, 1, &[1.0]);
        journal.append(&first).unwrap();
        journal.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let error = format!("{:#}", journal.append(&pass("k=2", Pass::Time, 1, &[2.0])).unwrap_err());
        assert!(error.contains("No space left") && error.contains("make room"), "{error}");
        assert_eq!(Run::read(dir.path()).unwrap().passes, [first]);
    }

    proptest! {
        /// Cut anywhere, the file yields exactly the passes that were complete, and going on from there works.
        #[test]
        fn cut_anywhere_no_complete_pass_is_lost(cut in 0.0..1.0f64, values in proptest::collection::vec(any::<u32>(), 1..4)) {
            let dir = tempfile::tempdir().unwrap();
            let passes: Vec<PassRecord> = (1..6)
                .map(|round| pass("k=1", Pass::Time, round, &values.iter().map(|v| f64::from(*v) / 7.0).collect::<Vec<_>>()))
                .collect();
            let (mut journal, _) = Journal::open(dir.path(), &mut manifest(), false).unwrap();
            let mut ends = Vec::new();
            for p in &passes {
                journal.append(p).unwrap();
                ends.push(journal.length);
            }
            drop(journal);
            let file = dir.path().join(SAMPLES);
            let length = (cut * ends[4] as f64) as u64;
            OpenOptions::new().write(true).open(&file).unwrap().set_len(length).unwrap();
            let complete = ends.iter().filter(|end| **end <= length).count();
            let (mut journal, kept) = Journal::open(dir.path(), &mut manifest(), false).unwrap();
            prop_assert_eq!(&kept, &passes[..complete]);
            for p in &passes[complete..] {
                journal.append(p).unwrap();
            }
            prop_assert_eq!(journal.read_back().unwrap(), passes);
        }
    }
}
