//! How titles and tables write what protocols name for the machine: shares and ratios by their metric, levels by what one does.

/// Metrics without a unit that are shares, and read best in percent.
const SHARES: &[&str] = &[
    "refused",
    "memory_told",
    "time_told",
    "landed",
    "learned",
    "zeros",
    "gap_share",
    "link_share",
    "locked_share",
    "trained_share",
    "formula_error",
    "predicted_error",
    "formula_signed",
    "predicted_signed",
];

/// Metrics without a unit that are ratios.
const RATIOS: &[&str] = &[
    "of_better",
    "gap_ratio",
    "process_peak",
    "process_held",
    "process_dropped",
    "process_trimmed",
    "load_peak",
    "held",
    "dropped",
    "device_returned",
    "freed",
    "unreserved",
    "extra",
    "saved",
    "kept",
    "state_ratio",
    "temporary_ratio",
    "device_bytes",
    "locked_for_each",
];

/// What titles call a level of a factor: a thing that one does, where the level's own name says that only beside its factor.
const DOINGS: &[(&str, &str, &str)] = &[
    ("attention", "explicit", "explicit attention"),
    ("attention", "fused", "fused attention"),
    ("by", "pytorch", "PyTorch"),
    ("ddp", "copies", "DDP with copied gradients"),
    ("ddp", "none", "no DDP"),
    ("ddp", "views", "gradient_as_bucket_view"),
    ("form", "clone", "relu(x).clone()"),
    ("form", "inplace", "relu_(x)"),
    ("form", "plain", "relu(x)"),
    ("how", "batches", "loading in batches"),
    ("how", "everything", "loading everything at once"),
    ("how", "samples", "loading single samples"),
    ("implementation", "copy", "only copying as many bytes"),
    ("implementation", "foreach", "the foreach step"),
    ("implementation", "fused", "the fused step"),
    ("implementation", "loop", "the loop"),
    ("mode", "grad", "recording for backward"),
    ("mode", "inference", "inference_mode"),
    ("mode", "no-grad", "no_grad"),
    ("pinning", "off", "pin_memory=False"),
    ("pinning", "on", "pin_memory=True"),
    ("policy", "every-10", "empty_cache at every tenth step"),
    ("policy", "every-16", "checkpointing every 16 blocks"),
    ("policy", "every-4", "checkpointing every 4 blocks"),
    ("policy", "every-block", "checkpointing every block"),
    ("policy", "every-step", "empty_cache at every step"),
    ("policy", "never", "never calling empty_cache"),
    ("policy", "none", "no checkpointing"),
    ("policy", "sqrt", "checkpointing sqrt(n) segments"),
    ("precision", "amp-bf16", "bf16 autocast"),
    ("precision", "amp-fp16", "fp16 autocast"),
    ("reader", "as-saved", "the model alone"),
    ("reader", "load", "torch.load"),
    ("reader", "load-mmap", "torch.load(mmap=True)"),
    ("reader", "load-unrestricted", "torch.load(weights_only=False)"),
    ("reader", "mapped", "a mapped file, copied by tensor"),
    ("reader", "ot", "VarStore::load of .ot"),
    ("reader", "pickle", "VarStore::load of .pt"),
    ("reader", "safetensors", "VarStore::load of .safetensors"),
    ("reader", "views", "views of a mapped file"),
    ("recipe", "add", "losses as they are"),
    ("recipe", "divide", "losses divided by k"),
    ("recipe", "full", "full batch"),
    ("recipe", "weight", "losses weighted by targets"),
    ("rest", "frozen", "freezing the backbone"),
    ("rest", "frozen-no-grad", "freezing the backbone under no_grad"),
    ("rest", "left-out", "leaving the backbone out of the optimizer"),
    ("rest", "trained", "training everything"),
    ("setup", "accumulate", "accumulation"),
    ("setup", "accumulate-checkpoint", "accumulation + checkpointing"),
    ("setup", "all", "accumulation + checkpointing + fp16"),
    ("setup", "fp16", "fp16 autocast"),
    ("setup", "plain", "the plain step"),
    ("tool", "history", "the allocator's history"),
    ("tool", "none", "no tool"),
    ("tool", "profiler-full", "torch.profiler with every option"),
    ("tool", "profiler-memory", "torch.profiler with profile_memory"),
    ("tool", "profiler-shapes", "torch.profiler with record_shapes"),
    ("tool", "recipe", "guide 3's recipe"),
    ("tool", "statistics", "reading memory_stats"),
    ("tool", "timeline", "the allocation recorder"),
    ("with", "accumulate", "accumulation"),
    ("with", "amp", "autocast"),
    ("with", "checkpoint", "checkpointing"),
];

/// How a figure of a metric is best written: its unit, or that it is a share or a ratio.
pub fn unit<'a>(metric: &str, recorded: &'a str) -> &'a str {
    match recorded {
        "1" if SHARES.contains(&metric) => "%",
        "1" if RATIOS.contains(&metric) => "x",
        unit => unit,
    }
}

/// Levels that no one can choose: what limits the others.
pub fn is_a_limit(factor: &str, level: &str) -> bool {
    (factor, level) == ("implementation", "copy")
}

/// A level as a title names it: `bf16 autocast`, `checkpointing + accumulation`, `k = 4`, and otherwise its own name.
pub fn doing(factor: &str, level: &str) -> String {
    let named = |level: &str| DOINGS.iter().find(|(f, l, _)| (*f, *l) == (factor, level)).map(|(.., name)| *name);
    match (named(level), level.parse::<f64>()) {
        (Some(name), _) => name.to_string(),
        (None, Ok(_)) => format!("{factor} = {level}"),
        (None, Err(_)) => level.split('+').map(|part| named(part).unwrap_or(part)).collect::<Vec<_>>().join(" + "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_name_what_one_does() {
        let said = [("precision", "amp-bf16"), ("with", "amp+checkpoint"), ("k", "4"), ("by", "vramlab"), ("workers", "2x")];
        let titles = ["bf16 autocast", "autocast + checkpointing", "k = 4", "vramlab", "2x"];
        assert_eq!(said.map(|(factor, level)| doing(factor, level)), titles);
    }
}
