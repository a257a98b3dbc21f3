//! Dots with ranges or intervals on a linear axis: a row for each thing, a mark for each of several series.

use super::{Anchor, BAND, Canvas, EDGE, GRID, Head, INK, NARROW, SMALL, Scale, TEXT, WHITE};
use super::{flowed, look, picture, shortened, text_width, wrapped};
use anyhow::Result;
use plotters::style::RGBColor;

const LANE: i32 = 20;
const GAP: i32 = 10;
const LEGEND_ROW: i32 = 20;
/// Widest that the names of rows may be beside their dots.
const NAMES: i32 = 400;

/// One figure with its range.
#[derive(Debug, Clone, PartialEq)]
pub struct Dot {
    /// Place of its series among [`Ranges::series`].
    pub series: usize,
    pub middle: f64,
    pub low: f64,
    pub high: f64,
    /// The figure in words.
    pub text: String,
}

#[derive(Debug, Clone)]
pub struct Row {
    pub name: String,
    /// At least one.
    pub dots: Vec<Dot>,
}

/// A linear axis.
#[derive(Debug, Clone)]
pub struct RangeAxis {
    pub title: String,
    /// Writes a round value.
    pub tick: fn(f64) -> String,
    /// A line that figures are put against, with its name.
    pub reference: f64,
}

pub struct Ranges<'a> {
    pub head: &'a Head,
    pub axis: RangeAxis,
    pub series: Vec<String>,
    pub rows: Vec<Row>,
}

/// Draws rows of dots; on a phone names stand above their dots.
pub fn ranges(chart: &Ranges) -> Result<String> {
    let (head, narrow) = (chart.head, chart.head.width <= NARROW);
    let right = head.width - EDGE;
    let names = chart.rows.iter().map(|row| text_width(&row.name, TEXT)).max().unwrap_or(0).min(NAMES);
    let left = if narrow { EDGE } else { EDGE + names + 14 };
    // Where there is only one series it needs no name.
    let series = if chart.series.len() > 1 { chart.series.as_slice() } else { &[] };
    let legend = flowed(series.iter().map(|name| 20 + text_width(name, TEXT)), (EDGE, right), 18);
    let top = head.bottom() + 26 + legend.last().map_or(0, |(_, row)| row + 1) * LEGEND_ROW;
    let heights: Vec<i32> = chart.rows.iter().map(|row| row_height(row, narrow)).collect();
    let bottom = top + heights.iter().sum::<i32>();
    picture(head, bottom + 42, |canvas| {
        for (n, ((x, row), name)) in legend.iter().zip(series).enumerate() {
            let (y, look) = (head.bottom() + 8 + row * LEGEND_ROW, look(n));
            canvas.mark((x + 6, y), look.mark, look.color);
            canvas.text((x + 20, y), name, TEXT, INK, Anchor::Start);
        }
        let frame = RangeFrame::new(chart, (left, right));
        let mut row_top = top;
        for height in heights.chunks(2) {
            canvas.rectangle((EDGE, row_top), (right, row_top + height[0]), BAND);
            row_top += height.iter().sum::<i32>();
        }
        frame.draw_axis(canvas, &chart.axis, (top, bottom));
        let mut row_top = top;
        for (n, (row, height)) in chart.rows.iter().zip(heights).enumerate() {
            let (ground, name) =
                (if n % 2 == 0 { BAND } else { WHITE }, shortened(&row.name, TEXT, if narrow { right - EDGE - 8 } else { names }));
            let middle = if narrow { row_top + LANE / 2 } else { row_top + height / 2 };
            canvas.rectangle((EDGE + 2, middle - 8), (EDGE + 4 + text_width(&name, TEXT), middle + 8), ground);
            canvas.text((EDGE + 4, middle), &name, TEXT, INK, Anchor::Start);
            frame.draw_dots(canvas, &row.dots, (row_top, height), narrow, ground);
            row_top += height;
        }
    })
}

/// A lane for each dot, and on a phone one for the name.
fn row_height(row: &Row, narrow: bool) -> i32 {
    let lanes = row.dots.len() as i32;
    if narrow { (lanes + 1) * LANE + GAP / 2 } else { lanes * LANE + GAP }
}

struct RangeFrame {
    axis: Scale,
    /// Where the chart ends.
    end: i32,
}

impl RangeFrame {
    fn new(chart: &Ranges, (from, to): (i32, i32)) -> RangeFrame {
        let dots = || chart.rows.iter().flat_map(|row| &row.dots);
        let values = dots().flat_map(|dot| [dot.low, dot.high]).chain([chart.axis.reference]).filter(|v| v.is_finite());
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let room = ((high - low) * 0.06).max(high.abs().max(1e-9) * 0.02);
        let mut frame = RangeFrame { axis: Scale::linear(low - room, high + room, from, to), end: to };
        // Figures stand right of their ranges, or left: the axis ends early where neither has room.
        let fits = |frame: &RangeFrame, dot: &Dot| {
            let width = text_width(&dot.text, SMALL) + 10;
            frame.end - frame.axis.at(dot.high) >= width || frame.axis.at(dot.low) - from >= width
        };
        while frame.axis.to - from > (to - from) / 2 && !dots().all(|dot| fits(&frame, dot)) {
            frame.axis.to -= 8;
        }
        frame
    }

    fn draw_axis(&self, canvas: &mut Canvas, axis: &RangeAxis, (top, bottom): (i32, i32)) {
        let Scale { from, to, .. } = self.axis;
        let mut free = i32::MIN;
        for value in self.axis.linear_ticks(((to - from) / 55).clamp(2, 8)) {
            let (x, label) = (self.axis.at(value), (axis.tick)(value));
            canvas.line((x, top), (x, bottom), GRID, 1);
            let half = text_width(&label, SMALL) / 2;
            let middle = x.clamp(from + half - 8, to - half + 8);
            if middle - half > free {
                canvas.text((middle, bottom + 12), &label, SMALL, INK, Anchor::Middle);
                free = middle + half + 6;
            }
        }
        let at = self.axis.at(axis.reference);
        canvas.path(&[(at, top), (at, bottom)], INK, 2, &[5, 3]);
        let title = wrapped(&axis.title, TEXT, self.end - from).into_iter().next().unwrap_or_default();
        canvas.text((from, top - 12), &title, TEXT, INK, Anchor::Start);
    }

    fn draw_dots(&self, canvas: &mut Canvas, dots: &[Dot], (top, height): (i32, i32), narrow: bool, ground: RGBColor) {
        let first = if narrow { top + LANE } else { top + (height - dots.len() as i32 * LANE) / 2 };
        for (n, dot) in dots.iter().enumerate() {
            let (y, look) = (first + n as i32 * LANE + LANE / 2, look(dot.series));
            let (low, high) = (self.axis.at(dot.low), self.axis.at(dot.high));
            if high - low > 2 {
                canvas.line((low, y), (high, y), look.color, 3);
                for x in [low, high] {
                    canvas.line((x, y - 4), (x, y + 4), look.color, 2);
                }
            }
            canvas.mark((self.axis.at(dot.middle), y), look.mark, look.color);
            let width = text_width(&dot.text, SMALL);
            // Beside the range, on the side that has room.
            let (free_right, free_left) = (self.end - high - 10, low - self.axis.from - 10);
            let (start, room) = if free_right >= width || free_right >= free_left {
                (high + 10, free_right)
            } else {
                (low - 10 - width.min(free_left), free_left)
            };
            let text = shortened(&dot.text, SMALL, room);
            // On the row's ground, since the reference line may run through it.
            canvas.rectangle((start - 3, y - 8), (start + text_width(&text, SMALL) + 6, y + 8), ground);
            canvas.text((start, y), &text, SMALL, INK, Anchor::Start);
        }
    }
}
