//! PyTorch's and statistics' own words, also for results that were recorded with others: labels of metrics by the metric's name, phrases
//! by what they say.

/// Metrics whose label, recorded or not, is this one.
const LABELS: &[(&str, &str)] = &[
    ("step_peak", "transient peak"),
    ("of_better", "peak relative to the best single technique"),
    ("refused", "allocations failing"),
    ("memory_told", "bytes attributed to operators"),
    ("time_told", "step time attributed to operators"),
    ("gap_ratio", "gap between epochs, persistent_workers on / off"),
    ("gap_share", "gap between epochs with new workers, of the epoch"),
    ("process_peak", "peak resident memory during the load, relative to the model"),
    ("process_held", "resident memory with the state held, relative to the model"),
    ("process_dropped", "resident memory after del, relative to the model"),
    ("process_trimmed", "resident memory after del and malloc_trim, relative to the model"),
    ("load_peak", "peak during the load, relative to the model"),
    ("held", "memory with the state held, relative to the model"),
    ("dropped", "memory with the state dropped, relative to the model"),
    ("landed", "share of the state on the device"),
    ("device_returned", "free by cudaMemGetInfo, relative to the tensor"),
    ("freed", "allocated memory returned, relative to the tensor"),
    ("unreserved", "reserved memory returned, relative to the tensor"),
    ("extra", "extra memory, relative to the gradients"),
    ("saved", "peak saved, relative to the gradients"),
    ("kept", "memory after forward, relative to input and output"),
    ("allocated_of_device", "max_memory_allocated, relative to the device's use"),
    ("reserved_of_device", "max_memory_reserved, relative to the device's use"),
    ("predicted", "predicted peak"),
    ("predicted_error", "error of the prediction"),
    ("predicted_signed", "signed error of the prediction"),
    ("state_ratio", "optimizer state, relative to the model"),
    ("temporary_ratio", "temporaries of the optimizer's step, relative to the model"),
    ("formula", "formula's peak"),
    ("formula_error", "error of the formula"),
    ("formula_signed", "signed error of the formula"),
    ("rate_low", "divergence rate, 95 % CI from"),
    ("rate_high", "divergence rate, 95 % CI to"),
];

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

const PHRASES: &[(&str, &str)] = &[
    ("what a step needs above rest", "the transient peak"),
    ("What a step needs above rest", "Transient peak (peak minus persistent memory)"),
    ("What a forward pass needs above rest", "Transient peak of a forward pass"),
    ("above rest", "above persistent memory"),
    ("and expect little of it ({effect})", "and expect less than a whole copy of the gradients from it ({effect})"),
    ("over all cells", "over all configurations"),
    ("where kernels fill the time", "where a step is compute-bound"),
    ("where launching operations fills the time", "where a step is overhead-bound"),
    (
        "the lab calls two levels that are the same different in at most 5 % of comparisons",
        "at most 5 % of A/A comparisons are false positives",
    ),
    ("alse alarm", "alse positive"),
    ("pretended GPU", "simulated GPU"),
    ("pretended card", "simulated GPU"),
    ("pretended", "simulated"),
    ("dry device", "simulated GPU"),
    ("a straight line's slope is the growth exponent", "a straight line's slope is the exponent of growth"),
    ("shown and not judged", "informational"),
    ("shown, not judged", "informational"),
    ("PyTorch's twin", "the PyTorch reference"),
    ("Python twin", "PyTorch reference"),
    ("he twin", "he PyTorch reference"),
    ("a twin", "a PyTorch reference"),
    ("(000)", "(guide 1)"),
    ("(001)", "(guide 2)"),
    ("(002)", "(guide 3)"),
    ("(003)", "(guide 4)"),
    ("(004)", "(guide 5)"),
    ("uide 000", "uide 1"),
    ("uide 001", "uide 2"),
    ("uide 002", "uide 3"),
    ("uide 003", "uide 4"),
    ("uide 004", "uide 5"),
    ("Guides 000, 001 and 002", "Guides 1, 2 and 3"),
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

/// A metric's label.
pub fn label<'a>(metric: &str, recorded: &'a str) -> &'a str {
    LABELS.iter().find(|(name, _)| *name == metric).map_or(recorded, |(_, label)| label)
}

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

/// A text in today's words.
pub fn text(recorded: &str) -> String {
    PHRASES.iter().fold(recorded.to_string(), |text, (old, new)| if text.contains(old) { text.replace(old, new) } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_phrase_brings_an_older_one_back() {
        for (_, new) in PHRASES {
            assert_eq!(text(new), *new);
        }
    }

    #[test]
    fn titles_name_what_one_does() {
        let said = [("precision", "amp-bf16"), ("with", "amp+checkpoint"), ("k", "4"), ("by", "vramlab"), ("workers", "2x")];
        let titles = ["bf16 autocast", "autocast + checkpointing", "k = 4", "vramlab", "2x"];
        assert_eq!(said.map(|(factor, level)| doing(factor, level)), titles);
    }
}
