//! Both sides of a comparison, ours and PyTorch's: the files that they share, and which has to run before the other can.

use super::launch::launch;
use super::python::{Python, for_reference};
use super::spec::{Exchange, Spec};
use super::start::Program;
use super::template::Templates;
use crate::machine::DeviceChoice;
use anyhow::{Context, Result};
use record::protocol::{BY, Pass, PlainCell};
use record::results::{PassRecord, Status};
use std::time::Duration;
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
        let number = self.known.iter().position(|known| *known == common).unwrap_or(self.known.len());
        if number == self.known.len() {
            self.known.push(common);
        }
        let folder = match &self.folder {
            Some(folder) => folder,
            None => self.folder.insert(tempfile::tempdir().context("making a folder for what both sides share")?),
        };
        let path = |what: &str| folder.path().join(format!("{number}-{what}.safetensors"));
        Ok(Exchange { start: path("start"), outcome: path("outcome") })
    }
}

/// Whether a pass has what it needs of the other side of its comparison.
pub enum Provision {
    Ready,
    /// The other side's pass did not give it.
    Failed(PassRecord),
    /// Ctrl-C ended it.
    Stopped,
}

/// Has the other side of a comparison write what a pass needs, where that is not there yet.
pub fn provide(
    (python, templates): (Option<&Result<Python, String>>, Option<&mut Templates>),
    spec: &Spec,
    cell: &PlainCell,
    device: (DeviceChoice, Option<u64>),
    timeout: Duration,
) -> Result<Provision> {
    let Some((other, spec_of_other)) = needed(spec, cell)? else { return Ok(Provision::Ready) };
    let given = provided((python, templates), &spec_of_other, &other, 1, device, timeout)?;
    Ok(match given {
        None => Provision::Stopped,
        Some(given) if given.status == Status::Ok => Provision::Ready,
        Some(given) => Provision::Failed(given),
    })
}

/// Runs a pass, after the other side of its comparison has written what it needs; none where Ctrl-C ended it.
pub fn provided(
    (python, mut templates): (Option<&Result<Python, String>>, Option<&mut Templates>),
    spec: &Spec,
    cell: &PlainCell,
    round: u32,
    device: (DeviceChoice, Option<u64>),
    timeout: Duration,
) -> Result<Option<PassRecord>> {
    match provide((python, templates.as_deref_mut()), spec, cell, device, timeout)? {
        Provision::Ready => launch(program(python, cell), templates, spec, cell, round, device, timeout),
        Provision::Failed(given) => Ok(Some(given.of_other_side(cell, spec.pass, round))),
        Provision::Stopped => Ok(None),
    }
}

/// What the other side of a comparison has to run before this side can: ours writes its start, the reference its outcome. None where it
/// has, or nothing is needed.
fn needed(spec: &Spec, cell: &PlainCell) -> Result<Option<(PlainCell, Spec)>> {
    let Some(files) = &spec.exchange else { return Ok(None) };
    let (other, hand_over) = match cell.is_reference() {
        true if !files.start.exists() => (cell.other_side(), true),
        // It is there unless an earlier run did the reference's check.
        false if spec.pass == Pass::Check && !spec.hand_over && !files.outcome.exists() => (cell.other_side(), false),
        _ => return Ok(None),
    };
    let reference = if hand_over { None } else { Some(for_reference(spec.threads)?) };
    let spec = Spec { cell: other.to_string(), pass: Pass::Check, hand_over, reference, ..spec.clone() };
    Ok(Some((other, spec)))
}

/// Who runs a cell.
pub fn program<'a>(python: Option<&'a Result<Python, String>>, cell: &PlainCell) -> Program<'a> {
    match python {
        Some(Ok(python)) if cell.is_reference() => Program::Reference(python),
        _ => Program::Own,
    }
}
