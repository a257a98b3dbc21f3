//! What a command under rehearsal left: how it ended, and the folders of its processes.

use super::occupancy::Occupancy;
use super::process::Trace;
use anyhow::{Context, Result};
use sim::cards::Card;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

/// In the session's folder: why a process could not be rehearsed.
pub const FAILED: &str = "failed";

/// What a command under rehearsal left.
#[derive(Debug)]
pub struct SessionRun {
    /// As it ran, and on what.
    pub command: Vec<OsString>,
    pub card: Card,
    pub gpus: u32,
    pub lag: u32,
    pub host_factor: f64,
    pub timeout: Option<f64>,
    /// Where it was written.
    pub folder: PathBuf,
    pub status: ExitStatus,
    pub timed_out: bool,
    pub interrupted: bool,
    pub traces: Vec<Trace>,
    pub occupancy: Occupancy,
    /// Whether a Python came up that had the hook, and one that found no torch.
    pub hooked: bool,
    pub without_torch: Option<String>,
    /// Why a process could not be rehearsed, which was ended before it did anything.
    pub not_set_up: Option<String>,
    /// The last line that a silent run wrote to its standard error.
    pub last_line_of_stderr: String,
}

impl SessionRun {
    /// Adds what processes wrote into the folder.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(mut self) -> Result<SessionRun> {
        let session = &self.folder;
        self.occupancy = Occupancy::of_session(session);
        self.not_set_up = fs::read_to_string(session.join(FAILED)).ok();
        for entry in fs::read_dir(session).with_context(|| format!("reading {}; did the script remove it?", session.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                if path.file_name() != Some(OsStr::new("bin")) {
                    self.traces.push(Trace::read(&path)?);
                }
                continue;
            }
            match path.extension().and_then(OsStr::to_str) {
                Some("without-torch") => self.without_torch = fs::read_to_string(&path).ok(),
                Some("python") => self.hooked = true,
                _ => {}
            }
        }
        // A folder's order is nobody's.
        self.traces.sort_by_key(|trace| (trace.process.rank, trace.process.id));
        Ok(self)
    }

    /// How the command ended, and what it said to that where nobody saw it.
    pub fn end(&self) -> String {
        let end = match (self.status.signal(), self.status.code()) {
            (Some(signal), _) => format!("it was ended by signal {signal}"),
            (None, code) => format!("it ended with status {}", code.unwrap_or_default()),
        };
        if self.last_line_of_stderr.is_empty() { end } else { format!("{end}: {}", self.last_line_of_stderr) }
    }
}

/// What helps where a file in the cache cannot be written.
pub fn remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::FileTooLarge => "allow larger files (ulimit -f)",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room there, or set VRAMLAB_CACHE to a folder on another disk",
        _ => "set VRAMLAB_CACHE to a folder that can be written to",
    }
}
