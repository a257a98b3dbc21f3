//! The same cell on a simulated GPU, for experiments that put a prediction beside a measurement.

use super::launch::launch;
use super::spec::Spec;
use super::start::Program;
use crate::machine::DeviceChoice;
use anyhow::{Context, Result, ensure};
use record::protocol::{Pass, PlainCell};
use record::results::{Sample, Status};
use std::time::Duration;

/// A card that no cell of an experiment fills.
const MEMORY: u64 = 1 << 40;

/// A dry step takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Counts a cell of this experiment in a dry process of its own, and gives the samples of its memory pass.
///
/// # Errors
/// The simulated GPU is not to be had, or what the cell fails with there.
pub fn simulate(cell: &PlainCell) -> Result<Vec<Sample>> {
    let choice = DeviceChoice::Dry(MEMORY.into());
    let spec = Spec::alone(cell, Pass::Memory, choice);
    let found = launch(Program::Own, None, &spec, cell, 1, (choice, Some(MEMORY)), TIMEOUT)?.context("interrupted")?;
    ensure!(found.status == Status::Ok, "predicting {cell} on a simulated GPU: {}: {}", found.status, found.reason);
    Ok(found.samples)
}
