//! Figures and places in words.

use crate::capture::plain::on_one_line;
use crate::capture::process::Frame;
use base::units::Bytes;
use std::fmt::Write;
use std::path::Path;

/// What is written, as a text. Writing into one cannot fail.
pub fn written(write: impl FnOnce(&mut String) -> std::fmt::Result) -> String {
    let mut text = String::new();
    let _ = write(&mut text);
    text
}

pub fn bytes(value: i64) -> String {
    Bytes(value.unsigned_abs()).to_string()
}

/// With the sign of what is less than nothing.
pub fn signed(value: i64) -> String {
    format!("{}{}", if value < 0 { "-" } else { "" }, bytes(value))
}

/// As [`signed`], or a dash where there is no figure.
pub fn signed_or_dash(value: Option<i64>) -> String {
    value.map_or("-".to_string(), signed)
}

/// `file:line (function)`; see [`short`].
pub fn place_of(line: &Frame) -> String {
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

/// Two places, and how many more there are.
pub fn places_of(lines: &[Frame]) -> String {
    let mut places: Vec<String> = lines.iter().map(|line| short(&format!("{}:{}", line.file, line.line))).collect();
    places.dedup();
    let more = places.len().saturating_sub(2);
    places.truncate(2);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", places.join(", "))
}

/// Per cent of a total, whole ones.
pub fn share_of(part: i64, total: i64) -> String {
    match part as f64 / total.max(1) as f64 * 100.0 {
        share if share < 0.5 => "<1 %".to_string(),
        share => format!("{share:.0} %"),
    }
}

/// As [`place_of`], where a line is known.
pub fn place_or_not(line: Option<&Frame>) -> String {
    line.map_or("somewhere".to_string(), place_of)
}

/// A figure of the answer's first table.
pub fn row(text: &mut String, name: &str, value: i64, what: &str) -> std::fmt::Result {
    writeln!(text, "  {name:<14} {:>10}  {value:>13} B  {what}", bytes(value))
}
