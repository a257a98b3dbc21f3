//! What `torch.cuda.memory._dump_snapshot` left of a real GPU: what filled it, and what its allocations would need with other settings of
//! PyTorch's allocator or of another card, which that allocator is asked by a replay.

use super::replay;
use crate::answer::technique::techniques;
use crate::answer::{Answer, answer};
use crate::capture::session::Capture;
use crate::run::executor::{LARGE, Rehearsal};
use crate::run::session::Session;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use sim::cards::Card;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::Command;

/// What was found beside the trace of a card.
#[derive(Debug, Clone, Deserialize)]
pub struct OfCard {
    pub device: u16,
    pub events: usize,
    /// Bytes that were there before the history began.
    pub before: i64,
    pub failed: Vec<FailedRequest>,
}

/// Memory that was asked for and was not there, in bytes.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct FailedRequest {
    pub bytes: i64,
    pub free: i64,
}

/// What a snapshot says, and what it would need.
pub struct SnapshotAnswer {
    pub answer: Answer,
    pub capture: Capture,
    cards: Vec<OfCard>,
    /// With each setting of the allocator the least memory that would do, the CUDA context of the card included; or why that is not known.
    pub(crate) needs: Vec<(String, Result<i64, String>)>,
    _session: Session,
}

/// Whether a file is a pickle, as a snapshot is, and no capture.
pub fn is_snapshot(path: &Path) -> bool {
    let mut first = [0];
    File::open(path).is_ok_and(|mut file| file.read_exact(&mut first).is_ok() && first == [0x80])
}

impl SnapshotAnswer {
    /// Reads a snapshot, and asks the PyTorch of a Python what it would need; of a card with memory for anything where none is given.
    ///
    /// # Errors
    /// It is no snapshot, or has no history; with what to do.
    pub fn open(path: &Path, card: Option<Card>, python: &str) -> Result<SnapshotAnswer> {
        let judged = card.unwrap_or_else(|| Card::of_size(LARGE));
        let rehearsal = Rehearsal::new(vec![python.into()], judged)?;
        let session = Session::new()?;
        let read = Command::new(python)
            .args(["-I", "-S"])
            .arg(rehearsal.libraries.folder.join("python/vramlab_rehearsal/snapshots.py"))
            .args([path, &session.path().join("1-0")])
            .output()
            .with_context(|| format!("starting '{python}', which reads it; --python names another"))?;
        if !read.status.success() {
            let why = String::from_utf8_lossy(&read.stderr);
            bail!("reading {}: {}", path.display(), why.trim().lines().last().unwrap_or("it is no snapshot"));
        }
        let cards: Vec<OfCard> = serde_json::from_slice(&read.stdout).context("reading what was found in the snapshot")?;
        let capture = Capture::new(vec![path.display().to_string()], judged, session.path());
        let mut capture = Capture { gpus: cards.len() as u32, hooked: true, ..capture }.of_session()?;
        let mut answer = answer(&capture)?;
        ensure!(answer.peak_reserved > 0, "{} has no memory of a GPU in its history", path.display());
        capture.found.lines = answer.lines();
        answer.add(&capture.found, &judged);
        let recorded = capture.traces[0].process.alloc_conf.take();
        capture.traces[0].process.executable = python.to_string();
        let mut needs = Vec::new();
        for (name, setting) in settings(recorded.as_deref()) {
            capture.traces[0].process.alloc_conf = setting;
            let found = replay::needed(&rehearsal, &answer.processes, &capture.traces, &[]);
            if let (Ok(found), true) = (&found, needs.is_empty() && card.is_some()) {
                answer.hold_to(*found, &judged, &judged);
            }
            needs.push((name, found.map(|found| found.least).map_err(|error| format!("{error:#}"))));
        }
        capture.traces[0].process.alloc_conf = recorded;
        Ok(SnapshotAnswer { answer, capture, cards, needs, _session: session })
    }

    /// What was found beside the trace of the card that has most.
    pub fn about(&self) -> Option<&OfCard> {
        let worst = self.answer.processes.first()?;
        self.cards.iter().find(|card| card.device == worst.device)
    }
}

/// What the allocator was set to, and what it can be set to.
fn settings(recorded: Option<&str>) -> Vec<(String, Option<String>)> {
    let as_it_was = (format!("as recorded ({})", recorded.unwrap_or("no settings")), recorded.map(str::to_string));
    let others =
        techniques().iter().filter_map(|of| of.setting.as_deref()).filter(|value| !recorded.is_some_and(|set| set.contains(value)));
    [as_it_was].into_iter().chain(others.map(|value| (value.to_string(), Some(value.to_string())))).collect()
}
