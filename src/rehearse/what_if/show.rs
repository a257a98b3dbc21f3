//! The answer on the terminal: what to do, the table, why not, the lines to write.

use super::super::launch::Rehearsal;
use super::{Measured, Row};
use crate::units::{Bytes, plain};
use std::cmp::Reverse;
use std::fmt::Write;

fn flops(value: i64) -> String {
    let (size, sign) = (value.unsigned_abs() as f64, if value < 0 { "-" } else { "+" });
    match size {
        0.0 => "none".to_string(),
        s if s >= 1e11 => format!("{sign}{} TFLOP", plain((s / 1e10).round() / 100.0)),
        s => format!("{sign}{} GFLOP", plain((s / 1e7).round() / 100.0)),
    }
}

/// What a row costs in compute beside the script as it is.
pub fn extra(row: &Row, base: Option<u64>) -> String {
    match (row.extra_flops, base) {
        (Some(0), _) => "none".to_string(),
        (Some(extra), Some(all)) if all > 0 => format!("{} ({:+.0} %)", flops(extra), extra as f64 / all as f64 * 100.0),
        (Some(extra), _) => flops(extra),
        (None, _) => "not counted".to_string(),
    }
}

fn bytes(value: i64) -> String {
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{}", Bytes(value.unsigned_abs()))
}

pub fn answer(rehearsal: &Rehearsal, base: &Measured, rows: &[Row]) -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = write_answer(&mut text, rehearsal, base, rows);
    text
}

/// One sentence: what to do.
pub fn recommendation(rehearsal: &Rehearsal, rows: &[Row]) -> String {
    let gpu = &rehearsal.card;
    let cheapest = |fits: bool| {
        let some = rows.iter().filter(|row| row.peak_reserved.is_some() && (row.fits || !fits));
        some.filter(|row| !row.techniques.is_empty()).min_by_key(|row| row.cost())
    };
    let as_it_is = rows.iter().find(|row| row.techniques.is_empty());
    if as_it_is.is_some_and(|row| row.fits) {
        let free = rows
            .iter()
            .filter(|row| row.saved.is_some_and(|saved| saved > 0) && row.extra_flops.unwrap_or(0) <= 0 && row.change.is_empty())
            .max_by_key(|row| (row.saved, Reverse(row.techniques.len())));
        return match free {
            Some(row) => format!(
                "The script fits {gpu} as it is; {} would save {} at no extra compute and with the same result.",
                row.name(),
                bytes(row.saved.unwrap_or(0))
            ),
            None => format!("The script fits {gpu} as it is; nothing that was tried saves memory for free."),
        };
    }
    match cheapest(true) {
        Some(row) => format!(
            "The cheapest that fits {gpu}: {}, with {} reserved and {} of extra compute a step.",
            row.name(),
            bytes(row.peak_reserved.unwrap_or(0)),
            row.extra_flops.map_or("an unknown amount".to_string(), flops).trim_start_matches('+')
        ),
        None => match rows.iter().filter(|row| row.peak_reserved.is_some()).min_by_key(|row| row.peak_reserved) {
            Some(row) => format!(
                "Nothing that was tried makes it fit {gpu}; the least is {} with {}. A smaller batch, a larger card or several cards are left.",
                bytes(row.peak_reserved.unwrap_or(0)),
                row.name()
            ),
            None => "Nothing could be tried.".to_string(),
        },
    }
}

fn write_answer(text: &mut String, rehearsal: &Rehearsal, base: &Measured, rows: &[Row]) -> std::fmt::Result {
    writeln!(text, "\n{}\n", recommendation(rehearsal, rows))?;
    let before = base.answer.peak_reserved;
    let step = base.flops.map_or("not counted".to_string(), |n| flops(n.cast_signed()).trim_start_matches('+').to_string());
    writeln!(
        text,
        "  On {} ({}). Peaks are reserved memory, {} of CUDA context not included; a step's compute is {step}.\n",
        rehearsal.card,
        Bytes(rehearsal.card.memory),
        Bytes(rehearsal.card.context)
    )?;
    let width = rows.iter().filter(|row| row.saved.is_some()).map(|row| row.name().len()).max().unwrap_or(0).max(9);
    writeln!(
        text,
        "    {:<width$}  {:>10}  {:>10} {:>5}  {:>20}  {:<4}  changes in the result",
        "technique", "peak", "saves", "", "extra compute", "fits"
    )?;
    for row in rows {
        let (Some(peak), Some(saved)) = (row.peak_reserved, row.saved) else { continue };
        let share = format!("{:.0} %", saved as f64 / before.max(1) as f64 * 100.0);
        let extra = extra(row, base.flops);
        writeln!(
            text,
            "  {} {:<width$}  {:>10}  {:>10} {share:>5}  {extra:>20}  {:<4}  {}",
            if row.pareto { "*" } else { " " },
            row.name(),
            bytes(peak),
            bytes(saved),
            if row.fits { "yes" } else { "no" },
            row.change
        )?;
    }
    writeln!(text, "\n  * nothing that was tried needs less memory for as little compute")?;
    let not_applied: Vec<&Row> = rows.iter().filter(|row| row.reason.is_some()).collect();
    if !not_applied.is_empty() {
        writeln!(text, "\n  Not applied")?;
        for row in not_applied {
            writeln!(text, "    {}: {}", row.name(), row.reason.as_deref().unwrap_or_default())?;
        }
    }
    let with_lines = |row: &&Row| row.techniques.len() == 1 && !row.snippet.is_empty() && row.saved.is_some_and(|saved| saved > 0);
    if rows.iter().any(|row| with_lines(&row)) {
        writeln!(text, "\n  The lines to write")?;
        for row in rows.iter().filter(with_lines) {
            writeln!(text, "\n    # {}", row.name())?;
            for line in row.snippet.lines() {
                writeln!(text, "{}", format!("    {line}").trim_end())?;
            }
        }
    }
    Ok(())
}
