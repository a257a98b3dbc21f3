//! Gradients of parameters that no optimizer takes.

use super::{Finding, FindingKind};
use crate::words::bytes;

pub fn find(held: Option<i64>) -> Option<Finding> {
    let held = held?;
    let title =
        format!("The backward pass makes gradients of parameters, {} at the peak, and no optimizer takes them:", bytes(held));
    let remedy = "where nothing else reads them either, model.requires_grad_(False) before the loop leaves them out";
    Some(Finding::new(FindingKind::GradientsWithoutSteps, title, [remedy.to_string()])?.of(held, None))
}
