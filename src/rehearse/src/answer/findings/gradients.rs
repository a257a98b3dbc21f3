//! Gradients of parameters that no optimizer takes.

use super::{Finding, FindingKind};
use crate::words::bytes;

pub fn find(held: Option<i64>) -> Option<Finding> {
    let held = held?;
    let title = format!("No optimizer takes parameters' gradients, {} at the peak:", bytes(held));
    let remedy = "if nothing reads them, model.requires_grad_(False) before the loop leaves them out";
    Some(Finding::new(FindingKind::GradientsWithoutSteps, title, [remedy.to_string()])?.of(held, None))
}
