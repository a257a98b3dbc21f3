//! Batches of several sizes.

use super::{Finding, FindingKind};
use crate::capture::plain::on_one_line;
use crate::capture::process::PlaceholderBranch;

pub fn find(varied: &[PlaceholderBranch], has_loader: bool) -> Option<Finding> {
    let longest = if has_loader { " (--longest rehearses the DataLoader's largest)" } else { "" };
    let title = format!("Batches differ in size from step to step; a larger one would need more{longest}:");
    Finding::new(FindingKind::Varied, title, varied.iter().map(varied_of))
}

/// `input_ids of GPT: 8 x 312 to 8 x 512, the most in step 2`
fn varied_of(row: &PlaceholderBranch) -> String {
    let sizes = |sizes: &[i64]| sizes.iter().map(i64::to_string).collect::<Vec<String>>().join(" x ");
    let (input, module) = (on_one_line(&row.input), on_one_line(&row.module));
    format!("{input} of {module}: {} to {}, the most in step {}", sizes(&row.least), sizes(&row.most), row.step)
}
