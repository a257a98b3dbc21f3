//! Words that text and pages share.

use crate::answer::Line;
use crate::capture::plain::on_one_line;
use base::units::Bytes;
use std::fmt::Write;
use std::path::Path;

pub fn bytes(value: i64) -> String {
    Bytes(value.unsigned_abs()).to_string()
}

/// `file:line (function)`; see [`short`].
pub fn place_of(line: &Line) -> String {
    match line.line {
        0 => format!("{} ({})", short(&line.file), line.function),
        number => format!("{}:{number} ({})", short(&line.file), line.function),
    }
}

/// A file from the working directory where it is below it, and one of an installed package from there.
pub fn short(file: &str) -> String {
    if let Some((_, package)) = file.split_once("/site-packages/") {
        return on_one_line(package);
    }
    let here = std::env::current_dir().unwrap_or_default();
    on_one_line(&Path::new(file).strip_prefix(&here).map_or_else(|_| file.to_string(), |path| path.display().to_string()))
}

/// Per cent of a total, whole ones.
pub fn share_of(part: i64, total: i64) -> String {
    match part as f64 / total.max(1) as f64 * 100.0 {
        share if share < 0.5 => "<1 %".to_string(),
        share => format!("{share:.0} %"),
    }
}

/// As [`place_of`], where a line is known.
pub fn place_or_not(line: Option<&Line>) -> String {
    line.map_or("somewhere".to_string(), place_of)
}

/// A figure of the answer's first table.
pub fn row(text: &mut String, name: &str, value: i64, what: &str) -> std::fmt::Result {
    writeln!(text, "  {name:<14} {:>10}  {value:>13} B  {what}", bytes(value))
}
