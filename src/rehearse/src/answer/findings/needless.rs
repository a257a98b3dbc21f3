//! Forward passes that keep what nothing goes back through.

use super::{Finding, FindingKind};
use crate::answer::NeedlessGraphs;
use crate::words::bytes;

pub fn find(found: Option<&NeedlessGraphs>) -> Option<Finding> {
    let found = found?;
    let remedy = "In `with torch.inference_mode():`, or torch.no_grad(), they keep none.";
    let finding = Finding::new(FindingKind::NeedlessGraphs, title(found), [remedy.to_string()])?;
    Some(finding.of(found.bytes_at_peak, found.line.as_ref()))
}

fn title(found: &NeedlessGraphs) -> String {
    let (which, keeps) = match (found.passes, found.of) {
        (1, 1) => ("The forward pass".to_string(), "keeps"),
        (some, all) if some == all => (format!("All {all} forward passes"), "keep"),
        (some, all) => (format!("{some} of {all} forward passes"), if some == 1 { "keeps" } else { "keep" }),
    };
    let held = match found.bytes_at_peak {
        0 => String::new(),
        held => format!(" At the peak that is {}.", bytes(held)),
    };
    format!("{which} {keeps} activations for a backward pass, and none follows.{held}")
}
