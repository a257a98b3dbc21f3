//! A metric over a numeric factor, both axes logarithmic.

use super::{PlotView, distinct, grouped, levels};
use anyhow::Result;
use base::units::tick;
use chart::{
    Anchor, BAND, Canvas, EDGE, FAINT, GRID, INK, Look, Marker, NARROW, Point, SMALL, Scale, TEXT, look, picture, shortened,
    text_width,
};
use record::protocol::FigureStyle;

const PLOT_HEIGHT: i32 = 380;
/// Height of one of two panels, and what its titles and the room around it take.
const PANEL_HEIGHT: i32 = 260;
const PANEL_ROOM: i32 = 110;
const BETWEEN: i32 = 24;
/// More lines of shares than this lie on one another at 0 and 100 %.
const MOST_SHARES: usize = 4;
const BAND_ROW: i32 = 18;
const LABEL_STEP: i32 = 20;
/// Widest that the names of lines may be.
const LABELS: i32 = 270;
const OUT_OF_MEMORY: &str = "out of memory";

struct Series {
    label: String,
    look: Look,
    points: Vec<(f64, f64)>,
    /// Where the line would have gone on, had the memory sufficed.
    out_of_memory: Vec<f64>,
}

pub fn lines(view: &PlotView, x: &str, series: &[&str]) -> Result<Option<String>> {
    let view = &view.only(|grid| !grid.levels_of(x).is_empty());
    let factors = view.distinguishing_factors(series, &[x]);
    let all = collect(view, x, &factors);
    if all.iter().all(|s| s.points.is_empty()) {
        return Ok(None);
    }
    if let Some((first, rest)) = factors.split_first()
        && all.len() > MOST_SHARES
        && is_share(view)
    {
        let levels = distinct(view.cells.iter().map(|cell| levels(cell, &[first])));
        if levels.len() == 2 {
            return panels(view, x, (first, &levels), rest).map(Some);
        }
    }
    LineFrame::new(view, &all).draw(view, x, &factors, &all).map(Some)
}

/// Two panels, side by side or on a phone one below the other, for lines that would hide each other in one.
fn panels(view: &PlotView, x: &str, (factor, split): (&str, &[String]), rest: &[&str]) -> Result<String> {
    let (width, narrow) = (view.head.width, view.head.width <= NARROW);
    let of_level = |level: &String| {
        let cells = view.cells.iter().filter(|cell| cell.get(factor) == Some(level.as_str())).cloned().collect();
        collect(&PlotView { cells, head: view.head.clone(), ..*view }, x, rest)
    };
    let mut drawn: Vec<Vec<Series>> = split.iter().map(of_level).collect();
    // A line looks the same in both panels.
    let labels = distinct(drawn.iter().flatten().map(|line| line.label.clone()));
    for line in drawn.iter_mut().flatten() {
        line.look = look(labels.iter().position(|label| *label == line.label).unwrap_or(0));
    }
    let across = if narrow { 1 } else { split.len() as i32 };
    let each = (width - 2 * EDGE - (across - 1) * BETWEEN) / across;
    let top = view.head.bottom() + 2 * LABEL_STEP + TEXT;
    // Each panel has its own numbers along the axis; shares are on one scale anyway.
    let frames: Vec<LineFrame> = (0..)
        .zip(&drawn)
        .map(|(n, series)| {
            let from = EDGE + if narrow { 0 } else { n * (each + BETWEEN) };
            let top = top + if narrow { n * (PANEL_HEIGHT + PANEL_ROOM) } else { 0 };
            LineFrame::within(view, series, (from, from + each), (top, PANEL_HEIGHT), 0)
        })
        .collect();
    let below = frames.last().map_or(top, |frame| frame.bottom) + 66;
    let named = labels.iter().filter_map(|label| drawn.iter().flatten().find(|line| line.label == *label));
    let named: Vec<&Series> = named.collect();
    let height = below + (named.len() as i32 + 2) * LABEL_STEP;
    picture(&view.head, height, |canvas| {
        for ((frame, series), level) in frames.iter().zip(&drawn).zip(split) {
            let name = format!("{factor} = {level}");
            canvas.bold((frame.left, frame.band - 14 - LABEL_STEP), &name, TEXT, INK, Anchor::Start);
            frame.draw_y_title(canvas, view, frame.left);
            frame.draw_axes(canvas, &view.factor_title(x), series);
            frame.draw_lines(canvas, series);
        }
        draw_legend(canvas, (below, width), &rest.join(" · "), &named, false);
    })
}

fn is_share(view: &PlotView) -> bool {
    view.metric.style == FigureStyle::Share
}

fn collect(view: &PlotView, x: &str, factors: &[&str]) -> Vec<Series> {
    let at = |cell: &record::protocol::PlainCell| cell.get(x).and_then(|level| level.parse::<f64>().ok());
    let keyed = view.cells.iter().filter_map(|cell| Some((levels(cell, factors), (at(cell)?, cell))));
    let is_share = is_share(view);
    let groups = grouped(keyed).into_iter().enumerate();
    let series = groups.map(|(n, (label, mut cells))| {
        cells.sort_by(|a, b| a.0.total_cmp(&b.0));
        let label = shortened(&label, TEXT, LABELS);
        let points = cells.iter().filter_map(|(x, cell)| Some((*x, view.value(cell).filter(|v| *v > 0.0 || is_share)?))).collect();
        let lost = cells.iter().filter(|(_, cell)| view.value(cell).is_none() && view.is_out_of_memory(cell));
        Series { label, look: look(n), points, out_of_memory: lost.map(|(x, _)| *x).collect() }
    });
    series.filter(|s| !s.points.is_empty() || !s.out_of_memory.is_empty()).collect()
}

struct LineFrame {
    width: i32,
    left: i32,
    right: i32,
    /// Upper edge of the rows of crosses, and of the axis below them.
    band: i32,
    top: i32,
    bottom: i32,
    x: Scale,
    y: Scale,
    y_ticks: Vec<(i32, String)>,
}

impl LineFrame {
    fn new(view: &PlotView, series: &[Series]) -> LineFrame {
        let band = view.head.bottom() + TEXT + 16;
        let lost = series.iter().filter(|s| !s.out_of_memory.is_empty()).count() as i32;
        let labels = series.iter().map(|s| text_width(&s.label, TEXT)).chain((lost > 0).then(|| text_width(OUT_OF_MEMORY, TEXT)));
        let (width, narrow) = (view.head.width, view.head.width <= NARROW);
        let right = if narrow { width - EDGE } else { width - EDGE - 52 - labels.max().unwrap_or(0) };
        LineFrame::within(view, series, (EDGE, right), (band, PLOT_HEIGHT), lost)
    }

    /// A frame between two edges, below `band`, with room for the crosses of so many lines.
    fn within(view: &PlotView, series: &[Series], (from, right): (i32, i32), (band, height): (i32, i32), lost: i32) -> LineFrame {
        let top = band + if lost > 0 { lost * BAND_ROW + 8 } else { 0 };
        let bottom = top + height;
        let (y, y_ticks) = if is_share(view) {
            let y = Scale::linear(0.0, 1.04, bottom, top);
            (y, (0..=5).map(|fifths| (y.at(f64::from(fifths) / 5.0), format!("{} %", fifths * 20))).collect())
        } else {
            let y = Scale::over(series.iter().flat_map(|s| s.points.iter().map(|p| p.1)), 1.2, bottom, top);
            (y, y.ticks(view.metric.unit))
        };
        let left = from + 12 + y_ticks.iter().map(|(_, label)| text_width(label, SMALL)).max().unwrap_or(0);
        let xs = series.iter().flat_map(|s| s.points.iter().map(|p| p.0).chain(s.out_of_memory.iter().copied()));
        let x = Scale::over(xs, 1.5, left, right);
        LineFrame { width: view.head.width, left, right, band, top, bottom, x, y, y_ticks }
    }

    fn draw_y_title(&self, canvas: &mut Canvas, view: &PlotView, start: i32) {
        let title = if is_share(view) { view.label() } else { format!("{} (logarithmic)", view.label()) };
        canvas.text((start, self.band - 14), &shortened(&title, TEXT, self.right - start), TEXT, INK, Anchor::Start);
    }

    fn draw(&self, view: &PlotView, x: &str, factors: &[&str], series: &[Series]) -> Result<String> {
        let legend = if self.is_narrow() { (series.len() as i32 + 2) * LABEL_STEP } else { 0 };
        picture(&view.head, self.bottom + 60 + legend, |canvas| {
            let start = if self.is_narrow() { EDGE } else { self.left };
            self.draw_y_title(canvas, view, start);
            self.draw_axes(canvas, &view.factor_title(x), series);
            self.draw_lines(canvas, series);
            self.draw_lost(canvas, series);
            match self.is_narrow() {
                true => {
                    let all: Vec<&Series> = series.iter().collect();
                    draw_legend(canvas, (self.bottom + 64, self.width), &factors.join(" · "), &all, self.top > self.band);
                }
                false => self.draw_labels(canvas, &factors.join(" · "), series),
            }
        })
    }

    fn draw_lines(&self, canvas: &mut Canvas, series: &[Series]) {
        for s in series {
            let path: Vec<Point> = s.points.iter().map(|(x, y)| (self.x.at(*x), self.y.at(*y))).collect();
            canvas.path(&path, s.look.color, 2, s.look.dash);
        }
        for s in series {
            for (x, y) in &s.points {
                canvas.mark((self.x.at(*x), self.y.at(*y)), s.look.mark, s.look.color);
            }
        }
    }

    fn draw_axes(&self, canvas: &mut Canvas, x_title: &str, series: &[Series]) {
        for (y, label) in &self.y_ticks {
            canvas.line((self.left, *y), (self.right, *y), GRID, 1);
            canvas.text((self.left - 8, *y), label, SMALL, INK, Anchor::End);
        }
        let mut xs: Vec<f64> = series.iter().flat_map(|s| s.points.iter().map(|p| p.0).chain(s.out_of_memory.clone())).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let mut free = 0;
        for x in xs {
            let (at, label) = (self.x.at(x), tick(x, "1"));
            canvas.line((at, self.top), (at, self.bottom), GRID, 1);
            let half = text_width(&label, SMALL) / 2 + 3;
            if at - half >= free {
                canvas.text((at, self.bottom + 14), &label, SMALL, INK, Anchor::Middle);
                free = at + half;
            }
        }
        canvas.line((self.left, self.bottom), (self.right, self.bottom), FAINT, 1);
        canvas.line((self.left, self.top), (self.left, self.bottom), FAINT, 1);
        let is_whole = self.right - self.left > self.width / 2 || self.is_narrow();
        let room = if is_whole { self.width - 2 * EDGE } else { self.right - self.left };
        let title = shortened(&format!("{x_title} (logarithmic)"), TEXT, room);
        let middle = ((self.left + self.right) / 2).min(self.width - EDGE - text_width(&title, TEXT) / 2);
        canvas.text((middle, self.bottom + 38), &title, TEXT, INK, Anchor::Middle);
    }

    /// Crosses above the axis, a row for each line that ran out of memory.
    fn draw_lost(&self, canvas: &mut Canvas, series: &[Series]) {
        if self.top > self.band {
            canvas.rectangle((self.left, self.band), (self.right, self.top - 4), BAND);
        }
        for (row, s) in series.iter().filter(|s| !s.out_of_memory.is_empty()).enumerate() {
            let y = self.band + 2 + BAND_ROW / 2 + row as i32 * BAND_ROW;
            for x in &s.out_of_memory {
                canvas.mark((self.x.at(*x), y), Marker::Cross, s.look.color);
            }
        }
    }

    fn is_narrow(&self) -> bool {
        self.width <= NARROW
    }

    /// The name of each line beside its end, moved apart where ends are close.
    fn draw_labels(&self, canvas: &mut Canvas, heading: &str, series: &[Series]) {
        let end = |s: &Series| s.points.last().map_or(self.top, |p| self.y.at(p.1));
        let mut order: Vec<&Series> = series.iter().filter(|s| !s.label.is_empty()).collect();
        order.sort_by_key(|s| end(s));
        let lost = self.top > self.band;
        let first = if lost { self.top + LABEL_STEP } else { self.top };
        let heights = spread(&order.iter().map(|s| end(s)).collect::<Vec<_>>(), first, self.bottom);
        let x = self.right + 12;
        let start = (x + 36).min(self.width - EDGE - text_width(heading, SMALL));
        canvas.text((start, self.band - 14), heading, SMALL, FAINT, Anchor::Start);
        for (s, y) in order.iter().zip(heights) {
            draw_key(canvas, (x, y), Some(s.look), &s.label);
        }
        if lost {
            draw_key(canvas, (x, (self.band + self.top) / 2 - 2), None, OUT_OF_MEMORY);
        }
    }
}

/// The names of the lines below the axis, where beside it is no room.
fn draw_legend(canvas: &mut Canvas, (top, width): (i32, i32), heading: &str, series: &[&Series], lost: bool) {
    let mut y = top;
    canvas.text((EDGE, y), &shortened(heading, SMALL, width - 2 * EDGE), SMALL, FAINT, Anchor::Start);
    for s in series.iter().filter(|s| !s.label.is_empty()) {
        y += LABEL_STEP;
        draw_key(canvas, (EDGE, y), Some(s.look), &shortened(&s.label, TEXT, width - 2 * EDGE - 36));
    }
    if lost {
        draw_key(canvas, (EDGE, y + LABEL_STEP), None, OUT_OF_MEMORY);
    }
}

/// A line's look with its name; without one it is the cross of what ran out of memory.
fn draw_key(canvas: &mut Canvas, (x, y): Point, look: Option<Look>, name: &str) {
    match look {
        Some(look) => {
            canvas.path(&[(x, y), (x + 28, y)], look.color, 2, look.dash);
            canvas.mark((x + 14, y), look.mark, look.color);
        }
        None => canvas.mark((x + 14, y), Marker::Cross, FAINT),
    }
    canvas.text((x + 36, y), name, TEXT, INK, Anchor::Start);
}

/// Positions at least [`LABEL_STEP`] apart, in order, near those wished for; they leave the range only where it is too small.
fn spread(wished: &[i32], low: i32, high: i32) -> Vec<i32> {
    let mut at: Vec<i32> = Vec::new();
    for y in wished {
        let free = at.last().map_or(low, |before| before + LABEL_STEP);
        at.push((*y).max(free));
    }
    let mut limit = high;
    for y in at.iter_mut().rev() {
        *y = (*y).min(limit);
        limit = *y - LABEL_STEP;
    }
    at
}
