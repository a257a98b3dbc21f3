//! Which techniques the script has already, or has nothing for, as far as its capture shows it: they are no advice.

use crate::capture::process::Trace;
use crate::capture::work::{Precision, Work, WorkKind};
use sim::trace::{Category, MemoryBlock};

/// Names of `--what-if`, by whether weights are cast where they are used.
pub fn no_advice(trace: &Trace, blocks: &[MemoryBlock], casts_weights: bool, device: u16) -> Vec<&'static str> {
    let is_seen = |end: &str| trace.frames.values().any(|frame| frame.file.ends_with(end));
    let of_kind = |kind: WorkKind| trace.work.iter().filter(move |work| work.device == device && work.kind == kind);
    let mut found = Vec::new();
    if is_seen("torch/utils/checkpoint.py") {
        found.extend(["checkpoint-every", "checkpoint-selective", "checkpoint-sqrt"]);
    }
    if trace.is_compiled() {
        found.push("compile");
    }
    let products = || of_kind(WorkKind::Matmul).chain(of_kind(WorkKind::Convolution));
    let (half, all) = products().fold((0.0, 0.0), |(half, all), work| {
        (if work.precision == Precision::Half { half + work.flops } else { half }, all + work.flops)
    });
    if half > 0.9 * all {
        found.push("autocast-bf16");
        if !casts_weights {
            found.push("bf16-weights");
        }
    }
    let has_ended_a_step = trace.events.last().is_some_and(|last| last.step > 0);
    if has_ended_a_step && of_kind(WorkKind::Matmul).next().is_none() {
        found.extend(["lora", "qlora"]);
    }
    if of_kind(WorkKind::Convolution).all(|work: &Work| work.is_channels_last || work.is_volume) {
        found.push("channels-last");
    }
    let steps_by = |frame: &str| frame.contains("torch/optim/") && !frame.ends_with("optimizer.py");
    let is_adam = is_seen("torch/optim/adam.py") || is_seen("torch/optim/adamw.py");
    if has_ended_a_step && !is_adam && trace.frames.values().any(|frame| steps_by(&frame.file)) {
        found.extend(["8-bit-torchao", "8-bit-bitsandbytes", "factored", "muon"]);
    }
    if has_ended_a_step && !blocks.iter().any(|block| block.category == Category::OptimizerState) {
        found.push("offload-optimizer");
    }
    found
}
