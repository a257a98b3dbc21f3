//! What lives through the phases of a step, stacked by what it is for, in panels side by side; the peak is marked and named.

use super::{Anchor, BAND, Canvas, EDGE, FAINT, GRID, Head, INK, Marker, NARROW, Point, SMALL, Scale, TEXT};
use super::{flowed, look, picture, shortened, text_width, wrapped};
use anyhow::Result;
use base::units::{quantity, tick};
use plotters::prelude::RGBColor;
use serde::Serialize;
use std::ops::Range;

/// Room between two panels, which holds the right one's axis.
const GAP: i32 = 20;
/// Height of a plot that has its row for itself, and of one that shares it.
const TALL: i32 = 300;
const LOW: i32 = 170;
const LINE: i32 = SMALL + 5;
/// Rows above a plot: the names of the phases, and those of what several phases belong to.
const PHASES: i32 = 18;
/// How each layer looks, the lowest first: neighbours differ most. One more is grey.
const LOOKS: [usize; 7] = [0, 4, 5, 2, 1, 3, 6];
const REST: RGBColor = RGBColor(0x99, 0x99, 0x99);
/// Least share of a layer that a peak's text names.
const LEAST_SHARE: f64 = 0.02;
/// A layer that nowhere has this share of the highest peak cannot be seen, and has no place in the legend.
const VISIBLE: f64 = 0.003;
const LEGEND_ROW: i32 = 20;

/// A phase of a course, as wide as the others.
#[derive(Debug, Clone)]
pub struct PhaseBand {
    pub name: String,
    /// What it belongs to, an iteration for instance; empty where there is only one.
    pub group: String,
    /// Where a peak in it lies: `in backward of iteration 2`.
    pub place: String,
    pub points: Range<usize>,
}

/// Bytes over allocations and frees.
#[derive(Debug, Clone)]
pub struct MemoryCurve {
    /// Bytes of each layer, point by point.
    pub points: Vec<Vec<f64>>,
    pub phases: Vec<PhaseBand>,
}

#[derive(Debug)]
pub struct Panel {
    pub name: String,
    /// What to draw, or why there is nothing.
    pub course: Result<MemoryCurve, String>,
}

/// A whole picture.
pub struct Areas<'a> {
    pub head: &'a Head,
    /// Names of the layers, the lowest first.
    pub layers: Vec<String>,
    pub rows: Vec<Vec<Panel>>,
    /// Whether all rows have one scale, or each its own.
    pub one_scale: bool,
    /// What the points are, below all panels.
    pub note: String,
}

impl MemoryCurve {
    fn total(&self, point: usize) -> f64 {
        self.points[point].iter().sum()
    }

    /// The first of the points at which most bytes live.
    pub fn peak(&self) -> usize {
        (0..self.points.len()).fold(0, |most, point| if self.total(point) > self.total(most) { point } else { most })
    }

    fn highest(&self) -> f64 {
        (0..self.points.len()).map(|point| self.total(point)).fold(0.0, f64::max)
    }

    /// Where a point lies: `in backward`.
    pub fn place(&self, point: usize) -> &str {
        self.phases.iter().find(|phase| phase.points.contains(&point)).map_or("", |phase| &phase.place)
    }

    /// `activations 61 %, parameters 15 %`: what lives at a point, the most first, as far as there is room.
    fn shares(&self, point: usize, layers: &[String], width: i32) -> String {
        let total = self.total(point).max(1.0);
        let named = self.points[point].iter().zip(layers).map(|(bytes, layer)| (bytes / total, layer.as_str()));
        let mut shares: Vec<(f64, &str)> = named.collect();
        shares.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut text = String::new();
        for (share, name) in shares.into_iter().filter(|(share, _)| *share >= LEAST_SHARE) {
            let comma = if text.is_empty() { "" } else { ", " };
            let longer = format!("{text}{comma}{name} {:.0} %", share * 100.0);
            if text_width(&longer, SMALL) > width {
                break;
            }
            text = longer;
        }
        text
    }
}

/// Where a course lies in its picture, for pages that say what a reader points at; pixels of the whole picture.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AreaPlot {
    pub left: i32,
    /// Where nothing lies, and where `high` bytes do.
    pub ground: i32,
    pub top: i32,
    pub high: f64,
    /// The point that each pixel from `left` on shows.
    pub points: Vec<usize>,
}

/// Draws areas; panels stand side by side, and below one another on a phone. With the picture, where each panel's course lies, row by row.
pub fn areas(chart: &Areas) -> Result<(String, Vec<AreaPlot>)> {
    let head = chart.head;
    let mut plots = Vec::new();
    let rows: Vec<&[Panel]> = match head.width <= NARROW {
        true => chart.rows.iter().flat_map(|row| row.chunks(1)).collect(),
        false => chart.rows.iter().map(Vec::as_slice).collect(),
    };
    let columns = rows.iter().map(|row| row.len()).max().unwrap_or(1) as i32;
    let highest =
        |panels: &[Panel]| panels.iter().filter_map(|p| p.course.as_ref().ok()).map(MemoryCurve::highest).fold(1.0, f64::max);
    let together = rows.iter().map(|row| highest(row)).fold(1.0, f64::max);
    let legend = legend(chart, together);
    let top = head.bottom() + 4 + legend.last().map_or(0, |(.., row)| row + 1) * LEGEND_ROW;
    let mut frames = Vec::new();
    let mut bottom = top;
    for row in &rows {
        let frame = AreaFrame::new(row, if chart.one_scale { together } else { highest(row) }, bottom, (head.width, columns));
        bottom = frame.y.from + 22;
        frames.push(frame);
    }
    let note = wrapped(&chart.note, SMALL, head.width - 2 * EDGE);
    let height = bottom + note.len() as i32 * LINE + 8;
    let drawn = picture(head, height, |canvas| {
        for (layer, x, row) in legend {
            let y = head.bottom() + 8 + row * LEGEND_ROW;
            canvas.rectangle((x, y - 6), (x + 14, y + 6), color(layer));
            canvas.text((x + 20, y), &chart.layers[layer], TEXT, INK, Anchor::Start);
        }
        for (row, frame) in rows.iter().zip(&frames) {
            for (column, panel) in row.iter().enumerate() {
                plots.extend(frame.draw(canvas, panel, &chart.layers, column as i32));
            }
        }
        for (n, line) in note.iter().enumerate() {
            canvas.text((head.width / 2, bottom + LINE / 2 + n as i32 * LINE), line, SMALL, FAINT, Anchor::Middle);
        }
    })?;
    Ok((drawn, plots))
}

/// The layers that can be seen, each with its place: pixels from the left, and row.
fn legend(chart: &Areas, highest: f64) -> Vec<(usize, i32, i32)> {
    let courses = || chart.rows.iter().flatten().filter_map(|panel| panel.course.as_ref().ok());
    let is_seen = |layer: &usize| courses().any(|course| course.points.iter().any(|point| point[*layer] > VISIBLE * highest));
    let seen: Vec<usize> = (0..chart.layers.len()).filter(is_seen).collect();
    let widths = seen.iter().map(|layer| 20 + text_width(&chart.layers[*layer], TEXT));
    let places = flowed(widths, (EDGE, chart.head.width - EDGE), 16);
    seen.iter().zip(places).map(|(layer, (x, row))| (*layer, x, row)).collect()
}

/// A row of panels of one scale.
struct AreaFrame {
    /// Upper edge of the headings.
    top: i32,
    width: i32,
    y: Scale,
    ticks: Vec<(i32, String)>,
    /// Room for the axis's labels.
    axis: i32,
}

impl AreaFrame {
    fn new(panels: &[Panel], high: f64, top: i32, (width, columns): (i32, i32)) -> AreaFrame {
        let grouped = panels.iter().filter_map(|p| p.course.as_ref().ok()).any(|c| c.phases.iter().any(|p| !p.group.is_empty()));
        let lines = if panels.iter().any(|panel| !panel.name.is_empty()) { 3 } else { 2 };
        let upper = top + lines * LINE + 4 + PHASES + if grouped { PHASES } else { 0 };
        let height = if columns == 1 && width > NARROW { TALL } else { LOW };
        let y = Scale::linear(0.0, high * 1.04, upper + height, upper);
        // Panels without any figure have no scale.
        let values = if high > 1.0 { y.linear_binary_ticks() } else { Vec::new() };
        let ticks: Vec<(i32, String)> = values.into_iter().map(|value| (y.at(value), tick(value, "B"))).collect();
        let axis = ticks.iter().map(|(_, label)| text_width(label, SMALL)).max().unwrap_or(0) + 8;
        AreaFrame { top, width: (width - 2 * EDGE - GAP * (columns - 1)) / columns, y, ticks, axis }
    }

    fn draw(&self, canvas: &mut Canvas, panel: &Panel, layers: &[String], column: i32) -> Option<AreaPlot> {
        let start = EDGE + column * (self.width + GAP);
        let (left, right) = (start + self.axis, start + self.width);
        let (upper, lower) = (self.y.to, self.y.from);
        let mut line = self.top + LINE / 2;
        if !panel.name.is_empty() {
            canvas.bold((start, line), &shortened(&panel.name, TEXT, self.width), TEXT, INK, Anchor::Start);
            line += LINE;
        }
        let course = match &panel.course {
            Ok(course) => course,
            Err(why) => {
                canvas.text(((left + right) / 2, (upper + lower) / 2), why, TEXT, FAINT, Anchor::Middle);
                return None;
            }
        };
        let count = course.phases.len().max(1) as i32;
        let edge = |n: usize| left + (right - left) * n as i32 / count;
        for (n, phase) in course.phases.iter().enumerate() {
            if n % 2 == 0 {
                canvas.rectangle((edge(n), upper - PHASES), (edge(n + 1), lower), BAND);
            }
            // Names of phases are mostly narrower than the estimate, and all of them side by side are worth a pixel.
            if text_width(&phase.name, SMALL) * 9 / 10 <= edge(n + 1) - edge(n) {
                canvas.text(((edge(n) + edge(n + 1)) / 2, upper - PHASES / 2), &phase.name, SMALL, FAINT, Anchor::Middle);
            }
        }
        self.draw_groups(canvas, course, &edge);
        for (y, label) in &self.ticks {
            canvas.line((left, *y), (right, *y), GRID, 1);
            canvas.text((left - 6, *y), label, SMALL, INK, Anchor::End);
        }
        let peak = course.peak();
        let (columns, peak_at) = columns(course, &edge, peak);
        draw_stack(canvas, course, &columns, left, |bytes| self.y.at(bytes));
        for n in 1..course.phases.len() {
            canvas.path(&[(edge(n), upper - PHASES), (edge(n), lower)], FAINT, 1, &[3, 3]);
        }
        if !course.points.is_empty() {
            let label = format!("peak {} {}:", quantity(course.total(peak), "B"), course.place(peak));
            canvas.text((start, line), &label, SMALL, INK, Anchor::Start);
            canvas.text((start, line + LINE), &course.shares(peak, layers, self.width), SMALL, INK, Anchor::Start);
            let height = self.y.at(course.total(peak));
            canvas.path(&[(left, height), (right, height)], INK, 1, &[5, 3]);
            canvas.mark((left + peak_at as i32, height), Marker::Circle, INK);
        }
        canvas.line((left, lower), (right, lower), FAINT, 1);
        canvas.line((left, upper - PHASES), (left, lower), FAINT, 1);
        Some(AreaPlot { left, ground: lower, top: upper, high: self.y.high, points: columns })
    }

    /// A line with a name above the phases that belong together.
    fn draw_groups(&self, canvas: &mut Canvas, course: &MemoryCurve, edge: &impl Fn(usize) -> i32) {
        let mut first = 0;
        for group in course.phases.chunk_by(|a, b| a.group == b.group) {
            let (from, to) = (edge(first), edge(first + group.len()));
            first += group.len();
            let (name, y) = (&group[0].group, self.y.to - PHASES);
            if !name.is_empty() && text_width(name, SMALL) <= to - from {
                canvas.line((from + 2, y), (to - 2, y), FAINT, 1);
                canvas.text(((from + to) / 2, y - PHASES / 2), name, SMALL, FAINT, Anchor::Middle);
            }
        }
    }
}

/// For each pixel across the point to show: of those that share the pixel the one at which most bytes live, so that no peak is lost; where
/// there are fewer points than pixels, or none in a phase, the last one stays. With them, the pixel of the peak.
fn columns(course: &MemoryCurve, edge: &impl Fn(usize) -> i32, peak: usize) -> (Vec<usize>, usize) {
    let (mut columns, mut peak_at, mut last) = (Vec::new(), 0, 0);
    for (n, phase) in course.phases.iter().enumerate() {
        let (width, count) = ((edge(n + 1) - edge(n)).max(0) as usize, phase.points.len());
        for pixel in 0..width {
            let from = phase.points.start + pixel * count / width;
            let to = (phase.points.start + (pixel + 1) * count / width).max((from + 1).min(phase.points.end));
            last = (from..to).reduce(|a, b| if course.total(b) > course.total(a) { b } else { a }).unwrap_or(last);
            if last == peak && peak_at == 0 {
                let share = width / count.max(1);
                peak_at = columns.len() + share / 2;
            }
            columns.push(last);
        }
    }
    (columns, peak_at)
}

/// Each layer down to the ground, the highest first, so that the lower ones lie over it.
fn draw_stack(canvas: &mut Canvas, course: &MemoryCurve, columns: &[usize], left: i32, y: impl Fn(f64) -> i32) {
    let ground = y(0.0);
    for layer in (0..course.points.first().map_or(0, Vec::len)).rev() {
        if course.points.iter().all(|point| point[layer] == 0.0) {
            continue;
        }
        let line = columns.iter().zip(left..).flat_map(|(point, x)| {
            let height = y(course.points[*point][..=layer].iter().sum());
            [(x, height), (x + 1, height)]
        });
        let line = simplified(line);
        let (Some(first), Some(last)) = (line.first(), line.last()) else { continue };
        let outline: Vec<Point> = line.iter().copied().chain([(last.0, ground), (first.0, ground)]).collect();
        canvas.area(&outline, color(layer));
    }
}

fn color(layer: usize) -> RGBColor {
    LOOKS.get(layer).map_or(REST, |n| look(*n).color)
}

/// A line without the points that change nothing.
fn simplified(line: impl Iterator<Item = Point>) -> Vec<Point> {
    let mut kept: Vec<Point> = Vec::new();
    for point in line {
        if kept.last() == Some(&point) {
            continue;
        }
        if let [.., before, last] = kept[..]
            && ((before.1 == last.1 && last.1 == point.1) || (before.0 == last.0 && last.0 == point.0))
        {
            kept.pop();
        }
        kept.push(point);
    }
    kept
}
