//! Figures and places in words.

use crate::answer::time::TimeChange;
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

/// For a terminal of so many columns: lines that are longer go on below, a little further in.
pub fn wrapped(text: &str, columns: usize) -> String {
    let mut wrapped = String::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let mut length = 0;
        for (at, word) in line[indent..].split(' ').enumerate() {
            let width = word.chars().count();
            if at == 0 {
                wrapped.push_str(&line[..indent]);
                length = indent;
            } else if length + 1 + width > columns && !word.is_empty() {
                wrapped.push('\n');
                wrapped.push_str(&" ".repeat(indent + 4));
                length = indent + 4;
            } else {
                wrapped.push(' ');
                length += 1;
            }
            wrapped.push_str(word);
            length += width;
        }
        wrapped.push('\n');
    }
    wrapped
}

/// `+13 %`, from three times on `4.7x`; the same where it is about as long.
pub fn longer(share: f64) -> String {
    match (share * 100.0).round() {
        0.0 => "same".to_string(),
        _ if share >= 2.0 => format!("{:.1}x", 1.0 + share),
        percent => format!("{percent:+.0} %"),
    }
}

/// With its band: `+13 % (9 to 17)`; where that holds both, the band alone.
pub fn longer_between(change: TimeChange) -> String {
    let percent = |share: f64| (share * 100.0).round() + 0.0;
    match change {
        TimeChange { low, high, .. } if low == high => "same".to_string(),
        TimeChange { low, high, .. } if low < 0.0 && high > 0.0 => format!("{:+.0} to {:+.0} %", percent(low), percent(high)),
        TimeChange { share, .. } => longer(share),
    }
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn long_lines_go_on_below_and_others_stay() {
        assert_eq!(wrapped("\n  a  b\n  one two three\n", 9), "\n  a  b\n  one two\n      three\n");
        assert_eq!(wrapped("  a  b\n", 6), "  a  b\n");
        assert_eq!(wrapped("longer-than-that x\n", 6), "longer-than-that\n    x\n");
    }
}
