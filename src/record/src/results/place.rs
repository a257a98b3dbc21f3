//! Where a run's results go, so that whatever stands in the way of them stays as it is.

use super::journal::is_held;
use super::manifest::{MANIFEST, Manifest, differences, read};
use super::run::{Run, SAMPLES, folders, has_rows, parts};
use anyhow::Result;
use std::path::{Path, PathBuf};

/// The folder of a run, and what was left as it is because the run may not add to it.
#[derive(Debug)]
pub struct Place {
    pub dir: PathBuf,
    pub left: Vec<FolderNotWritten>,
}

/// Results that a run may not add to.
#[derive(Debug)]
pub struct FolderNotWritten {
    /// The experiment's folder.
    pub dir: PathBuf,
    /// How they differ from what the run will measure, or what is wrong with them.
    pub why: Vec<String>,
}

impl Place {
    /// The first of OUT/MACHINE/EXPERIMENT, OUT/MACHINE-2/EXPERIMENT and so on that is free or holds what the run may go on with; in it, the
    /// folder of the run's part of a sweep. One that another run holds is given as it is: to open it is an error.
    pub fn find(out: &Path, part: Option<&str>, manifest: &Manifest) -> Place {
        let machine = &manifest.identity.machine;
        let mut left = Vec::new();
        loop {
            let name = match left.len() {
                0 => machine.clone(),
                taken => format!("{machine}-{}", taken + 1),
            };
            let experiment = out.join(&name).join(&manifest.method.experiment);
            let dir = part.map_or(experiment.clone(), |part| experiment.join(part));
            let why = obstacles(&experiment, &dir, manifest);
            if why.is_empty() {
                return Place { dir, left };
            }
            left.push(FolderNotWritten { dir: experiment, why });
        }
    }
}

/// Folder of what comes with the project, beside that of all results: `measured/MACHINE`, `predicted/MACHINE`, and their protocols. No run
/// writes to it.
pub fn records(results: &Path) -> PathBuf {
    results.with_file_name("records")
}

/// The folders of the machines whose results came with the project, those that measured first.
pub fn came(results: &Path) -> Vec<PathBuf> {
    let records = records(results);
    ["measured", "predicted"].iter().flat_map(|kind| folders(&records.join(kind)).unwrap_or_default()).collect()
}

/// Why a run may not write to a folder: nothing where it may.
fn obstacles(experiment: &Path, dir: &Path, manifest: &Manifest) -> Vec<String> {
    if is_held(dir) {
        return Vec::new();
    }
    if has_rows(&dir.join(SAMPLES)) && !dir.join(MANIFEST).exists() {
        return vec![format!("there are samples without {MANIFEST}, so nobody knows what they are")];
    }
    // Parts of a sweep are joined when they are read. One that is just beginning has no manifest yet.
    let parts = parts(experiment).unwrap_or_default();
    let compared = |part: &PathBuf| -> Result<Vec<String>> {
        let found = differences(&read(&part.join(MANIFEST))?, manifest)?;
        if found.is_empty() && part == dir {
            Run::read_part(part)?;
        }
        Ok(found)
    };
    let known = parts.iter().filter(|part| part.join(MANIFEST).exists());
    known.flat_map(|part| compared(part).unwrap_or_else(|error| vec![format!("{error:#}")])).collect()
}
