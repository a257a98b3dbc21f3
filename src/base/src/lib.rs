//! What every crate says things with: units, statistics, printing for a reader who may be gone, and pages that are one file.

pub mod console;
pub mod inline;
pub mod stats;
pub mod units;
