//! Both sides of a comparison, ours and PyTorch's: the files that they share, and which has to run before the other can.

use super::python::for_reference;
use super::spec::{Exchange, Spec};
use anyhow::{Context, Result};
use base::order::place_of;
use record::protocol::{BY, Pass, PlainCell};
use tempfile::TempDir;

/// The files that both sides of comparisons share; they go with the run.
#[derive(Default)]
pub struct Exchanges {
    folder: Option<TempDir>,
    /// What both sides of each comparison have in common, in the order of their files' numbers.
    known: Vec<String>,
}

impl Exchanges {
    /// The files of a cell and its reference.
    pub fn files(&mut self, cell: &PlainCell) -> Result<Exchange> {
        let common = cell.without(&[BY]);
        let number = place_of(&mut self.known, common);
        let folder = match &self.folder {
            Some(folder) => folder,
            None => self.folder.insert(tempfile::tempdir().context("making a folder for what both sides share")?),
        };
        let path = |what: &str| folder.path().join(format!("{number}-{what}.safetensors"));
        Ok(Exchange { start: path("start"), outcome: path("outcome") })
    }
}

/// What the other side of a comparison has to run before this side can: ours writes its start, the reference its outcome. None where it
/// has, or nothing is needed.
pub fn needed(spec: &Spec) -> Result<Option<Spec>> {
    let Some(files) = &spec.exchange else { return Ok(None) };
    let writes_for_other_side = spec.cell.is_reference();
    let is_there = match writes_for_other_side {
        true => files.start.exists(),
        // It is there unless an earlier run did the reference's check.
        false => spec.pass != Pass::Check || spec.writes_for_other_side || files.outcome.exists(),
    };
    if is_there {
        return Ok(None);
    }
    let reference = if writes_for_other_side { None } else { Some(for_reference(spec.threads)?) };
    Ok(Some(Spec { cell: spec.cell.other_side(), pass: Pass::Check, round: 1, writes_for_other_side, reference, ..spec.clone() }))
}
