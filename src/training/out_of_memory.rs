//! Memory that runs out in a training step.

use crate::torch::{Phase, is_out_of_memory};
use serde::{Deserialize, Serialize};

/// Where memory ran out, and PyTorch's message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutOfMemory {
    /// Counts from 1; 0 while loading.
    pub iteration: u32,
    pub phase: Phase,
    pub message: String,
}

impl OutOfMemory {
    /// Reads an error of a phase of a training step; none where it is another error.
    pub fn of(error: &anyhow::Error, (iteration, phase): (u32, Phase)) -> Option<OutOfMemory> {
        let message = format!("{error:#}");
        if !is_out_of_memory(&message) {
            return None;
        }
        // libtorch appends a C++ stack of a hundred lines.
        let message = message.split("Exception raised from").next().unwrap_or_default().trim();
        let message = message.strip_prefix("Internal torch error: ").unwrap_or(message).to_string();
        Some(OutOfMemory { iteration, phase, message })
    }

    /// `loading`, or `backward of iteration 1`.
    pub fn place(&self) -> String {
        match self.phase {
            Phase::Load => "loading".to_string(),
            phase => format!("{phase} of iteration {}", self.iteration),
        }
    }
}
