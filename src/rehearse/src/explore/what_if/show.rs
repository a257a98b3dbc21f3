//! The answer on the terminal: what to do, the table, why not, the lines to write.

use super::row::{Burdens, MeasuredStep, VariantRow};
use crate::run::executor::WAS_INTERRUPTED;
use crate::words::{longer, longer_between, signed as bytes, signed_or_dash, wrapped, written};
use base::order::distinct;
use base::units::Seconds;
use std::cmp::Reverse;
use std::fmt::Write;

const COLUMNS: usize = 80;

/// What a row does to the time, or to the operations where there is none: `+13 %`, from three times on `4.7x`; where the band holds both, the band.
fn cost(row: &VariantRow, base: &MeasuredStep) -> String {
    match (row.predicted_change, row.seconds, base.seconds, row.extra_flops) {
        _ if row.techniques.is_empty() => {
            row.seconds.or(row.predicted_seconds).map_or("-".to_string(), |own| Seconds(own).to_string())
        }
        (Some(change), ..) => longer_between(change),
        (None, Some(own), Some(before), _) => longer(own / before - 1.0),
        (None, Some(own), ..) => Seconds(own).to_string(),
        _ if row.is_without_time => "?".to_string(),
        (.., Some(_)) if row.extra_share.abs() < 1e-3 => "no compute".to_string(),
        (.., Some(_)) => format!("{:+.0} % compute", row.extra_share * 100.0),
        (.., None) => "?".to_string(),
    }
}

/// `needs 5.1 GiB`
fn needs(row: &VariantRow) -> String {
    match (row.needs_at_least, row.peak_reserved) {
        (Some(needs), _) => format!("needs {}", bytes(needs)),
        (None, reserved) => format!("reserves {}", bytes(reserved.unwrap_or(0))),
    }
}

/// The answer whole, each line ended; `base` is the script as it is.
pub fn answer(base: &MeasuredStep, rows: &[VariantRow]) -> String {
    written(|text| write_answer(text, base, rows))
}

/// One sentence: what to do.
pub fn recommendation(base: &MeasuredStep, rows: &[VariantRow]) -> String {
    let (gpu, unit) = (&base.gpu, base.unit());
    let name = &gpu.name;
    let tried = || rows.iter().filter(|row| row.peak_reserved.is_some() && !row.techniques.is_empty());
    let what = |row: &VariantRow| {
        let compute = match (row.extra_flops, row.seconds.or(row.predicted_seconds)) {
            (_, Some(seconds)) => {
                let than = row.predicted_change.map_or(String::new(), |change| format!(", {}, predicted", longer_between(change)));
                format!("{} {unit}{than}", Seconds(seconds))
            }
            (Some(_), None) if row.extra_share < 1e-3 => "no extra compute".to_string(),
            (Some(_), None) => format!("{:.0} % more compute", row.extra_share * 100.0),
            (None, None) => "compute that could not be counted".to_string(),
        };
        format!("{}, which {} and {compute}", row.name(), needs(row))
    };
    let as_it_is = rows.iter().find(|row| row.techniques.is_empty());
    if as_it_is.is_some_and(|row| row.fits) {
        let saves = |row: &&VariantRow| {
            row.saved.zip(row.bytes()).is_some_and(|(saved, left)| saved * LEAST_PART >= saved + left)
                && row.is_free()
                && row.change.is_empty()
        };
        let free = match tried().filter(saves).max_by_key(|row| (row.saved, Reverse(row.techniques.len()))) {
            Some(row) => {
                let cost = match (row.predicted_change, row.extra_flops) {
                    (Some(change), _) if change.low == change.high => {
                        "in the same time (predicted) and with the same result".to_string()
                    }
                    (Some(change), _) => format!("with the same result; {unit} takes {} (predicted)", longer_between(change)),
                    (None, Some(_)) => "at no extra compute and with the same result".to_string(),
                    (None, None) => "with the same result; what it costs in compute could not be counted".to_string(),
                };
                format!("{} would save {} {cost}", row.name(), bytes(row.saved.unwrap_or(0)))
            }
            None => "nothing that was tried saves memory for free".to_string(),
        };
        // Where the whole band is below the script's own time.
        let is_asked = |row: &&VariantRow| row.fits && row.burdens() == Burdens::default();
        let is_faster = |row: &&VariantRow| is_asked(row) && row.predicted_change.is_some_and(|change| change.high < 0.0);
        let fastest = tried().filter(is_faster).min_by_key(|row| row.cost()).map_or(String::new(), |row| {
            let change = if row.change.is_empty() { "with the same result" } else { &row.change };
            format!(" The fastest: {} ({change}).", what(row))
        });
        return format!("The script fits {name} as it is; {free}.{fastest}");
    }
    let cheapest =
        |wanted: &dyn Fn(&VariantRow) -> bool| tried().filter(|row| row.fits && wanted(row)).min_by_key(|row| row.cost());
    let best = if rows.iter().any(VariantRow::is_timed) { "fastest" } else { "cheapest" };
    match (cheapest(&|_| true), cheapest(&|row| row.change.is_empty())) {
        (Some(row), _) if row.change.is_empty() => {
            format!("The {best} that fits {name} leaves the result as it is: {}.", what(row))
        }
        (Some(row), Some(same)) => {
            format!("The {best} that fits {name}: {} ({}); with the same result: {}.", what(row), row.change, what(same))
        }
        (Some(row), None) => {
            format!(
                "The {best} that fits {name}: {} ({}); nothing else that was tried and fits leaves the result as it is.",
                what(row),
                row.change
            )
        }
        (None, _) => match tried().min_by_key(|row| row.bytes()) {
            Some(row) => format!(
                "Nothing that was tried makes it fit {name}; with {} it {}. A smaller batch, a larger card or several cards are left.",
                row.name(),
                needs(row)
            ),
            None => "Nothing could be tried.".to_string(),
        },
    }
}

/// What the techniques change in the result, each once.
fn changes<'a>(rows: &[&'a VariantRow]) -> Vec<&'a str> {
    distinct(rows.iter().flat_map(|row| row.change.split("; ")).filter(|change| !change.is_empty()))
}

/// A row's changes by the letters that stand for them below the table.
fn letters(row: &VariantRow, changes: &[&str]) -> String {
    let of_row = ('a'..='z').zip(changes).filter(|(_, change)| row.change.split("; ").any(|own| own == **change));
    of_row.map(|(letter, _)| letter.to_string()).collect::<Vec<String>>().join(" ")
}

fn paragraph(text: &mut String, words: &str) -> std::fmt::Result {
    writeln!(text, "\n{}", wrapped(words, COLUMNS).lines().map(str::trim).collect::<Vec<_>>().join("\n"))
}

/// What saves, or takes, a smaller part than this is not worth a row.
const LEAST_PART: i64 = 20;

fn write_answer(text: &mut String, base: &MeasuredStep, rows: &[VariantRow]) -> std::fmt::Result {
    let gpu = &base.gpu;
    let mut limits: String = base.limits.iter().map(|limit| format!(" {limit}")).collect();
    let interrupted = rows.iter().filter(|row| row.reason.as_deref() == Some(WAS_INTERRUPTED)).count();
    if interrupted > 0 {
        write!(limits, " Interrupted: {interrupted} of the techniques and sets were not tried.")?;
    }
    let unit = base.unit();
    paragraph(text, &format!("{}{limits}", recommendation(base, rows)))?;
    let before = rows.iter().find(|row| row.techniques.is_empty()).and_then(VariantRow::bytes).unwrap_or(0);
    let is_measured = rows.iter().any(|row| row.seconds.is_some());
    let memory = match is_measured {
        true => format!("Peaks are what PyTorch reserves, without {} that CUDA and others take.", bytes(gpu.context)),
        false => format!("'needs' is the least GPU memory that it runs on, {} of CUDA context included.", bytes(gpu.context)),
    };
    let order = match &base.time {
        Ok(_) => "In the order to try them; times are predicted.".to_string(),
        Err(why) if why.is_empty() => "In the order to try them.".to_string(),
        Err(why) => format!("In the order to try them; there is no time to sort by, because {why}."),
    };
    let uncounted = if base.flops.is_none() && base.time.is_err() {
        format!(" How much {unit} computes could not be counted.")
    } else {
        String::new()
    };
    paragraph(text, &format!("On {} ({}). {memory} {order}{uncounted}", gpu.name, bytes(gpu.memory)))?;
    let is_small = |row: &&VariantRow| {
        let faster = row.predicted_change.is_some_and(|change| change.high < 0.0);
        !row.techniques.is_empty() && !faster && row.saved.is_some_and(|saved| saved.abs() * LEAST_PART < before)
    };
    let shown: Vec<&VariantRow> = rows.iter().filter(|row| row.bytes().is_some() && !is_small(row)).collect();
    let changes = changes(&shown);
    write_table(text, base, &shown, before, &changes)?;
    let small: Vec<String> = rows.iter().filter(|row| is_small(row)).map(VariantRow::name).collect();
    if !small.is_empty() {
        paragraph(text, &format!("Less than a twentieth, and no faster: {}.", small.join(", ")))?;
    }
    let pins_too_much: Vec<String> = rows.iter().filter(|row| base.host.pins_too_much(row.pinned)).map(VariantRow::name).collect();
    if let [first, others @ ..] = &pins_too_much[..] {
        let more = if others.is_empty() { String::new() } else { format!(" and {} of the other rows", others.len()) };
        let host = bytes(base.host.host.cast_signed());
        paragraph(
            text,
            &format!(
                "More than half of the host's RAM ({host}; --host-memory says what the target has) is pinned by {first}{more}."
            ),
        )?;
    }
    let said = ('a'..='z').zip(&changes).map(|(letter, change)| format!("  {letter} {change}\n"));
    let whole = if base.makes_steps { "training" } else { "result" };
    let star = format!("  * nothing else is both smaller and faster, of what leaves the {whole} as it is\n");
    write!(text, "\n{}", wrapped(&said.chain([star]).collect::<String>(), COLUMNS))?;
    let not_applied: Vec<&VariantRow> = rows.iter().filter(|row| row.reason.is_some()).collect();
    if !not_applied.is_empty() {
        writeln!(text, "\nNot applied")?;
        for row in not_applied {
            write!(text, "{}", wrapped(&format!("  {}: {}", row.name(), row.reason.as_deref().unwrap_or_default()), COLUMNS))?;
        }
    }
    write_lines(text, rows)
}

/// A row for each of what was tried; `before` is what the script needs as it is.
fn write_table(text: &mut String, base: &MeasuredStep, shown: &[&VariantRow], before: i64, changes: &[&str]) -> std::fmt::Result {
    // As wide as its column.
    let head = base.unit().trim_start_matches("a ").replace("forward pass with its backward pass", "forward+backward");
    let is_measured = shown.iter().any(|row| row.seconds.is_some());
    let heads = [if is_measured { "reserved" } else { "needs" }, "saves", "", &head];
    writeln!(text, "\n  {:<24}  {:>9} {:>9} {:>5}  {:<16} fits", "", heads[0], heads[1], heads[2], heads[3])?;
    for row in shown {
        let Some(peak) = row.bytes() else { continue };
        // Rounded first, and without the sign of a zero.
        let share = |saved: i64| (saved as f64 / before.max(1) as f64 * 100.0).round() + 0.0;
        let share =
            row.saved.filter(|_| !row.techniques.is_empty()).map_or(String::new(), |saved| format!("{:.0} %", share(saved)));
        let saved = if row.techniques.is_empty() { String::new() } else { signed_or_dash(row.saved) };
        let (mark, name) = (if row.pareto { "*" } else { " " }, row.name());
        let is_long = name.chars().count() > 24;
        if is_long {
            writeln!(text, "{mark} {name}")?;
        }
        let (mark, name) = if is_long { (" ", "") } else { (mark, name.as_str()) };
        let fits = if row.fits { "yes" } else { "no" };
        let line = format!(
            "{mark} {name:<24}  {:>9} {saved:>9} {share:>5}  {:<16} {fits:<3} {}",
            bytes(peak),
            cost(row, base),
            letters(row, changes)
        );
        writeln!(text, "{}", line.trim_end())?;
    }
    Ok(())
}

fn write_lines(text: &mut String, rows: &[VariantRow]) -> std::fmt::Result {
    // The first sentence may name what is faster and saves nothing.
    let helps =
        |row: &VariantRow| row.saved.is_some_and(|saved| saved > 0) || row.predicted_change.is_some_and(|change| change.high < 0.0);
    let has_lines = |row: &&VariantRow| !row.snippet.is_empty() && helps(row);
    let alone: Vec<&str> =
        rows.iter().filter(|row| row.techniques.len() == 1).filter(has_lines).map(|row| row.techniques[0].as_str()).collect();
    // A set's lines are those of its parts, where these are there.
    let with_lines = |row: &&VariantRow| {
        let is_new = row.pareto && row.techniques.iter().any(|name| !alone.contains(&name.as_str()));
        has_lines(row) && (row.techniques.len() == 1 || is_new)
    };
    let mut with_lines = rows.iter().filter(with_lines).peekable();
    if with_lines.peek().is_some() {
        writeln!(text, "\n  The lines to write")?;
    }
    for row in with_lines {
        writeln!(text, "\n    # {}", row.name())?;
        row.snippet.lines().try_for_each(|line| writeln!(text, "{}", format!("    {line}").trim_end()))?;
    }
    Ok(())
}
