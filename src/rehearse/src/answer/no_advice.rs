//! Which techniques the script has already, or has nothing for, as far as its capture shows it: they are no advice.

use crate::capture::process::Trace;
use crate::capture::work::{Precision, Work, WorkKind};
use sim::trace::{Category, MemoryBlock};
use std::collections::{HashMap, HashSet};

/// Of logits for which `fused_linear_loss.py` applies.
const FEWEST_CLASSES: u32 = 8192;

/// Names of `--what-if`, by whether weights are cast where they are used.
pub fn no_advice(trace: &Trace, blocks: &[MemoryBlock], casts_weights: bool, device: u16) -> Vec<&'static str> {
    let is_seen = |end: &str| trace.frames.values().any(|frame| frame.file.ends_with(end));
    let of_kind = |kind: WorkKind| trace.work.iter().filter(move |work| work.device == device && work.kind == kind);
    let mut found = Vec::new();
    let has_ended_a_step = trace.events.last().is_some_and(|last| last.step > 0);
    if is_seen("torch/utils/checkpoint.py") || (has_ended_a_step && !may_have_blocks(trace)) {
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
    if has_ended_a_step && of_kind(WorkKind::Matmul).next().is_none() {
        found.extend(["lora", "qlora"]);
    }
    // Rows of a product may be as many, too.
    if has_ended_a_step && of_kind(WorkKind::Matmul).all(|work| work.m.max(work.n) < FEWEST_CLASSES) {
        found.push("fused-linear-loss");
    }
    if of_kind(WorkKind::Convolution).all(|work: &Work| work.is_channels_last || work.is_volume) {
        found.push("channels-last");
    }
    let steps_by = |frame: &str| frame.contains("torch/optim/") && !frame.ends_with("optimizer.py");
    let is_adam = is_seen("torch/optim/adam.py") || is_seen("torch/optim/adamw.py");
    if has_ended_a_step && !is_adam && trace.frames.values().any(|frame| steps_by(&frame.file)) {
        found.extend(["8-bit-torchao", "8-bit-bitsandbytes", "factored", "muon"]);
    }
    // Whose step wants a closure.
    if is_seen("torch/optim/lbfgs.py") {
        found.push("optimizer-in-backward");
    }
    if has_ended_a_step && !blocks.iter().any(|block| block.category == Category::OptimizerState) {
        found.push("offload-optimizer");
    }
    found
}

/// Whether some module has two parts that have parts: repeated blocks are such. Where no module is known they may be anything.
fn may_have_blocks(trace: &Trace) -> bool {
    let mut parts: HashMap<&str, HashSet<&str>> = HashMap::new();
    for name in trace.modules.values() {
        for (at, _) in name.match_indices('.') {
            if let Some((part, _)) = name[at + 1..].split_once('.') {
                parts.entry(&name[..at]).or_default().insert(part);
            }
        }
    }
    trace.modules.is_empty() || parts.values().any(|parts| parts.len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_parts_of_one_module_that_have_parts() {
        let has = |names: &[&str]| {
            let mut trace = Trace::default();
            trace.modules = (1..).zip(names.iter().map(|name| (*name).to_string())).collect();
            may_have_blocks(&trace)
        };
        assert!(has(&["Net.layers.0.mlp", "Net.layers.1.mlp", "Net.head"]) && has(&["Dense.layer1.norm", "Dense.layer2.norm"]));
        assert!(has(&["Sequential.0.0", "Sequential.1.0"]) && has(&[]));
        assert!(!has(&["Net.features.conv1", "Net.features.conv2", "Net.features.pool", "Net.head", "Loss"]));
    }
}
