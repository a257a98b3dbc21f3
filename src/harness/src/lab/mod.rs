//! What an experiment is written with: `use harness::lab::*`.
//!
//! Levels are types (`levels!`, `number!`, `name!`), a cell is a struct of them (`cell!`), and each [`Grid`] of cells owns the function that
//! sets its cells up, the relation that each must show to its baseline, and the claims that it answers. When a run is planned, all of it
//! becomes the plain data of [`record::protocol`], which is kept beside results, so that whoever reads them needs no experiment.

mod claims;
mod grid;
mod levels;
mod metrics;
mod plots;
mod protocol;
mod selection;
pub mod testing;

pub use crate::cell;
pub use crate::levels;
pub use crate::measure::{Bench, Probe, Step, Timing};
pub use crate::name;
pub use crate::number;
pub use crate::python_test;
pub use anyhow::{Context, Result, bail, ensure};
pub use claims::{
    Claim, Rule, agreement, at_least, at_most, false_alarms, frequency, growth, highest, lowest, outside, ratio, recorded,
    saved_trend, trend, value, within,
};
pub use grid::{CHECK, COUNT, Choose, Chosen, Grid, Passes, ROUNDS, differs, equal, missing, raises, scaled};
pub use levels::{
    AllocConf, Batch, By, Cell, DeviceMemory, Dtype, FactorText, Has, Level, Many, ModelName, Precision, Threads, spelling,
};
pub use metrics::{GRADIENT_ERROR, LOSS_ERROR, OUTPUT_ERROR, PARAMETER_ERROR, RAISED, RESULT_ERROR, UPDATE_ERROR};
pub use plots::{Plot, amounts, area, bars, lines, ranking};
pub use protocol::{Protocol, Shown};
pub use record::protocol::{
    ACTIVATIONS, BANDWIDTH, COMPUTED, GRADIENTS, LINK_SHARE, Metric, PEAK, PlainLevel, Platform, Relation, STEP_PEAK, SubjectKind,
    TIME,
};
pub use record::rules::RecordedFigure;
pub use tch::{Device, Kind, Reduction, Tensor, no_grad};

/// Devices whose kernels allocate as a GPU's do.
pub const CUDA: &[Platform] = &[Platform::Gpu, Platform::Dry];
/// The same, and what PyTorch in Python gave on a machine without one.
pub const BY_PYTHON: &[Platform] = &[Platform::Gpu, Platform::Dry, Platform::Python];
/// All that allocates, whether it computes or not.
pub const EVERYWHERE: &[Platform] = &[Platform::Cpu, Platform::Gpu, Platform::Dry];

/// Bytes of tensors' numbers; an undefined one has none.
pub fn bytes<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> i64 {
    let there = tensors.into_iter().filter(|tensor| tensor.defined());
    there.map(|tensor| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as i64).sum()
}

/// The step of a cell that PyTorch in Python runs: its `step.py` has it, and here it always fails.
pub fn in_python<C: Cell>(_: C, _: &Bench) -> Result<Step> {
    bail!("PyTorch in Python runs this cell")
}
