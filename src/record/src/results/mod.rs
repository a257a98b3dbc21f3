//! Results on disk: the only reader and writer of their files.
//!
//! A results folder holds `run.json` (what was run, where, by which method) and `samples.csv` (raw samples, one row each). Rows
//! are appended and synced pass by pass; the row that closes a pass comes last, so a pass without it was cut short and is measured
//! again. Nothing that was complete is ever lost: files that are replaced are written aside, synced and renamed.

mod journal;
mod manifest;
mod place;
pub mod protocols;
mod rows;
mod run;
mod samples;
pub mod witnesses;

pub use journal::Journal;
pub use manifest::{Command, Identity, Manifest, SCHEMA, SHARD};
pub use place::{FolderNotWritten, Place, came, records};
pub use rows::{BUDGET_ENDED, PassRecord, Sample, Status, read_file, replace_file};
pub use run::{Run, folders, holds_results};
pub use samples::{ByRound, Samples};
