//! A picture of memory over a step's allocations.

use crate::torch::{Categories, Category, Phase, Timeline};
use crate::units::{Bytes, tick};
use anyhow::{Result, anyhow, ensure};
use plotters::prelude::{DrawingBackend, RGBColor, SVGBackend, TextStyle};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, ShapeStyle};

/// Bottom to top: what stays lies below what comes and goes. The colours are Okabe's and Ito's.
const STACK: [(Category, RGBColor); 6] = [
    (Category::Parameters, RGBColor(0x00, 0x72, 0xB2)),
    (Category::OptimizerState, RGBColor(0x56, 0xB4, 0xE9)),
    (Category::Data, RGBColor(0xCC, 0x79, 0xA7)),
    (Category::Gradients, RGBColor(0x00, 0x9E, 0x73)),
    (Category::Activations, RGBColor(0xE6, 0x9F, 0x00)),
    (Category::Temporaries, RGBColor(0xD5, 0x5E, 0x00)),
];

const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const FAINT: RGBColor = RGBColor(0x60, 0x60, 0x60);
const GRID: RGBColor = RGBColor(0xE2, 0xE2, 0xE2);
const BAND: RGBColor = RGBColor(0xF0, 0xF0, 0xF0);
const WHITE: RGBColor = RGBColor(0xFF, 0xFF, 0xFF);

const SIZE: (i32, i32) = (1080, 520);
/// The plot itself, in pixels from the top left corner.
const LEFT: i32 = 100;
const RIGHT: i32 = 1060;
const TOP: i32 = 96;
const BOTTOM: i32 = 436;
const TITLE: i32 = 15;
const TEXT: i32 = 13;
const SMALL: i32 = 12;

type Point = (i32, i32);

/// Draws the bytes of a timeline by category over its allocations and frees, as an SVG document.
///
/// # Errors
/// Nothing was allocated.
pub fn draw(timeline: &Timeline, title: &str) -> Result<String> {
    let events = shown(timeline);
    ensure!(events > 0, "there is nothing to draw: no memory was allocated");
    let columns = columns(timeline, events);
    let top = columns.iter().map(Categories::total).max().unwrap_or(0).max(1);
    let mut svg = String::new();
    let mut canvas = Canvas(SVGBackend::with_string(&mut svg, (SIZE.0 as u32, SIZE.1 as u32)));
    canvas.rectangle((0, 0), SIZE, WHITE)?;
    canvas.text(title, (20, 24), TITLE, INK, HPos::Left)?;
    let x = |event: usize| LEFT + (event as f64 / events as f64 * f64::from(RIGHT - LEFT)).round() as i32;
    // Room above the peak for its name.
    let ceiling = top as f64 * 1.2;
    let y = |bytes: i64| BOTTOM - (bytes as f64 / ceiling * f64::from(BOTTOM - TOP)).round() as i32;
    phases(&mut canvas, timeline, events, &x)?;
    let step = step(ceiling);
    for n in 0..=(ceiling / step) as i64 {
        let bytes = (n as f64 * step) as i64;
        canvas.line((LEFT, y(bytes)), (RIGHT, y(bytes)), GRID)?;
        canvas.text(&tick(bytes as f64, "B"), (LEFT - 8, y(bytes)), SMALL, FAINT, HPos::Right)?;
    }
    stack(&mut canvas, &columns, &y)?;
    for mark in timeline.marks.iter().filter(|mark| mark.events < events) {
        canvas.line((x(mark.events), TOP), (x(mark.events), BOTTOM), FAINT)?;
    }
    canvas.line((LEFT, TOP), (LEFT, BOTTOM), INK)?;
    canvas.line((LEFT, BOTTOM), (RIGHT, BOTTOM), INK)?;
    for part in 0..=4 {
        let event = events * part / 4;
        canvas.text(&event.to_string(), (x(event), BOTTOM + 14), SMALL, FAINT, HPos::Center)?;
    }
    canvas.text("allocations and frees so far", ((LEFT + RIGHT) / 2, BOTTOM + 34), TEXT, INK, HPos::Center)?;
    canvas.text("bytes that tensors asked for", (20, TOP - 16), TEXT, INK, HPos::Left)?;
    if let Some(peak) = timeline.peak().map(|peak| peak.event) {
        let (iteration, phase) = timeline.at(peak).unwrap_or((0, Phase::Load));
        let place = match timeline.at(peak) {
            None => "where memory ran out".to_string(),
            Some(_) if iteration == 0 => "in load".to_string(),
            Some(_) => format!("in {phase} of iteration {iteration}"),
        };
        let name = format!("peak: {}, {place}", Bytes(top.unsigned_abs()));
        let half = (name.chars().count() as f64 * 0.26 * f64::from(TEXT)).ceil() as i32;
        let (at, height) = (x(peak + 1), y(top));
        let middle = at.clamp(LEFT + half + 4, RIGHT - half - 4);
        canvas.rectangle((middle - half - 4, height - 25), (middle + half + 4, height - 8), WHITE)?;
        canvas.text(&name, (middle, height - 16), TEXT, INK, HPos::Center)?;
        canvas.dot((at, height))?;
    }
    let mut left = LEFT;
    for (category, color) in STACK {
        canvas.rectangle((left, SIZE.1 - 32), (left + 14, SIZE.1 - 18), color)?;
        canvas.text(category.name(), (left + 20, SIZE.1 - 25), TEXT, INK, HPos::Left)?;
        left += 150;
    }
    canvas.present()?;
    drop(canvas);
    Ok(svg)
}

/// Events that the picture shows: not the fall to nothing after memory has run out.
fn shown(timeline: &Timeline) -> usize {
    let behind = timeline.marks.last().map_or(0, |mark| mark.events);
    timeline.events.iter().rposition(|event| !event.freed).map_or(0, |at| at + 1).max(behind)
}

/// For each pixel across, the categories at the moment of its events at which most bytes live, so that no peak is lost.
fn columns(timeline: &Timeline, events: usize) -> Vec<Categories> {
    let width = (RIGHT - LEFT) as usize;
    let mut columns: Vec<Option<Categories>> = vec![None; width];
    for moment in timeline.moments().take(events) {
        let column = &mut columns[(moment.event * width / events).min(width - 1)];
        if column.is_none_or(|most| moment.live.total() > most.total()) {
            *column = Some(moment.live);
        }
    }
    // Fewer events than pixels: the bytes stay until the next.
    let mut last = Categories::default();
    let fill = |column: Option<Categories>| {
        last = column.unwrap_or(last);
        last
    };
    columns.into_iter().map(fill).collect()
}

/// The stacked areas, the lowest first.
fn stack(canvas: &mut Canvas, columns: &[Categories], y: &dyn Fn(i64) -> i32) -> Result<()> {
    let mut below = vec![0; columns.len()];
    for (category, color) in STACK {
        let mut upper: Vec<Point> = Vec::with_capacity(2 * columns.len());
        let mut lower: Vec<Point> = Vec::with_capacity(2 * columns.len());
        for (at, (categories, base)) in columns.iter().zip(&mut below).enumerate() {
            let (left, right) = (LEFT + at as i32, LEFT + at as i32 + 1);
            lower.extend([(left, y(*base)), (right, y(*base))]);
            let mut categories = *categories;
            *base += *category.of(&mut categories);
            upper.extend([(left, y(*base)), (right, y(*base))]);
        }
        if upper != lower {
            let outline: Vec<Point> = simplified(upper).into_iter().chain(simplified(lower).into_iter().rev()).collect();
            canvas.area(&outline, color)?;
        }
    }
    Ok(())
}

/// A line without the points in the middle of its level parts.
fn simplified(line: Vec<Point>) -> Vec<Point> {
    let mut kept: Vec<Point> = Vec::new();
    for point in line {
        if let [.., before, last] = kept[..]
            && before.1 == last.1
            && last.1 == point.1
        {
            kept.pop();
        }
        kept.push(point);
    }
    kept
}

/// Phases as bands behind the plot, with names where there is room for them.
fn phases(canvas: &mut Canvas, timeline: &Timeline, events: usize, x: &dyn Fn(usize) -> i32) -> Result<()> {
    let mut from = 0;
    let mut iterations: Vec<(u32, i32, i32)> = Vec::new();
    for (n, mark) in timeline.marks.iter().enumerate() {
        let (left, right) = (x(from), x(mark.events));
        if n % 2 == 0 {
            canvas.rectangle((left, TOP), (right, BOTTOM), BAND)?;
        }
        let name = mark.phase.to_string();
        if name.chars().count() as i32 * 7 + 4 <= right - left {
            canvas.text(&name, ((left + right) / 2, TOP + 10), SMALL, FAINT, HPos::Center)?;
        }
        match iterations.last_mut() {
            Some(last) if last.0 == mark.iteration => last.2 = right,
            _ => iterations.push((mark.iteration, left, right)),
        }
        from = mark.events;
    }
    if from < events && timeline.marks.last().is_none_or(|mark| mark.events < events) {
        iterations.push((u32::MAX, x(from), x(events)));
    }
    for (iteration, left, right) in iterations.into_iter().filter(|(iteration, ..)| *iteration > 0) {
        let name = if iteration == u32::MAX { "memory runs out".to_string() } else { format!("iteration {iteration}") };
        canvas.line((left + 1, TOP - 8), (right - 1, TOP - 8), FAINT)?;
        let half = name.chars().count() as i32 * 4;
        canvas.text(&name, (((left + right) / 2).min(RIGHT - half), TOP - 18), SMALL, FAINT, HPos::Center)?;
    }
    Ok(())
}

/// Distance of the axis's ticks: a power of two, so that they are round in binary units, with at most eight to the top.
fn step(ceiling: f64) -> f64 {
    (ceiling / 8.0).log2().ceil().exp2().max(1.0)
}

struct Canvas<'a>(SVGBackend<'a>);

impl Canvas<'_> {
    fn rectangle(&mut self, from: Point, to: Point, color: RGBColor) -> Result<()> {
        self.0.draw_rect(from, to, &ShapeStyle::from(&color).filled(), true).map_err(failed)
    }

    fn line(&mut self, from: Point, to: Point, color: RGBColor) -> Result<()> {
        self.0.draw_line(from, to, &color.stroke_width(1)).map_err(failed)
    }

    fn area(&mut self, outline: &[Point], color: RGBColor) -> Result<()> {
        self.0.fill_polygon(outline.iter().copied(), &color).map_err(failed)
    }

    fn dot(&mut self, at: Point) -> Result<()> {
        self.0.draw_circle(at, 5, &ShapeStyle::from(&WHITE).filled(), true).map_err(failed)?;
        self.0.draw_circle(at, 4, &ShapeStyle::from(&INK).filled(), true).map_err(failed)
    }

    fn text(&mut self, text: &str, at: Point, size: i32, color: RGBColor, side: HPos) -> Result<()> {
        let style = TextStyle::from(("sans-serif", size).into_font()).color(&color).pos(Pos::new(side, VPos::Center));
        self.0.draw_text(text, &style, at).map_err(failed)
    }

    fn present(&mut self) -> Result<()> {
        self.0.present().map_err(failed)
    }
}

fn failed(error: impl std::error::Error) -> anyhow::Error {
    anyhow!("drawing a timeline: {error}")
}
