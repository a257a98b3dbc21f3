//! What an experiment's program tells the `run-all` that started it.

use anyhow::{Context, Result};
use record::judge::{Judgement, Verdict};
use record::protocol::Platform;
use record::results::replace_file;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// The one argument of an experiment that `run-all` started: what that wants to know, and what the person who waits should see.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunAllContext {
    /// File that the summary is written to.
    pub summary: PathBuf,
    /// Place of this run among all.
    pub share: Share,
    pub look: Stage,
}

/// What a turn of a run of all is for, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stage {
    /// What decides the guides' claims, and nothing else.
    Guided,
    /// Everything, with the rounds that every comparison gets: others wait for theirs.
    First,
    /// More rounds of what is undecided.
    Again,
}

/// What a run takes of the time for all, in seconds, and what comes before and after it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Share {
    pub before: f64,
    pub own: f64,
    pub after: f64,
}

/// What became of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunSummary {
    /// The experiment's folder.
    pub dir: PathBuf,
    /// Folders of results that the run might not add to and that are as they were.
    pub left: Vec<PathBuf>,
    /// Passes that this run measured.
    pub passes: usize,
    /// Passes that the budget left out.
    pub lacking: usize,
    /// Whether more rounds might decide a claim that the first ones did not.
    pub is_open: bool,
    /// Cells that failed, with the reason.
    pub failed: Vec<String>,
    pub judged: Vec<JudgedClaim>,
}

/// What a claim came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JudgedClaim {
    pub claim: String,
    pub text: String,
    pub verdict: Verdict,
    /// What the cells that were measured say, where not all were.
    pub so_far: Verdict,
    /// How many of the cells that the claim is about here were measured, of how many.
    pub measured: (usize, usize),
    /// How many parts of the claim this device can judge, of how many.
    pub parts: (usize, usize),
    /// Whether this device's figures may carry the verdict.
    pub counts: bool,
    /// Whether these are the figures of PyTorch in Python.
    pub in_python: bool,
}

impl JudgedClaim {
    pub fn of(judgement: &Judgement) -> JudgedClaim {
        JudgedClaim {
            claim: judgement.of.id.to_string(),
            text: judgement.of.text.to_string(),
            verdict: judgement.verdict,
            so_far: judgement.so_far,
            measured: judgement.measured(),
            parts: judgement.parts(),
            counts: judgement.carries,
            in_python: judgement.platform == Platform::Python,
        }
    }
}

impl fmt::Display for JudgedClaim {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mark = if self.counts || self.verdict == Verdict::NotMeasured { "" } else { " (informational on this device)" };
        let whose = if self.in_python { " (PyTorch in Python)" } else { "" };
        let parts = match self.parts {
            (judged, all) if judged < all && self.verdict != Verdict::NotMeasured => format!(" ({judged} of {all} parts)"),
            _ => String::new(),
        };
        let verdict = match self.verdict {
            Verdict::Incomplete => format!("{} of {} measured, so far {}", self.measured.0, self.measured.1, self.so_far),
            verdict => verdict.to_string(),
        };
        write!(f, "{:24} {verdict}{parts}{whose}{mark}: {}", self.claim, self.text)
    }
}

impl RunSummary {
    pub fn write(&self, file: &Path) -> Result<()> {
        replace_file(file, &serde_json::to_vec(self)?)
    }

    /// What a run left; none where it came to no end.
    pub fn read(file: &Path) -> Result<Option<RunSummary>> {
        let Ok(text) = std::fs::read(file) else { return Ok(None) };
        serde_json::from_slice(&text).with_context(|| format!("reading {}", file.display()))
    }
}
