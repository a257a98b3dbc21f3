//! What processes say of themselves beside their events.

use super::plain::on_one_line;
use serde::{Deserialize, Serialize};

/// What became of a technique that was switched on from outside.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TechniqueOutcome {
    pub technique: String,
    pub applied: bool,
    /// What it changes in the result; empty where nothing.
    #[serde(default)]
    pub change: String,
    /// The lines that do the same in the script.
    #[serde(default)]
    pub snippet: String,
    /// Why it was not applied.
    #[serde(default)]
    pub reason: String,
}

/// Of [`SkippedCode`], where a script that came to its end went backward nowhere, and would have.
pub const BACKWARD_PASS: &str = "backward pass";

/// What a script has and did not come to before it was stopped: evaluation, generation or saving.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
pub struct SkippedCode {
    #[serde(rename = "unreached")]
    pub phase: String,
    /// How that is known: a call, a setting, a loader that nobody read.
    pub what: String,
    /// Of the call; empty and 0 where it is none.
    pub file: String,
    pub line: u32,
}

/// A variable of the script that holds tensors of several steps, or held a block when that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
pub struct Retainer {
    #[serde(rename = "keeps")]
    pub name: String,
    /// The type of a container, `sum` of what was added, `graph` of what is fed back, `create_graph` of gradients with graphs of their own, or `retain_graph` of a backward pass before a step; empty where a block is all that is known.
    pub holder: String,
    /// How many tensors it holds at least, of a sum or a graph the passes.
    pub count: u32,
    /// Whether it holds what backward passes would need, of which its own tensors are the least.
    pub with_graphs: bool,
    /// Whether its tensors are single numbers, as losses are.
    #[serde(default)]
    pub numbers: bool,
    pub file: String,
    pub function: String,
}

impl Retainer {
    /// Whether it is no variable, but a backward pass before a step that was told to keep its graph.
    pub fn retains_graphs(&self) -> bool {
        self.holder == "retain_graph"
    }

    /// The script's name of a block.
    pub(super) fn variable(name: &str, file: String, function: &str) -> Self {
        Retainer {
            name: on_one_line(name),
            holder: String::new(),
            count: 0,
            with_graphs: false,
            numbers: false,
            file,
            function: on_one_line(function),
        }
    }
}

/// What a note is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoteKind {
    /// What was otherwise here than in a real run: left out, replaced, or taken for granted.
    #[default]
    Assumed,
    /// How the command, a process or a server ended.
    Ended,
    /// That the host's memory ran out.
    HostRanOut,
    /// The largest batch that the data set has was given to a step.
    Longest,
    /// What could not be found out.
    Unknown,
}

/// What a reader must know of the figures.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize, Serialize, schemars::JsonSchema)]
pub struct Note {
    #[serde(rename = "about", default)]
    pub kind: NoteKind,
    #[serde(rename = "note")]
    pub text: String,
}

impl Note {
    pub fn new(kind: NoteKind, text: impl Into<String>) -> Self {
        Note { kind, text: text.into() }
    }
}

/// Sizes of an input of the outermost module, where they were not the same at each forward pass.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
pub struct PlaceholderBranch {
    #[serde(rename = "varied")]
    pub input: String,
    pub module: String,
    pub least: Vec<i64>,
    pub most: Vec<i64>,
    /// Of the most.
    pub step: u32,
}

/// Bytes of a card, and what has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Fill {
    pub what: String,
    pub bytes: i64,
}

/// What an engine that serves says of its KV cache, by its own objects.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Engine {
    /// With its version.
    pub name: String,
    /// Bytes that were made for keys and values, 0 where none were; in tokens, blocks, and requests of the longest length.
    pub kv_cache: i64,
    pub tokens: u64,
    pub blocks: u64,
    pub concurrency: f64,
    /// Bytes without which it does not start: those of one such request; and what there was for them.
    pub least_kv_cache: i64,
    pub available: i64,
    /// Bytes of the card that were in use when it began: its share has to be free beside them.
    pub before: i64,
    /// Bytes that it would have more for them at a start that finds its graphs compiled.
    pub saved_later: i64,
    /// What it takes off its share of the card before them, by its own measures.
    pub beside: Vec<Fill>,
    /// Of one that ended for want of them the longest length with which it would start, 0 where none.
    pub longest: Option<u64>,
    /// Whether they are as large as a share of the card leaves.
    pub is_sized: bool,
    /// Whether what it leaves of a card hangs on which that is.
    pub is_by_card: bool,
    pub share: f64,
    pub share_flag: String,
    pub length: u64,
    pub length_flag: String,
    /// Bytes of a card from which on its own defaults, such as tokens of a pass, are others; 0 where they are the same on each.
    pub others_from: u64,
    /// Tokens of a forward pass, for which activations are.
    pub batched: u64,
    pub batched_flag: String,
    /// Whether each request that has ended had as many tokens as it may.
    pub is_full: bool,
    /// Flags with which a token takes half.
    pub halves: Vec<String>,
}

/// What a group of ranks has moved on the GPU so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Communicator {
    #[serde(rename = "communicator")]
    pub ranks: u32,
    /// 0 of a rehearsal that was kept before there were numbers: it has a line for each group, and nothing else.
    #[serde(default)]
    pub group: u64,
    /// Machines that they are on.
    #[serde(default)]
    pub nodes: u32,
    /// Other ranks that this one has sent something, or received it from.
    #[serde(default)]
    pub pairs: u32,
    /// Kinds of collectives, `pairs` where it was none.
    #[serde(default)]
    pub ways: Vec<String>,
    /// Its ranks in the job, where some send to single others.
    #[serde(default)]
    pub members: Vec<u32>,
}

/// A real GPU.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RealGpu {
    #[serde(rename = "gpu")]
    pub name: String,
    pub memory: i64,
    /// What had been taken of it before the allocator had anything: contexts, and what other programs have.
    pub taken: i64,
}

/// What PyTorch's own meters and a clock said of a script on a real GPU.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Meters {
    pub peak_allocated: i64,
    pub peak_reserved: i64,
    /// Median of a step's after the first; where there is none, of the time from forward pass to forward pass.
    pub seconds: Option<f64>,
    /// Whether it made an optimizer step.
    pub trains: bool,
}
