//! The answer on the terminal: what to do, the table, why not, the lines to write.

use super::row::{Burdens, MeasuredStep, VariantRow};
use crate::answer::time::TimeChange;
use crate::run::executor::WAS_INTERRUPTED;
use crate::words::{signed as bytes, signed_or_dash, written};
use base::order::distinct;
use base::units::{Seconds, significant};
use std::cmp::Reverse;
use std::fmt::Write;

/// Where no technique pins more of the host's memory, there is no column of it.
const LEAST_PINNED: u64 = 64 << 20;

fn flops(value: i64) -> String {
    let (size, sign) = (value.unsigned_abs() as f64, if value < 0 { "-" } else { "+" });
    match size {
        0.0 => "none".to_string(),
        s if s >= 1e11 => format!("{sign}{} TFLOP", significant(s / 1e12)),
        s => format!("{sign}{} GFLOP", significant(s / 1e9)),
    }
}

/// What a row costs in compute beside the script as it is.
fn extra(row: &VariantRow) -> String {
    match row.extra_flops {
        None => "not counted".to_string(),
        Some(_) if row.extra_share.abs() < 1e-3 && row.is_offloading() => "none; PCI Express".to_string(),
        Some(_) if row.extra_share.abs() < 1e-3 => "none".to_string(),
        Some(extra) => format!("{} ({:+.0} %)", flops(extra), row.extra_share * 100.0),
    }
}

/// `+24 % (19 to 30 %)`: how much longer a step takes than that of the script as it is. Where the band holds both, no sign.
fn longer(change: TimeChange) -> String {
    let per_cent = |share: f64| (share * 100.0).round() + 0.0;
    match change.low == change.high {
        true => "the same".to_string(),
        false if change.low < 0.0 && change.high > 0.0 => {
            format!("longer or shorter ({:+.0} to {:+.0} %)", per_cent(change.low), per_cent(change.high))
        }
        false => format!("{:+.0} % ({:+.0} to {:+.0} %)", per_cent(change.share), per_cent(change.low), per_cent(change.high)),
    }
}

/// The time of a step, predicted, beside that of the script as it is.
fn predicted(row: &VariantRow, change: TimeChange) -> String {
    let seconds = Seconds(row.predicted_seconds.unwrap_or(0.0));
    if row.techniques.is_empty() { seconds.to_string() } else { format!("{seconds}, {}", longer(change)) }
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
                let than = row.predicted_change.map_or(String::new(), |change| format!(", {}, predicted", longer(change)));
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
        // A hundredth is not worth a line.
        let saves = |row: &&VariantRow| row.saved > row.bytes().map(|peak| peak / 100) && row.is_free() && row.change.is_empty();
        let free = match tried().filter(saves).max_by_key(|row| (row.saved, Reverse(row.techniques.len()))) {
            Some(row) => {
                let cost = match (row.predicted_change, row.extra_flops) {
                    (Some(change), _) if change.low == change.high => {
                        "in the same time (predicted) and with the same result".to_string()
                    }
                    (Some(change), _) => format!("with the same result; {unit} takes {} (predicted)", longer(change)),
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
fn changes(rows: &[VariantRow]) -> Vec<&str> {
    distinct(rows.iter().flat_map(|row| row.change.split("; ")).filter(|change| !change.is_empty()))
}

/// A row's changes by the letters that stand for them below the table.
fn letters(row: &VariantRow, changes: &[&str]) -> String {
    let of_row = ('a'..='z').zip(changes).filter(|(_, change)| row.change.split("; ").any(|own| own == **change));
    of_row.map(|(letter, _)| letter.to_string()).collect::<Vec<String>>().join(" ")
}

fn write_answer(text: &mut String, base: &MeasuredStep, rows: &[VariantRow]) -> std::fmt::Result {
    let gpu = &base.gpu;
    let mut limits: String = base.limits.iter().map(|limit| format!(" {limit}")).collect();
    let interrupted = rows.iter().filter(|row| row.reason.as_deref() == Some(WAS_INTERRUPTED)).count();
    if interrupted > 0 {
        write!(limits, " Interrupted: {interrupted} of the techniques and sets were not tried.")?;
    }
    let unit = base.unit();
    writeln!(text, "\n{}{limits}\n", recommendation(base, rows))?;
    let before = rows.iter().find(|row| row.techniques.is_empty()).and_then(VariantRow::bytes).unwrap_or(0);
    let is_measured = rows.iter().any(|row| row.seconds.is_some());
    let is_predicted = rows.iter().any(|row| row.predicted_change.is_some());
    let step = match base.flops {
        Some(n) => format!("; {unit}'s compute is {}", flops(n.cast_signed()).trim_start_matches('+')),
        // There is no column of what is more, either.
        None if is_predicted => String::new(),
        None => format!("; how much {unit} computes could not be counted"),
    };
    let memory = match is_measured {
        true => format!("Peaks are memory that PyTorch reserves, {} taken by CUDA and by others not included", bytes(gpu.context)),
        false => format!("'Needs' is the least GPU memory on which it runs, {} of CUDA context included", bytes(gpu.context)),
    };
    let order = match &base.time {
        Ok(_) => "What fits comes first, the fastest at the top; times are predicted".to_string(),
        Err(why) if why.is_empty() => "What fits comes first, the fastest at the top".to_string(),
        Err(why) => format!("By what each saves; there is no time to sort by, because {why}"),
    };
    writeln!(text, "  On {} ({}). {memory}{step}.\n  {order}.\n", gpu.name, bytes(gpu.memory))?;
    let width = rows.iter().filter(|row| row.peak_reserved.is_some()).map(|row| row.name().len()).max().unwrap_or(0).max(9);
    let time = match (is_measured, is_predicted) {
        (true, _) => format!("{unit:>10}  "),
        (false, true) => format!("{:>38}  ", format!("{unit} (predicted), 80 %")),
        (false, false) => String::new(),
    };
    // Operations say nothing more where there is a time; JSON has them.
    let compute = |text: &str| if is_predicted { String::new() } else { format!("{text:>20}  ") };
    // What goes to the host is pinned there, rounded up: as long as some technique does.
    let is_pinned = rows.iter().any(|row| row.pinned >= LEAST_PINNED);
    let pinned = |text: &str| if is_pinned { format!("{text:>10}  ") } else { String::new() };
    writeln!(
        text,
        "    {:<width$}  {:>10}  {:>10} {:>5}  {:>10}  {}{}{time}fits  changes",
        "technique",
        if is_measured { "reserved" } else { "needs" },
        "saves",
        "",
        "allocated",
        pinned("host pins"),
        compute("extra compute")
    )?;
    let changes = changes(rows);
    for row in rows {
        let Some(peak) = row.bytes() else { continue };
        // Rounded first, and without the sign of a zero.
        let share = |saved: i64| (saved as f64 / before.max(1) as f64 * 100.0).round() + 0.0;
        let share = row.saved.map_or(String::new(), |saved| format!("{:.0} %", share(saved)));
        let time = match (row.seconds, row.predicted_change) {
            (Some(seconds), _) => format!("{:>10}  ", Seconds(seconds).to_string()),
            (None, Some(change)) => format!("{:>38}  ", predicted(row, change)),
            (None, None) if is_predicted => format!("{:>38}  ", "not predicted"),
            (None, None) => String::new(),
        };
        let line = format!(
            "  {} {:<width$}  {:>10}  {:>10} {share:>5}  {:>10}  {}{}{time}{:<4}  {}",
            if row.pareto { "*" } else { " " },
            row.name(),
            bytes(peak),
            signed_or_dash(row.saved),
            signed_or_dash(row.peak_allocated),
            pinned(&bytes(row.pinned.cast_signed())),
            compute(&extra(row)),
            if row.fits { "yes" } else { "no" },
            letters(row, &changes)
        );
        writeln!(text, "{}", line.trim_end())?;
    }
    let pins_too_much: Vec<String> = rows.iter().filter(|row| base.host.pins_too_much(row.pinned)).map(VariantRow::name).collect();
    if let [first, others @ ..] = &pins_too_much[..] {
        let more = if others.is_empty() { String::new() } else { format!(" and {} of the other rows", others.len()) };
        let host = bytes(base.host.host.cast_signed());
        writeln!(
            text,
            "\n  More than half of the host's RAM ({host}; --host-memory says what the target has) is pinned by {first}{more}"
        )?;
    }
    if !changes.is_empty() {
        writeln!(text)?;
    }
    for (letter, change) in ('a'..='z').zip(&changes) {
        writeln!(text, "  {letter} {change}")?;
    }
    writeln!(
        text,
        "\n  * what needs less memory takes more {}, more cards or a compiler, or trains other weights or in other numbers",
        if is_measured || is_predicted { "time" } else { "compute" }
    )?;
    let not_applied: Vec<&VariantRow> = rows.iter().filter(|row| row.reason.is_some()).collect();
    if !not_applied.is_empty() {
        writeln!(text, "\n  Not applied")?;
        for row in not_applied {
            writeln!(text, "    {}: {}", row.name(), row.reason.as_deref().unwrap_or_default())?;
        }
    }
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
    // What trains another thing does not lead here either.
    let (same, other): (Vec<&VariantRow>, Vec<&VariantRow>) = rows.iter().filter(with_lines).partition(|row| row.change.is_empty());
    if !same.is_empty() || !other.is_empty() {
        writeln!(text, "\n  The lines to write")?;
        for row in same.into_iter().chain(other) {
            writeln!(text, "\n    # {}", row.name())?;
            for line in row.snippet.lines() {
                writeln!(text, "{}", format!("    {line}").trim_end())?;
            }
        }
    }
    Ok(())
}
