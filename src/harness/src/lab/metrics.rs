//! The figures that experiments share.

use record::protocol::{ACTIVATIONS, GRADIENTS, Metric, PEAK, STEP_PEAK, TIME};

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
