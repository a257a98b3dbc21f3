//! The figures that experiments share, and how an experiment declares its own.

use crate::protocol::{ACTIVATIONS, GRADIENTS, Metric, PEAK, Pass, STEP_PEAK, TIME};

impl Metric {
    /// A figure that is counted once, as bytes are.
    pub const fn counted(name: &'static str, label: &'static str, unit: &'static str) -> Metric {
        Metric { name, label, unit, pass: Pass::Memory }
    }

    /// A figure that moves from run to run, as times do, and so gets rounds.
    pub const fn timed(name: &'static str, label: &'static str, unit: &'static str) -> Metric {
        Metric { name, label, unit, pass: Pass::Time }
    }

    /// The relative error of something that is compared with the baseline's; its name ends in `_error`.
    pub const fn compared(name: &'static str, label: &'static str) -> Metric {
        Metric { name, label, unit: "1", pass: Pass::Check }
    }

    /// The same figure under another label.
    pub const fn labelled(self, label: &'static str) -> Metric {
        Metric { label, ..self }
    }
}

/// 1 where the step failed, 0 where it did not.
pub const RAISED: Metric = Metric::compared("raised", "error raised");
pub const GRADIENT_ERROR: Metric = Metric::compared("gradient_error", "gradient error");
pub const LOSS_ERROR: Metric = Metric::compared("loss_error", "loss error");
pub const OUTPUT_ERROR: Metric = Metric::compared("output_error", "output error");
pub const PARAMETER_ERROR: Metric = Metric::compared("parameter_error", "error of updated parameters");
pub const RESULT_ERROR: Metric = Metric::compared("result_error", "result error");
pub const UPDATE_ERROR: Metric = Metric::compared("update_error", "update error");

pub(super) const COMPARED: &[Metric] =
    &[RESULT_ERROR, OUTPUT_ERROR, LOSS_ERROR, GRADIENT_ERROR, UPDATE_ERROR, PARAMETER_ERROR, RAISED];
pub(super) const COUNTED: &[Metric] = &[PEAK, STEP_PEAK, ACTIVATIONS, GRADIENTS];
pub(super) const TIMED: &[Metric] = &[TIME];
