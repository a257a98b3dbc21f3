//! The variables that hold what grows.

use super::growth::Growth;
use super::leftovers::WITHOUT_RETAINING;
use super::{Finding, FindingKind};
use crate::capture::plain::on_one_line;
use crate::capture::process::Retainer;
use crate::words::short;

pub fn find(growth: Option<&Growth>) -> Option<Finding> {
    Finding::new(FindingKind::KeptBy, "Kept by:", growth.iter().flat_map(|growth| growth.kept_by.iter().map(keeper_of)))
}

/// `losses, a list of 3 tensors or more (train.py, main)`
fn keeper_of(keeper: &Retainer) -> String {
    let [name, holder, function] = [&keeper.name, &keeper.holder, &keeper.function].map(|text| on_one_line(text));
    let what = match (&*holder, keeper.with_graphs) {
        ("", _) => "which grows".to_string(),
        ("create_graph", _) => {
            "which leaves gradients with their graphs: use torch.autograd.grad, or set .grad to None after use".to_string()
        }
        ("retain_graph", _) => format!("which keeps what a backward pass frees: {WITHOUT_RETAINING}"),
        ("sum", _) => format!("a sum with the graphs of {} passes or more", keeper.count),
        ("graph", _) => format!("whose graph goes back through {} passes or more", keeper.count),
        (_, true) => format!("a {holder} of {} tensors or more with their graphs", keeper.count),
        (_, false) => format!("a {holder} of {} tensors or more", keeper.count),
    };
    format!("{name}, {what} ({}, {function})", short(&keeper.file))
}
