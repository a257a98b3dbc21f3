//! What every crate says things with: units, statistics, printing for a reader who may be gone, pages that are one file, and what is tried where memory
//! runs out.

pub mod console;
pub mod inline;
pub mod order;
pub mod stats;
pub mod units;
