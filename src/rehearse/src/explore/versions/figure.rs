//! What versions are compared by.

use crate::check::Earlier;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// A figure of an answer; bytes, but of a step's time nanoseconds, and tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Of a server's KV cache; of all others more is worse.
    Tokens,
    Allocated,
    Reserved,
    Needs,
    Step,
}

/// A figure that differs from the row before.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Changed {
    pub figure: Figure,
    /// By which part of it; 0.05 is 5 % more.
    pub change: f64,
}

impl Changed {
    pub(super) fn said(&self) -> String {
        format!("{} {:+.1} %", self.figure, self.change * 100.0)
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Figure::Tokens => "tokens",
            Figure::Allocated => "allocated",
            Figure::Reserved => "reserved",
            Figure::Needs => "needs",
            Figure::Step => "step",
        })
    }
}

impl FromStr for Figure {
    type Err = String;

    fn from_str(text: &str) -> Result<Figure, String> {
        let known = Figure::ALL.map(|figure| figure.to_string());
        Figure::ALL.into_iter().find(|f| f.to_string() == text).ok_or(format!("'{text}' is none of {}", known.join(", ")))
    }
}

impl Figure {
    pub const ALL: [Figure; 5] = [Figure::Tokens, Figure::Allocated, Figure::Reserved, Figure::Needs, Figure::Step];
    /// Those that have a tolerance.
    pub const LIMITED: [Figure; 4] = [Figure::Allocated, Figure::Reserved, Figure::Needs, Figure::Step];

    pub fn of(self, answer: &Earlier) -> Option<i64> {
        match self {
            Figure::Tokens => answer.serves.as_ref()?.tokens,
            Figure::Allocated => Some(answer.peak_allocated),
            Figure::Reserved => Some(answer.peak_reserved),
            Figure::Needs => answer.needs_at_least,
            Figure::Step => answer.step_seconds().map(|seconds| (seconds * 1e9).round() as i64),
        }
    }

    /// By which part it differs; none where one of them does not say it.
    pub fn change(self, before: &Earlier, after: &Earlier) -> Option<Changed> {
        let (before, after) = (self.of(before).filter(|before| *before > 0)?, self.of(after)?);
        Some(Changed { figure: self, change: after as f64 / before as f64 - 1.0 })
    }

    pub fn show(self, value: i64) -> String {
        match self {
            Figure::Step => format!("{:.1} ms a step", value as f64 / 1e6),
            Figure::Tokens => format!("{value} tokens of KV cache"),
            Figure::Needs => format!("{value} B needed"),
            figure => format!("{value} B {figure}"),
        }
    }
}
