//! A results folder as it stands: its manifest and its rows.

use super::manifest::{MANIFEST, Manifest, SHARD, differences, read};
use super::protocols;
use super::rows::{HEADER, PassRecord, parse, read_file};
use super::witnesses::{self, WITNESSES};
use crate::protocol::PlainCell;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// Name of the file of rows.
pub(super) const SAMPLES: &str = "samples.csv";

/// A results folder as read.
#[derive(Debug, Clone)]
pub struct Run {
    pub manifest: Manifest,
    pub passes: Vec<PassRecord>,
    /// Cells whose step asks for something else today, with what is the first of it.
    pub earlier_form: Vec<(PlainCell, String)>,
}

impl Run {
    /// Reads an experiment's results folder, and joins the parts of a sweep that stand in it.
    ///
    /// # Errors
    /// Names the file, and the line where one is damaged; parts that were taken in different ways, with the difference.
    pub fn read(dir: &Path) -> Result<Run> {
        let parts = parts(dir)?;
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
            joined.manifest.commands.extend(run.manifest.commands);
            joined.passes.extend(run.passes);
        }
        Ok(joined)
    }

    pub(super) fn read_part(dir: &Path) -> Result<Run> {
        let mut manifest = read(&dir.join(MANIFEST))?;
        manifest.protocol = protocols::read(dir, &manifest.method)?;
        let path = dir.join(SAMPLES);
        let text = read_rows(&path)?;
        let (passes, _) = parse(&text, &path)?;
        let witnesses = protocols::around(dir, Path::new(WITNESSES))?.map(|records| witnesses::read(&records, &manifest.method));
        let of_today = witnesses.transpose()?.unwrap_or_default().into_iter().filter(|row| !row.today.is_empty());
        let earlier_form = of_today.map(|row| (row.cell, row.today)).collect();
        Ok(Run { manifest, passes, earlier_form })
    }
}

/// The folders of an experiment that hold results: its own, those of the parts of a sweep, or both.
pub(super) fn parts(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut parts = shards(dir)?;
    if dir.join(MANIFEST).exists() || parts.is_empty() {
        parts.insert(0, dir.to_path_buf());
    }
    Ok(parts)
}

/// The rows of a folder that has a manifest: none where the run ended before it made the file.
pub(super) fn read_rows(path: &Path) -> Result<Vec<u8>> {
    if path.exists() { read_file(path) } else { Ok(Vec::new()) }
}

/// Whether there is more than the header, or something that is no file.
pub(super) fn has_rows(path: &Path) -> bool {
    let header = HEADER.join(",").len() as u64 + 1;
    std::fs::metadata(path).is_ok_and(|about| !about.is_file() || about.len() > header)
}

/// Whether a folder is an experiment's results folder, whole or damaged.
pub fn holds_results(dir: &Path) -> bool {
    dir.join(MANIFEST).exists() || has_rows(&dir.join(SAMPLES)) || shards(dir).is_ok_and(|parts| !parts.is_empty())
}

/// Folders of the parts of a sweep, in order of name.
fn shards(dir: &Path) -> Result<Vec<PathBuf>> {
    let is_shard = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(SHARD));
    Ok(folders(dir)?.into_iter().filter(is_shard).collect())
}

/// The folders in a folder, hidden ones left out, in order of name.
pub fn folders(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
    let entries = entries.with_context(|| format!("reading {}", dir.display()))?.into_iter();
    let shown = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    let mut folders: Vec<PathBuf> = shown.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    Ok(folders)
}
