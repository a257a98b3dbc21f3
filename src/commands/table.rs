//! Tables for the terminal.

use crate::torch::{Categories, Phase, Stage};
use crate::units::Bytes;

/// Bytes by phase and category: loading, the phases of the first iteration, each further iteration as one row, and the peak. Live bytes
/// and categories are those at the end of the phase.
pub fn bytes_by_phase(stages: &[Stage]) -> String {
    let mut rows = vec![header()];
    rows.extend(stages.iter().filter(|s| s.iteration <= 1).map(|s| row(s.phase.to_string(), Some(s.live), s.peak, &s.at_end)));
    let later = stages.iter().filter(|s| s.iteration > 1 && s.phase == Phase::Step);
    rows.extend(later.map(|last| {
        let same = stages.iter().filter(|s| s.iteration == last.iteration);
        let peak = same.map(|s| s.peak).max().unwrap_or(last.peak);
        row(format!("iteration {}", last.iteration), Some(last.live), peak, &last.at_end)
    }));
    if let Some(top) = stages.iter().rev().max_by_key(|stage| stage.peak) {
        let name = match top.iteration {
            0 => "peak, in load".to_string(),
            n => format!("peak, in {} of iteration {n}", top.phase),
        };
        rows.push(row(name, None, top.peak, &top.at_peak));
    }
    aligned(&rows)
}

fn header() -> Vec<String> {
    let categories = Categories::default().named().map(|(name, _)| name);
    ["", "live", "peak"].into_iter().chain(categories).map(str::to_string).collect()
}

fn row(name: String, live: Option<i64>, peak: i64, categories: &Categories) -> Vec<String> {
    let mut row = vec![name, live.map_or(String::new(), bytes), bytes(peak)];
    row.extend(categories.named().map(|(_, amount)| bytes(amount)));
    row
}

pub(super) fn bytes(amount: i64) -> String {
    let sign = if amount < 0 { "-" } else { "" };
    format!("{sign}{}", Bytes(amount.unsigned_abs()))
}

/// The first column to the left, the others to the right, two spaces between.
pub(super) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |i: usize| rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(i, (cell, &width))| if i == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
