//! Out-of-memory errors that the script caught.

use super::{Finding, FindingKind};
use crate::answer::Caught;
use crate::words::{bytes, place_or_not};

pub fn find(caught: &[Caught]) -> Option<Finding> {
    let title = "The script caught these out-of-memory errors and went on; no figure here counts what those tries held:";
    Finding::new(FindingKind::Caught, title, caught.iter().map(caught_at))
}

fn caught_at(row: &Caught) -> String {
    let times = if row.times > 1 { format!("{} times, at most:", row.times) } else { "once:".to_string() };
    let [tried, free, largest] = [row.tried, row.free, row.largest].map(bytes);
    format!("{} {times} asked for {tried} with {free} free ({largest} of tensors in all)", place_or_not(row.line.as_ref()))
}
