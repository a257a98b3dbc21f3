//! Lines and modules of a script, and the bytes of blocks that are theirs.

use crate::capture::process::Trace;
use serde::Serialize;
use sim::trace::MemoryBlock;

/// Bytes of blocks that live at the peak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct LiveBytes {
    pub name: String,
    pub bytes: i64,
    pub blocks: usize,
    /// Of a line: what is written there, by which a later version of the file knows it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// What a script does after a step, before the next one's forward pass: it loads a batch, or copies its weights.
pub const BEFORE_FORWARD: &str = "before forward";

/// When something was, in words.
pub fn moment(phase: &str, step: u32, pass: i64) -> String {
    match (phase, step) {
        ("load", _) => "while loading".to_string(),
        (BEFORE_FORWARD, 0) => "after the last step".to_string(),
        (BEFORE_FORWARD, step) => format!("before the forward pass of step {step}"),
        ("optimizer", step) => format!("in the optimizer's step {step}"),
        ("evaluation" | "generation", 0) => format!("in {phase}, at forward pass {pass}"),
        ("evaluation" | "generation", step) => format!("in {phase} after step {step}"),
        ("inference", _) => format!("in inference, at forward pass {pass}"),
        (_, 0) if pass == 0 => "after the last step".to_string(),
        (_, 0) => format!("at {phase} pass {pass}"),
        (phase, step) => format!("in the {phase} pass of step {step}"),
    }
}

/// How many modules are listed, and how many lines on a page.
pub const MOST_ROWS: usize = 12;

/// The module that a block belongs to: that of its parameter, else the one at work when it was made.
pub fn module_of(trace: &Trace, block: &MemoryBlock) -> Option<String> {
    match trace.tensors.get(&block.tensor) {
        Some(tensor) => Some(tensor.rsplit_once('.').map_or(tensor.as_str(), |(module, _)| module).to_string()),
        None => trace.modules.get(&trace.events[block.made()].module).cloned(),
    }
}

/// A module's path with a star for each number: the same place in each of the repeated blocks.
pub fn alike(module: &str) -> String {
    let part = |part: &str| if part.bytes().all(|b| b.is_ascii_digit()) { "*".to_string() } else { part.to_string() };
    module.split('.').map(part).collect::<Vec<String>>().join(".")
}
