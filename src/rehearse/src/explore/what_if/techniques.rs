//! What can be tried: the names of techniques, and which of them are alternatives.

/// What `techniques.py` does, and the group of which a script takes one.
pub const TECHNIQUES: [(&str, &str); 30] = [
    ("autocast-bf16", "precision"),
    ("autocast-fp16", "precision"),
    ("fused", "update"),
    ("foreach", "update"),
    ("for-loop", "update"),
    ("factored", "update"),
    ("8-bit-torchao", "update"),
    ("8-bit-bitsandbytes", "update"),
    ("muon", "update"),
    ("optimizer-in-backward", "update"),
    ("zero-grad-to-none", "gradients"),
    ("checkpoint-every", "checkpointing"),
    ("checkpoint-second", "checkpointing"),
    ("checkpoint-sqrt", "checkpointing"),
    ("checkpoint-selective", "checkpointing"),
    ("chunked-loss", "loss"),
    ("fused-linear-loss", "loss"),
    ("sdpa", "attention"),
    ("offload-activations", OFFLOADING),
    ("offload-optimizer", STATE_OFFLOADING),
    ("lora", TRAINED),
    ("qlora", TRAINED),
    ("bf16-weights", WEIGHTS),
    ("compile", COMPILING),
    ("memory-budget", COMPILING),
    ("in-place", "in place"),
    ("channels-last", LAYOUT),
    ("zero1", CARDS),
    ("zero2", CARDS),
    ("fsdp2", CARDS),
];

/// The groups of what may compute parts of the forward pass again.
pub const AGAIN: [&str; 2] = ["checkpointing", "loss"];

/// The group of what has convolutions take other kernels, of which less is known.
pub const LAYOUT: &str = "layout";

/// The group of what takes more cards than one.
pub const CARDS: &str = "cards";

/// The groups of what goes over PCI Express: activations, and the optimizer's state.
pub const OFFLOADING: &str = "offloading";
pub const STATE_OFFLOADING: &str = "offloading of state";

/// The group of what trains something else than the script does: recommended last of all.
pub const TRAINED: &str = "what is trained";

/// The group of what keeps other numbers than the script does: never recommended before anything that does not.
pub const WEIGHTS: &str = "precision of weights";

/// The group of what compiles the model, and those that go with it: what the others change would be compiled with the model, and the hook's form of it
/// is not the one that its lines have.
pub const COMPILING: &str = "compiling";
pub const BESIDE_COMPILING: [&str; 7] =
    ["precision", "update", "gradients", OFFLOADING, STATE_OFFLOADING, "allocator", "accumulation"];

/// What `--only` takes.
pub fn only_help() -> String {
    let names: Vec<&str> = TECHNIQUES.iter().chain(&SETTINGS).map(|(name, _)| *name).collect();
    format!(
        "With --what-if: try only these techniques, each alone, separated by commas; with + between their names together. There are {}, and with \
        --accumulation accumulate-2x, accumulate-4x, accumulate-8x",
        names.join(", ")
    )
}

/// Settings of PyTorch's allocator.
pub const SETTINGS: [(&str, &str); 3] = [
    ("expandable-segments", "expandable_segments:True"),
    ("max-split-size", "max_split_size_mb:128"),
    ("round-up-power-of-2", "roundup_power2_divisions:8"),
];
/// Read by every version of PyTorch, 2.15 included; PYTORCH_ALLOC_CONF, the newer name, by newer ones alone.
pub const ALLOCATOR: &str = "PYTORCH_CUDA_ALLOC_CONF";
