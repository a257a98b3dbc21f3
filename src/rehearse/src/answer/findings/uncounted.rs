//! Memory of libraries that only a GPU tells.

use super::placeholders::Uncounted;
use super::{Finding, FindingKind};
use crate::words::place_or_not;

pub fn find(uncounted: &[Uncounted]) -> Option<Finding> {
    let library = |row: &Uncounted| format!("{} ({}) at {}", row.operator, row.library, place_or_not(row.line.as_ref()));
    let title = "Not counted: memory that these take inside a library, which only a GPU can tell:";
    Finding::new(FindingKind::Uncounted, title, uncounted.iter().map(library))
}
