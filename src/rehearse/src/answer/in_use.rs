//! Which techniques the script has already, as far as its capture shows it: they are no advice.

use crate::capture::process::Trace;
use crate::capture::work::{Precision, WorkKind};

/// Names of `--what-if`, by whether weights are cast where they are used.
pub fn in_use(trace: &Trace, casts_weights: bool, device: u16) -> Vec<&'static str> {
    let mut found = Vec::new();
    if trace.frames.values().any(|frame| frame.file.ends_with("torch/utils/checkpoint.py")) {
        found.extend(["checkpoint-every", "checkpoint-selective", "checkpoint-sqrt"]);
    }
    let products = trace.work.iter().filter(|work| work.device == device && work.kind == WorkKind::Matmul);
    let (half, all) = products.fold((0.0, 0.0), |(half, all), work| {
        (if work.precision == Precision::Half { half + work.flops } else { half }, all + work.flops)
    });
    if half > 0.9 * all {
        found.push("autocast-bf16");
        if !casts_weights {
            found.push("bf16-weights");
        }
    }
    found
}
