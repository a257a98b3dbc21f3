//! What fills a GPU's memory, and what is tried against it: for the answer of a rehearsal as for the report.

/// One kind of what fills memory.
#[derive(Debug)]
pub struct Remedy {
    pub fills: &'static str,
    /// Names of `--what-if`; the answer of a rehearsal has the first of them.
    pub techniques: &'static [&'static str],
}

pub const ACTIVATIONS: Remedy = Remedy {
    fills: "activations",
    techniques: &[
        "accumulate-2x",
        "checkpoint-selective",
        "checkpoint-every",
        "offload-activations",
        "autocast-bf16",
        "accumulate-4x",
        "checkpoint-sqrt",
        "compile",
        "memory-budget",
        "in-place",
        "channels-last",
    ],
};
pub const LOGITS: Remedy = Remedy { fills: "logits and loss", techniques: &["fused-linear-loss", "chunked-loss"] };
pub const STATE: Remedy = Remedy {
    fills: "optimizer state and gradients",
    techniques: &[
        "optimizer-in-backward",
        "8-bit-torchao",
        "offload-optimizer",
        "lora",
        "bf16-weights",
        "8-bit-bitsandbytes",
        "factored",
        "muon",
        "qlora",
    ],
};
pub const FRAGMENTATION: Remedy = Remedy { fills: "fragmentation", techniques: &["expandable-segments"] };

pub const REMEDIES: [Remedy; 4] = [ACTIVATIONS, LOGITS, STATE, FRAGMENTATION];

/// Those after which something else is trained, or other numbers are kept.
pub const TRAIN_OTHERWISE: [&str; 7] = ["8-bit-torchao", "8-bit-bitsandbytes", "factored", "muon", "lora", "qlora", "bf16-weights"];
