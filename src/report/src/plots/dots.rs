//! Values of single cells on a logarithmic axis, with a threshold; a value of 0 stands in a column of its own.

use super::{PlotView, grouped, levels};
use anyhow::Result;
use chart::Scale;
use chart::{Anchor, BAND, Canvas, EDGE, FAINT, GRID, INK, Look, NARROW, SMALL, TEXT, WHITE, look, picture, shortened, text_width};
use plotters::prelude::RGBColor;

const LANE: i32 = 12;
const ZERO: i32 = 64;
const NAME: i32 = 18;
const LEGEND_ROW: i32 = 20;

struct DotRow {
    name: String,
    /// The lane of each level, and its values.
    values: Vec<(usize, f64)>,
}

pub fn dots(view: &PlotView, rows: &[&str], threshold: f64) -> Result<Option<String>> {
    let view = &view.only(|grid| rows.iter().all(|factor| !grid.levels_of(factor).is_empty()));
    let Some(studied) = view.cells.first().and_then(|cell| view.recorded.grid_of(cell)).map(|grid| grid.studied.as_str()) else {
        return Ok(None);
    };
    // Unlike a line or a bar, several cells may share a row and a mark: each stays a point.
    let (factors, merged): (Vec<&str>, Vec<&str>) = view.telling(rows, &[studied]).into_iter().partition(|f| rows.contains(f));
    let narrow = view.head.width <= NARROW;
    let merged = if merged.is_empty() { String::new() } else { format!("a mark for each {}", merged.join(" and ")) };
    let merged = shortened(&merged, SMALL, view.head.width - 2 * EDGE);
    let shown = view.cells.iter().filter_map(|cell| Some((cell, view.value(cell)?, cell.get(studied)?)));
    let mut lanes: Vec<String> = Vec::new();
    let keyed: Vec<(String, (usize, f64))> = shown
        .map(|(cell, value, level)| {
            let lane = lanes.iter().position(|l| l == level).unwrap_or_else(|| {
                lanes.push(level.to_string());
                lanes.len() - 1
            });
            (levels(cell, &factors), (lane, value.abs()))
        })
        .collect();
    if keyed.is_empty() {
        return Ok(None);
    }
    let rows: Vec<DotRow> = grouped(keyed)
        .into_iter()
        .map(|(name, values)| DotRow {
            name: shortened(&name, SMALL, if narrow { view.head.width - 2 * EDGE - 8 } else { view.head.width / 2 }),
            values,
        })
        .collect();
    let chart = Chart::new(view, &rows, threshold, lanes, [studied, &merged]);
    chart.draw(view, &rows, threshold, [&factors.join(" · "), studied, &merged]).map(Some)
}

/// Place of each level's mark in the legend: pixels from the left, and row.
fn legend(studied: &str, lanes: &[(String, Look)], width: i32) -> Vec<(i32, i32)> {
    let edge = width - EDGE;
    let first = EDGE + text_width(studied, SMALL) + 20;
    let (mut x, mut row) = (first, 0);
    let place = |(level, _): &(String, Look)| {
        let width = text_width(level, TEXT) + 12;
        if x > first && x + width > edge {
            (x, row) = (first, row + 1);
        }
        let at = (x, row);
        x += width + 28;
        at
    };
    lanes.iter().map(place).collect()
}

struct Chart {
    width: i32,
    /// Room for a row's name above its dots, on a phone.
    name: i32,
    left: i32,
    top: i32,
    row: i32,
    x: Scale,
    lanes: Vec<(String, Look)>,
    has_zero: bool,
}

impl Chart {
    fn new(view: &PlotView, rows: &[DotRow], threshold: f64, lanes: Vec<String>, [studied, merged]: [&str; 2]) -> Chart {
        let names = rows.iter().map(|row| text_width(&row.name, SMALL)).max().unwrap_or(0);
        let (width, narrow) = (view.head.width, view.head.width <= NARROW);
        let left = if narrow { EDGE } else { EDGE + names + 12 };
        let has_zero = rows.iter().any(|row| row.values.iter().any(|(_, v)| *v == 0.0));
        let values = rows.iter().flat_map(|row| row.values.iter().map(|(_, v)| *v));
        let from = left + if has_zero { ZERO } else { 0 };
        let x = Scale::over(values.chain([threshold]), 10.0, from, width - EDGE - 8);
        let lanes: Vec<(String, Look)> = lanes.into_iter().enumerate().map(|(n, level)| (level, look(n))).collect();
        let legend_rows = legend(studied, &lanes, width).last().map_or(1, |(_, row)| row + 1);
        let narrow = view.head.width <= NARROW;
        let merged = if merged.is_empty() { 0 } else { LEGEND_ROW };
        let top = view.head.bottom() + 42 + legend_rows * LEGEND_ROW + merged;
        let name = if narrow { NAME } else { 0 };
        Chart { left, top, row: lanes.len() as i32 * LANE + 8 + name, name, width, x, lanes, has_zero }
    }

    fn draw(&self, view: &PlotView, rows: &[DotRow], threshold: f64, [header, studied, merged]: [&str; 3]) -> Result<String> {
        let bottom = self.top + rows.len() as i32 * self.row;
        let title = format!("{} {}", view.head.title, view.head.subtitle);
        picture((self.width, bottom + 54), &title, |canvas| {
            view.head.draw(canvas);
            self.draw_legend(canvas, view.head.bottom() + 8, studied, merged);
            if self.name == 0 {
                canvas.text((EDGE, self.top - 12), header, SMALL, FAINT, Anchor::Start);
            }
            self.draw_background(canvas, view, rows, bottom);
            let at = self.x.at(threshold);
            canvas.path(&[(at, self.top - 4), (at, bottom)], INK, 2, &[5, 3]);
            let label = format!("threshold {}", base::units::plain(threshold));
            let half = text_width(&label, SMALL) / 2;
            // Neither over the edge nor over the name of the rows.
            let first = if self.name == 0 { self.left.max(EDGE + text_width(header, SMALL) + 8) } else { self.left };
            canvas.text((at.max(first + half).min(self.width - EDGE - half), self.top - 12), &label, SMALL, INK, Anchor::Middle);
            for (n, row) in rows.iter().enumerate() {
                self.draw_row(canvas, row, self.top + n as i32 * self.row, if n % 2 == 0 { BAND } else { WHITE });
            }
        })
    }

    fn draw_legend(&self, canvas: &mut Canvas, y: i32, studied: &str, merged: &str) {
        canvas.text((EDGE, y), studied, SMALL, FAINT, Anchor::Start);
        for ((level, look), (x, row)) in self.lanes.iter().zip(legend(studied, &self.lanes, self.width)) {
            let y = y + row * LEGEND_ROW;
            canvas.mark((x, y), look.mark, look.color);
            canvas.text((x + 12, y), level, TEXT, INK, Anchor::Start);
        }
        canvas.text((self.width - EDGE, self.top - 30), merged, SMALL, FAINT, Anchor::End);
    }

    fn draw_background(&self, canvas: &mut Canvas, view: &PlotView, rows: &[DotRow], bottom: i32) {
        for n in 0..rows.len() {
            let top = self.top + n as i32 * self.row;
            if n % 2 == 0 {
                canvas.rectangle((EDGE, top), (self.width - EDGE, top + self.row), BAND, true);
            }
        }
        let mut free = if self.has_zero { self.left + ZERO - 14 } else { 0 };
        for (x, label) in self.x.ticks(view.metric.unit) {
            canvas.line((x, self.top), (x, bottom), GRID, 1);
            let half = text_width(&label, SMALL) / 2 + 3;
            let middle = x.min(self.width - half);
            if middle - half >= free {
                canvas.text((middle, bottom + 14), &label, SMALL, INK, Anchor::Middle);
                free = middle + half;
            }
        }
        if self.has_zero {
            let edge = self.left + ZERO - 14;
            canvas.line((edge, self.top), (edge, bottom), FAINT, 1);
            let zero = if view.metric.name.ends_with("_error") { "exact" } else { "0" };
            canvas.text((self.left + (ZERO - 14) / 2, bottom + 14), zero, SMALL, INK, Anchor::Middle);
        }
        let title = shortened(&format!("{} (logarithmic)", view.label()), TEXT, self.width - 2 * EDGE);
        let middle = ((self.left + self.width - EDGE) / 2).min(self.width - EDGE - text_width(&title, TEXT) / 2);
        canvas.text((middle, bottom + 36), &title, TEXT, INK, Anchor::Middle);
    }

    fn draw_row(&self, canvas: &mut Canvas, row: &DotRow, top: i32, ground: RGBColor) {
        let middle = if self.name > 0 { top + self.name / 2 + 2 } else { top + self.row / 2 };
        // On its ground, since on a phone lines run through it.
        canvas.rectangle((EDGE + 2, middle - 8), (EDGE + 6 + text_width(&row.name, SMALL), middle + 8), ground, true);
        canvas.text((EDGE + 4, middle), &row.name, SMALL, INK, Anchor::Start);
        for (lane, value) in &row.values {
            let y = top + self.name + 4 + LANE / 2 + *lane as i32 * LANE;
            let x = if *value > 0.0 { self.x.at(*value) } else { self.left + (ZERO - 14) / 2 };
            let look = self.lanes[*lane].1;
            canvas.mark((x, y), look.mark, look.color);
        }
    }
}
