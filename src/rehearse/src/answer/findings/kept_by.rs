//! The variables that hold what grows.

use super::growth::Growth;
use super::{Finding, FindingKind};
use crate::capture::plain::on_one_line;
use crate::capture::process::Retainer;
use crate::words::short;

pub fn find(growth: Option<&Growth>) -> Option<Finding> {
    Finding::new(FindingKind::KeptBy, "Kept by:", growth.iter().flat_map(|growth| growth.kept_by.iter().map(keeper_of)))
}

/// `losses, a list of 3 tensors (train.py, main)`
fn keeper_of(keeper: &Retainer) -> String {
    let [name, what, function] = [&keeper.name, &keeper.what, &keeper.function].map(|text| on_one_line(text));
    format!("{name}, {what} ({}, {function})", short(&keeper.file))
}
