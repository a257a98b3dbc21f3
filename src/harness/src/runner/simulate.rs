//! The same cell on a simulated GPU, for experiments that put a prediction beside a measurement.

use super::launch::launch;
use super::spec::Spec;
use super::start::Program;
use crate::machine::DeviceChoice;
use crate::machine::Gpu;
use anyhow::{Context, Result, ensure};
use record::protocol::{Pass, PlainCell};
use record::results::{Sample, Status};
use sim::cards::Card;
use std::time::Duration;
use tch::Device;

/// More than any cell of an experiment fills.
const MEMORY: u64 = 1 << 40;

/// A dry step takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The card that stands for a device: the GPU itself, whose kernels have its workspaces, with memory for every cell.
fn card_of(device: Device) -> Card {
    let gpu =
        if let Device::Cuda(index) = device { u32::try_from(index).ok().and_then(|index| Gpu::open(index).ok()) } else { None };
    let of_size = Card::of_size(MEMORY);
    gpu.and_then(|gpu| gpu.card()).map_or(of_size, |card| Card { name: None, memory: MEMORY, ..card })
}

/// Counts a cell of this experiment on a simulated GPU of the device's kind, in a process of its own, and gives the samples of its memory pass.
///
/// # Errors
/// The simulated GPU is not to be had, or what the cell fails with there.
pub fn simulate(cell: &PlainCell, device: Device) -> Result<Vec<Sample>> {
    let choice = DeviceChoice::Dry(card_of(device));
    let spec = Spec::alone(cell, Pass::Memory, choice);
    let found = launch(Program::Own, None, &spec, cell, 1, (choice, Some(MEMORY)), TIMEOUT)?.context("interrupted")?;
    ensure!(found.status == Status::Ok, "predicting {cell} on a simulated GPU: {}: {}", found.status, found.reason);
    Ok(found.samples)
}
