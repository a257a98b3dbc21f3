//! The answer on the terminal.

use super::answer::{Answer, Held, Line, ProcessAnswer, Verdict, moment};
use super::launch::Run;
use super::time;
use crate::units::Bytes;
use std::fmt::Write;
use std::path::Path;

fn bytes(value: i64) -> String {
    Bytes(value.unsigned_abs()).to_string()
}

/// The whole answer, each line ended.
pub fn answer(answer: &Answer) -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = write_answer(&mut text, answer);
    text
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

fn write_answer(text: &mut String, answer: &Answer) -> std::fmt::Result {
    let gpu = &answer.gpu;
    writeln!(text)?;
    writeln!(text, "{}", headline(answer))?;
    let failures = answer.processes.iter().filter_map(|process| process.exception.as_ref());
    if let Some(failure) = failures.take(1).find(|_| answer.verdict == Verdict::ScriptFailed) {
        writeln!(text, "  {}", failure.message.lines().next().unwrap_or_default())?;
        if let Some(line) = &failure.line {
            writeln!(text, "    at      {}", place_of(line))?;
        }
    }
    let Some(worst) = answer.processes.first() else {
        return notes(text, answer);
    };
    writeln!(text)?;
    let row = |text: &mut String, name: &str, value: i64, what: &str| {
        writeln!(text, "  {name:<14} {:>10}  {value:>13} B  {what}", bytes(value))
    };
    row(text, "peak requested", answer.peak_requested, "what tensors asked for")?;
    row(text, "peak allocated", answer.peak_allocated, "rounded up by the allocator")?;
    row(text, "peak reserved", answer.peak_reserved, "what the allocator had of the GPU")?;
    let context = format!("with {} of context (assumed)", bytes(gpu.context));
    row(text, "on the GPU", answer.peak_on_device, &context)?;
    if answer.headroom >= 0 && answer.verdict == Verdict::Fits {
        row(text, "headroom", answer.headroom, &format!("of {} ({})", bytes(gpu.memory), gpu.name))?;
    }
    writeln!(text)?;
    place(text, worst)?;
    table(text, "What fills it", &worst.peak.categories, usize::MAX, worst.peak.bytes)?;
    table(text, "by module", &worst.peak.modules, ROWS, worst.peak.bytes)?;
    table(text, "by line", &worst.peak.lines, ROWS, worst.peak.bytes)?;
    phases(text, worst)?;
    let idle = worst.fragmentation.reserved_beyond_allocated;
    if worst.peak_reserved > 0 {
        let share = idle as f64 / worst.peak_reserved as f64 * 100.0;
        writeln!(text)?;
        write!(text, "  Fragmentation: {} ({share:.0} %) more was reserved than was ever allocated at once.", bytes(idle))?;
        let advice = share >= 15.0 && idle >= 256 << 20;
        writeln!(text, "{}", if advice { " Try PYTORCH_ALLOC_CONF=expandable_segments:True." } else { "" })?;
    }
    if answer.processes.len() > 1 {
        processes(text, answer)?;
    }
    match (&answer.time, &answer.time_missing) {
        (Some(time), _) => time::prediction(text, time)?,
        (None, Some(why)) => writeln!(text, "\n  The time of a step is not predicted: {why}.")?,
        (None, None) => {}
    }
    values(text, worst)?;
    uncounted(text, worst)?;
    notes(text, answer)
}

/// In a few words why a script did not end well.
pub fn short_failure(answer: &Answer, run: &Run) -> String {
    match answer.processes.iter().find_map(|process| process.exception.as_ref()) {
        Some(e) => format!("{}: {}", e.kind, e.message.lines().next().unwrap_or_default()),
        None => run.end(),
    }
}

pub(super) fn headline(answer: &Answer) -> String {
    let gpu = &answer.gpu;
    let card = match gpu.name.bytes().next().is_some_and(|b| b.is_ascii_digit()) {
        true => format!("a GPU of {}", bytes(gpu.memory)),
        false => format!("{} ({})", gpu.name, bytes(gpu.memory)),
    };
    let steps = match answer.steps {
        0 if answer.verdict == Verdict::Fits => "to the end of the script, which has no optimizer step".to_string(),
        0 => "before the first optimizer step ended".to_string(),
        1 => "in 1 optimizer step".to_string(),
        n => format!("in {n} optimizer steps"),
    };
    match answer.verdict {
        Verdict::Fits => format!(
            "FITS {card}: {} on the GPU at most, {} left, seen {steps}.",
            bytes(answer.peak_on_device),
            bytes(answer.headroom)
        ),
        Verdict::DoesNotFit => {
            let more = match answer.needed_memory {
                Some(needed) if needed > gpu.memory => {
                    format!(" It would need {} on the GPU, {} more.", bytes(needed), bytes(needed - gpu.memory))
                }
                Some(needed) => format!(
                    " {} on the GPU would do: a limit of the script's own, as by set_per_process_memory_fraction, or fragmentation is in the way.",
                    bytes(needed)
                ),
                None => String::new(),
            };
            format!("DOES NOT FIT {card}: out of memory {steps}.{more}")
        }
        Verdict::ScriptFailed => {
            let why = answer.processes.iter().find_map(|p| p.exception.as_ref());
            match why {
                Some(e) => format!("THE SCRIPT FAILED with {}, {steps}; until then:", e.kind),
                None => format!("THE SCRIPT FAILED, {steps}; until then:"),
            }
        }
    }
}

/// `file:line (function)`; see [`short`].
pub(super) fn place_of(line: &Line) -> String {
    format!("{}:{} ({})", short(&line.file), line.line, line.function)
}

/// A file from the working directory where it is below it, and one of an installed package from there.
pub(super) fn short(file: &str) -> String {
    if let Some((_, package)) = file.split_once("/site-packages/") {
        return package.to_string();
    }
    let here = std::env::current_dir().unwrap_or_default();
    Path::new(file).strip_prefix(&here).map_or_else(|_| file.to_string(), |path| path.display().to_string())
}

fn place(text: &mut String, worst: &ProcessAnswer) -> std::fmt::Result {
    let peak = &worst.peak;
    let phase = moment(peak.phase, peak.step);
    match &worst.out_of_memory {
        Some(oom) => writeln!(text, "  Memory ran out {phase}, for {} with {} free.", bytes(oom.tried), bytes(oom.free))?,
        None => writeln!(text, "  The peak is {phase}.")?,
    }
    for (word, line) in [("at     ", &peak.line), ("from   ", &peak.called_from), ("back of", &peak.forward_line)] {
        if let Some(line) = line {
            writeln!(text, "    {word} {}", place_of(line))?;
        }
    }
    match (&peak.module, &peak.operator) {
        (Some(module), Some(operator)) => writeln!(text, "    in      {module}, {operator}"),
        (Some(module), None) => writeln!(text, "    in      {module}"),
        (None, Some(operator)) => writeln!(text, "    in      {operator}"),
        (None, None) => Ok(()),
    }
}

/// Per cent of a total, whole ones.
pub(super) fn share_of(part: i64, total: i64) -> String {
    match part as f64 / total.max(1) as f64 * 100.0 {
        share if share < 0.5 => "<1 %".to_string(),
        share => format!("{share:.0} %"),
    }
}

const ROWS: usize = 6;

fn table(text: &mut String, title: &str, held: &[Held], rows: usize, total: i64) -> std::fmt::Result {
    writeln!(text)?;
    writeln!(text, "  {title}")?;
    for row in held.iter().take(rows) {
        writeln!(text, "    {:>10}  {:>5}  {}", bytes(row.bytes), share_of(row.bytes, total), short(&row.name))?;
    }
    Ok(())
}

fn phases(text: &mut String, worst: &ProcessAnswer) -> std::fmt::Result {
    writeln!(text)?;
    writeln!(text, "  {:<6} {:<10} {:>14} {:>14} {:>14}", "step", "phase", "peak", "at its end", "reserved")?;
    // The first step and the last one: those between are as the last.
    let last = worst.phases.iter().map(|row| row.step).max().unwrap_or(0);
    for row in worst.phases.iter().filter(|row| row.step <= 1 || row.step == last) {
        let step = if row.step == 0 { "-".to_string() } else { row.step.to_string() };
        let (peak, end, reserved) = (bytes(row.peak_allocated), bytes(row.allocated), bytes(row.reserved));
        writeln!(text, "  {step:<6} {:<10} {peak:>14} {end:>14} {reserved:>14}", row.phase)?;
    }
    Ok(())
}

fn processes(text: &mut String, answer: &Answer) -> std::fmt::Result {
    writeln!(text)?;
    writeln!(text, "  {:<10} {:<6} {:<6} {:>14} {:>14}", "process", "rank", "GPU", "allocated", "reserved")?;
    for process in &answer.processes {
        let rank = process.rank.map_or("-".to_string(), |rank| rank.to_string());
        let (allocated, reserved) = (bytes(process.peak_allocated), bytes(process.peak_reserved));
        writeln!(text, "  {:<10} {rank:<6} {:<6} {allocated:>14} {reserved:>14}", process.process, process.device)?;
    }
    Ok(())
}

/// Values that the script read and nobody computed.
fn values(text: &mut String, worst: &ProcessAnswer) -> std::fmt::Result {
    let times = |times| if times > 1 { format!(", {times} times") } else { String::new() };
    let rows =
        worst.imagined.iter().map(|row| format!("{} at {}{}", row.operator, place_or_not(row.line.as_ref()), times(row.times)));
    at_places(text, "Nothing is computed, so these values are imagined, those of a healthy run:", rows)
}

/// Memory of libraries that only a GPU tells.
fn uncounted(text: &mut String, worst: &ProcessAnswer) -> std::fmt::Result {
    let rows =
        worst.uncounted.iter().map(|row| format!("{} ({}) at {}", row.operator, row.library, place_or_not(row.line.as_ref())));
    at_places(text, "What these take in a library, beside their results, only a GPU tells; it is not counted:", rows)
}

/// As [`place_of`], where a line is known.
pub(super) fn place_or_not(line: Option<&Line>) -> String {
    line.map_or("somewhere".to_string(), place_of)
}

/// The first rows, if there are any, and how many more there are.
fn at_places(text: &mut String, title: &str, rows: impl ExactSizeIterator<Item = String>) -> std::fmt::Result {
    let count = rows.len();
    if count > 0 {
        writeln!(text, "\n  {title}")?;
    }
    for row in rows.take(ROWS) {
        writeln!(text, "    {row}")?;
    }
    if count > ROWS {
        writeln!(text, "    and at {} more places", count - ROWS)?;
    }
    Ok(())
}

fn notes(text: &mut String, answer: &Answer) -> std::fmt::Result {
    if !answer.notes.is_empty() {
        writeln!(text)?;
    }
    answer.notes.iter().try_for_each(|note| writeln!(text, "  Note: {note}"))
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
