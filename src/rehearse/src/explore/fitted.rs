//! What a search for the largest number gives, of any command and of a server.

use super::template::FlagTemplate;
use crate::answer::time::Prediction;
use crate::run::executor::{Rehearsal, Variant};
use serde::Serialize;
use std::fmt;

/// No number larger than this is tried.
pub(super) const MOST: u64 = 1 << 24;

/// What is searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Dimension {
    /// Samples of a batch.
    Batch,
    /// Length of a sequence.
    Context,
    /// Cards that a server is split over.
    Cards,
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Dimension::Batch => "batch",
            Dimension::Context => "context",
            Dimension::Cards => "cards",
        })
    }
}

/// What fits a card.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Fit {
    pub gpu: String,
    pub of: Dimension,
    /// The largest that fits, of cards the fewest; 0 where not even 1 does, or no number of cards.
    pub largest: u64,
    /// The largest that fits by more than the CUDA context, which is assumed, and what only a GPU adds can be wrong by; the same where
    /// `largest` does. None where that could not be found.
    pub recommended: Option<u64>,
    /// From here on more makes no difference: the script's data end, or what it reads has a limit of its own.
    pub ends_at: Option<u64>,
    /// Bytes.
    pub peak_reserved: Option<i64>,
    pub headroom: Option<i64>,
    pub rehearsals: usize,
    /// In order.
    pub tried: Vec<TriedNumber>,
    /// In whole sentences, what these peaks say nothing of: values that nobody computed, growth, code that was not reached.
    pub limits: Vec<String>,
    /// Twice as much brings less than `GAIN` more throughput from here on; predicted, and between numbers that were tried interpolated. None
    /// where the throughput is not known, or still grows by more.
    pub enough: Option<u64>,
}

/// One rehearsal of a number.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct TriedNumber {
    pub number: u64,
    pub fits: bool,
    pub peak_reserved: Option<i64>,
    /// Predicted.
    pub time: Option<TriedTime>,
}

#[derive(Debug, Clone, Copy, Serialize, schemars::JsonSchema)]
pub struct TriedTime {
    pub step_seconds: f64,
    pub samples_per_second: Option<f64>,
    pub tokens_per_second: Option<f64>,
}

impl TriedTime {
    pub(super) fn of(time: &Prediction) -> TriedTime {
        let Prediction { step_seconds, samples_per_second, tokens_per_second, .. } = *time;
        TriedTime { step_seconds, samples_per_second, tokens_per_second }
    }

    /// Tokens of text, else samples.
    pub(super) fn rate(&self) -> Option<f64> {
        self.tokens_per_second.or(self.samples_per_second)
    }
}

pub(super) fn with_number(rehearsal: &Rehearsal, template: &FlagTemplate, number: u64) -> Rehearsal {
    let command = Some(template.with(&rehearsal.command, number));
    Rehearsal { variant: Variant { command, ..Variant::default() }, ..rehearsal.clone() }
}
