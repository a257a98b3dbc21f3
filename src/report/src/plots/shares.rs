//! What a whole is made of, as one bar for each cell, from details of the samples that share a prefix.

use super::{PlotView, levels};
use anyhow::Result;
use base::units::{quantity, tick};
use chart::{
    Anchor, Canvas, EDGE, FAINT, GRID, INK, LinearScale, NARROW, SMALL, TEXT, WHITE, look, picture, shortened, text_width,
};
use plotters::prelude::RGBColor;
use record::results::{PassRecord, Status};

const BAR: i32 = 28;
const STEP: i32 = 42;
/// Parts with a colour of their own; the others are put together.
const COLOURED: usize = 6;
const OTHER: RGBColor = RGBColor(0xBB, 0xBB, 0xBB);
/// Widest that the names of rows may be, and room right of the bars for their totals.
const NAMES: i32 = 210;
const TOTALS: i32 = 80;
/// Room for an axis and its name.
const AXIS: i32 = 50;
const LEGEND_ROW: i32 = 20;
/// Room for a row's name above its bar, on a phone.
const NAME: i32 = 20;

struct ShareRow {
    name: String,
    /// Of each coloured part and of the others together, the share of the whole.
    shares: Vec<f64>,
    total: f64,
}

pub fn shares(view: &PlotView, rows: &[&str], prefix: &str) -> Result<Option<String>> {
    let found: Vec<(String, Vec<(&str, f64)>)> =
        view.cells.iter().filter_map(|cell| Some((levels(cell, rows), parts(view, cell, prefix)?))).collect();
    if found.is_empty() {
        return Ok(None);
    }
    let unit = view.recorded.passes.iter().flat_map(|p| &p.samples).find(|s| s.metric.starts_with(prefix)).map_or("B", |s| &s.unit);
    let longest =
        found.iter().map(|(_, parts)| parts.iter().map(|(_, value)| value).sum::<f64>()).fold(f64::MIN_POSITIVE, f64::max);
    let names = coloured(&found);
    let rows: Vec<ShareRow> = found.iter().map(|(name, parts)| row(name, parts, &names)).collect();
    let mut legend: Vec<(&str, RGBColor)> = names.iter().enumerate().map(|(n, name)| (*name, look(n).color)).collect();
    if rows.iter().any(|row| row.shares[names.len()] > 0.0) {
        legend.push(("other", OTHER));
    }
    let (width, narrow) = (view.head.width, view.head.width <= NARROW);
    let left = if narrow { EDGE } else { EDGE + rows.iter().map(|row| text_width(&row.name, TEXT)).max().unwrap_or(0) + 12 };
    let places = places(&legend, width);
    let step = if narrow { STEP + NAME } else { STEP };
    let top = view.head.bottom() + 14 + (places.last().map_or(0, |(_, row)| *row) + 1) * LEGEND_ROW;
    // Times have an axis; shares are all of the same length.
    let axis = (unit == "s").then(|| LinearScale { high: longest, from: left, to: width - EDGE - TOTALS });
    let bottom = top + rows.len() as i32 * step;
    let height = bottom + if axis.is_some() { AXIS } else { 12 };
    let title = format!("{} {}", view.head.title, view.head.subtitle);
    picture((width, height), &title, |canvas| {
        view.head.draw(canvas);
        for ((name, color), (x, row)) in legend.iter().zip(places) {
            let y = view.head.bottom() + 10 + row * LEGEND_ROW;
            canvas.rectangle((x, y - 6), (x + 14, y + 6), *color, true);
            canvas.text((x + 20, y), name, TEXT, INK, Anchor::Start);
        }
        if let Some(axis) = axis {
            for value in axis.ticks() {
                canvas.line((axis.at(value), top), (axis.at(value), bottom), GRID, 1);
                canvas.text((axis.at(value), bottom + 12), &tick(value, unit), SMALL, INK, Anchor::Middle);
            }
            canvas.text(((axis.from + axis.to) / 2, bottom + 34), "time (linear)", TEXT, INK, Anchor::Middle);
        }
        for (n, row) in rows.iter().enumerate() {
            let top = top + n as i32 * step;
            canvas.text((EDGE, if narrow { top + NAME / 2 } else { top + STEP / 2 }), &row.name, TEXT, INK, Anchor::Start);
            draw_row(
                canvas,
                row,
                &legend,
                (left, top + step - STEP),
                (width - EDGE - TOTALS, unit, if unit == "s" { row.total / longest } else { 1.0 }),
            );
        }
    })
    .map(Some)
}

/// The parts of a cell's whole, by their names without the prefix; none where it has none.
fn parts<'a>(view: &'a PlotView, cell: &record::protocol::PlainCell, prefix: &str) -> Option<Vec<(&'a str, f64)>> {
    let own = |record: &&PassRecord| record.cell == *cell && record.pass == view.metric.pass && record.status == Status::Ok;
    let record = view.recorded.passes.iter().find(own)?;
    // One record names the parts; where rounds repeat them, the medians count.
    let median = |metric: &str| view.recorded.samples.value(cell, metric);
    let parts = record.samples.iter().filter_map(|s| Some((s.metric.strip_prefix(prefix)?, median(&s.metric)?)));
    let parts: Vec<(&str, f64)> = parts.filter(|(_, value)| *value > 0.0).collect();
    (!parts.is_empty()).then_some(parts)
}

/// The parts that have the largest share somewhere, those with the largest first.
fn coloured<'a>(found: &[(String, Vec<(&'a str, f64)>)]) -> Vec<&'a str> {
    let mut most: Vec<(&str, f64)> = Vec::new();
    for (_, parts) in found {
        let total: f64 = parts.iter().map(|(_, value)| value).sum();
        for (name, value) in parts {
            match most.iter_mut().find(|(known, _)| known == name) {
                Some((_, share)) => *share = share.max(value / total),
                None => most.push((name, value / total)),
            }
        }
    }
    most.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
    most.truncate(COLOURED);
    most.into_iter().map(|(name, _)| name).collect()
}

fn row(name: &str, parts: &[(&str, f64)], names: &[&str]) -> ShareRow {
    let total: f64 = parts.iter().map(|(_, value)| value).sum();
    let mut shares = vec![0.0; names.len() + 1];
    for (part, value) in parts {
        shares[names.iter().position(|name| name == part).unwrap_or(names.len())] += value / total;
    }
    ShareRow { name: shortened(name, TEXT, NAMES), shares, total }
}

/// Place of each part in the legend: pixels from the left, and row.
fn places(legend: &[(&str, RGBColor)], whole: i32) -> Vec<(i32, i32)> {
    let (mut x, mut row) = (EDGE, 0);
    let place = |(name, _): &(&str, RGBColor)| {
        let width = 20 + text_width(name, TEXT);
        if x > EDGE && x + width > whole - EDGE {
            (x, row) = (EDGE, row + 1);
        }
        let at = (x, row);
        x += width + 18;
        at
    };
    legend.iter().map(place).collect()
}

fn draw_row(
    canvas: &mut Canvas,
    row: &ShareRow,
    legend: &[(&str, RGBColor)],
    (left, top): (i32, i32),
    (right, unit, length): (i32, &str, f64),
) {
    let middle = top + STEP / 2;
    let mut before = 0.0;
    // Of times the whole is as long as it takes.
    let right = left + (f64::from(right - left) * length).round() as i32;
    for (share, (name, color)) in row.shares.iter().zip(legend) {
        let at = |share: f64| left + (share * f64::from(right - left)).round() as i32;
        let (from, to) = (at(before), at(before + share));
        before += share;
        if to == from {
            continue;
        }
        canvas.rectangle((from, middle - BAR / 2), (to, middle + BAR / 2), *color, true);
        canvas.line((to, middle - BAR / 2), (to, middle + BAR / 2), WHITE, 1);
        let amount = if unit == "s" { quantity(share * row.total, unit) } else { format!("{:.0} %", share * 100.0) };
        let texts = [format!("{name} {amount}"), amount];
        if let Some(text) = texts.iter().find(|text| text_width(text, SMALL) + 6 <= to - from) {
            canvas.text(((from + to) / 2, middle), text, SMALL, if is_dark(*color) { WHITE } else { INK }, Anchor::Middle);
        }
    }
    canvas.text((right + 8, middle), &quantity(row.total, unit), SMALL, FAINT, Anchor::Start);
}

/// Whether white is easier to read on a colour than black.
fn is_dark(RGBColor(red, green, blue): RGBColor) -> bool {
    299 * u32::from(red) + 587 * u32::from(green) + 114 * u32::from(blue) < 100_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_parts_are_put_together() {
        let many: Vec<(&str, f64)> = ["a", "b", "c", "d", "e", "f", "g", "h"].into_iter().zip((1..=8).map(f64::from)).collect();
        let found = vec![("first".to_string(), many.clone()), ("second".to_string(), vec![("a", 2.0)])];
        let names = coloured(&found);
        assert_eq!(names, ["a", "h", "g", "f", "e", "d"], "a is all of the second");
        let row = row("first", &many, &names);
        assert_eq!(row.total, 36.0);
        assert!((row.shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!(row.shares[6], 5.0 / 36.0, "b and c");
    }
}
