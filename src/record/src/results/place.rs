//! Where a run's results go, so that whatever stands in the way of them stays as it is.

use super::journal::is_held;
use super::manifest::{MANIFEST, Manifest, differences, differences_of_predictions, read};
use super::rows::PassRecord;
use super::run::{Run, SAMPLES, has_rows, holds_results, parts};
use anyhow::Result;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What the folder of a machine's results is called besides where its own name is taken: by the reference results, or by those of an earlier run
/// that this one may not add to.
pub const YOURS: &str = "yours";

/// File in the folder of all results that names the folders of the results that came with the project, one on a line. No run writes to them.
pub const REFERENCE: &str = "reference.txt";

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
    /// The first of OUT/MACHINE/EXPERIMENT, OUT/MACHINE-yours/EXPERIMENT, OUT/MACHINE-yours-2/EXPERIMENT and so on that is no reference, and
    /// is free or holds what the run may go on with; in it, the folder of the run's part of a sweep. One that another run holds is given as it
    /// is: to open it is an error.
    pub fn find(out: &Path, part: Option<&str>, manifest: &Manifest) -> Place {
        let machine = &manifest.identity.machine;
        let reference = reference(out);
        let mut left = Vec::new();
        let mut number = 0;
        loop {
            let name = match number {
                0 => machine.clone(),
                1 => format!("{machine}-{YOURS}"),
                n => format!("{machine}-{YOURS}-{n}"),
            };
            number += 1;
            let experiment = out.join(&name).join(&manifest.protocol.name);
            if reference.contains(&name) {
                if holds_results(&experiment) {
                    left.push(FolderNotWritten {
                        dir: experiment,
                        why: vec!["it is the reference that came with the project".to_string()],
                    });
                }
                continue;
            }
            let dir = part.map_or(experiment.clone(), |part| experiment.join(part));
            let why = obstacles(&experiment, &dir, manifest);
            if why.is_empty() {
                return Place { dir, left };
            }
            left.push(FolderNotWritten { dir: experiment, why });
        }
    }
}

/// The predictions that came with the project, where they may be what this run would make: of the same grids, libtorch and simulated GPU, of
/// every cell, and whole. With their folder.
pub fn predictions_that_came(out: &Path, manifest: &Manifest) -> Result<Option<(PathBuf, Run)>> {
    let dir = out.join(&manifest.identity.machine).join(&manifest.protocol.name);
    if !reference(out).contains(&manifest.identity.machine) || !holds_results(&dir) {
        return Ok(None);
    }
    let run = Run::read(&dir)?;
    let are_alike = differences_of_predictions(&run.manifest, manifest)?.is_empty();
    let has = |cell: &String| run.passes.iter().any(|pass| pass.cell.to_string() == *cell);
    let is_whole = manifest.planned.iter().all(has) && !run.passes.iter().any(PassRecord::is_to_be_repeated);
    Ok((are_alike && is_whole).then_some((dir, run)))
}

/// The machines whose results came with the project, by the folder of all results.
pub fn reference(results: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(results.join(REFERENCE)).unwrap_or_default();
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_string).collect()
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
