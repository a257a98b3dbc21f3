//! Code of the script that was not reached.

use super::{Finding, FindingKind};
use crate::capture::plain::on_one_line;
use crate::capture::process::SkippedCode;
use crate::words::short;

pub fn find(unreached: &[SkippedCode], steps: u32) -> Option<Finding> {
    let title = match steps {
        0 => "Not reached, so in no figure here, because of values that the script read or of its flags:".to_string(),
        steps => format!(
            "Not reached in {steps} steps, so in no figure here; have the script come to it within these, or run it to its end (--steps all):"
        ),
    };
    Finding::new(FindingKind::Unreached, title, unreached.iter().map(unreached_at))
}

fn unreached_at(row: &SkippedCode) -> String {
    let what = on_one_line(&row.what);
    match row.line {
        0 => format!("{:<11} {what}", row.phase),
        line => format!("{:<11} {}:{line}  {what}", row.phase, short(&row.file)),
    }
}
