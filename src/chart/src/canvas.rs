//! Drawing in pixels onto an SVG: lines with dashes, marks, hatched bars, and text whose width can be foreseen.

use super::Head;
use anyhow::{Context, Result, anyhow};
use plotters::prelude::{DrawingBackend, RGBColor, SVGBackend, TextStyle};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, IntoFont, ShapeStyle};

pub type Point = (i32, i32);

pub const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// Secondary text; still 5.9:1 on white.
pub const FAINT: RGBColor = RGBColor(0x60, 0x60, 0x60);
pub const GRID: RGBColor = RGBColor(0xE2, 0xE2, 0xE2);
pub const BAND: RGBColor = RGBColor(0xF6, 0xF6, 0xF6);
pub const WHITE: RGBColor = RGBColor(0xFF, 0xFF, 0xFF);

/// Font sizes in pixels.
pub const TITLE: i32 = 15;
pub const TEXT: i32 = 13;
pub const SMALL: i32 = 12;

/// The colours of Okabe and Ito, without the yellow that vanishes on white, those that differ most first.
const PALETTE: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0x00, 0x00, 0x00),
];
const DASHES: [&[i32]; 5] = [&[], &[9, 4], &[2, 4], &[12, 4, 2, 4], &[5, 3]];
const MARKS: [Marker; 6] = [Marker::Circle, Marker::Square, Marker::Triangle, Marker::Diamond, Marker::Wedge, Marker::Plus];
const HATCHES: [Hatch; 5] = [Hatch::None, Hatch::Rising, Hatch::Falling, Hatch::Upright, Hatch::Crossed];

/// Ink and paper follow the reader's light or dark, also where the picture is an image of a page; the colours of series stay.
const DARK: &str = "@media (prefers-color-scheme: dark) { [fill=\"#FFFFFF\"] { fill: #16191d } [fill=\"#222222\"], [fill=\"#000000\"] \
                    { fill: #e4e6e9 } [fill=\"#606060\"] { fill: #a4abb3 } [fill=\"#E2E2E2\"] { fill: #333940 } [fill=\"#F6F6F6\"] { fill: \
                    #20252b } [fill=\"#BBBBBB\"] { fill: #6b737c } [stroke=\"#FFFFFF\"] { stroke: #16191d } [stroke=\"#222222\"], \
                    [stroke=\"#000000\"] { stroke: #e4e6e9 } [stroke=\"#606060\"] { stroke: #a4abb3 } [stroke=\"#E2E2E2\"] { stroke: \
                    #333940 } [stroke=\"#F6F6F6\"] { stroke: #20252b } }";

/// The backend draws at whole units only; this many to a pixel keep slanted dashes straight.
const FINE: i32 = 4;

fn fine((x, y): Point) -> Point {
    (x * FINE, y * FINE)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    /// A triangle on its tip.
    Wedge,
    Plus,
    /// Out of memory; no series has it as its own.
    Cross,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hatch {
    None,
    Rising,
    Falling,
    Upright,
    Crossed,
}

/// How the n-th of several series looks: no two of the first thirty share colour, dash and mark, and a grey print still tells by
/// dash, mark or hatch.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    pub color: RGBColor,
    pub dash: &'static [i32],
    pub mark: Marker,
    pub hatch: Hatch,
}

pub fn look(n: usize) -> Look {
    Look {
        color: PALETTE[n % PALETTE.len()],
        dash: DASHES[n % DASHES.len()],
        mark: MARKS[n % MARKS.len()],
        hatch: HATCHES[n % HATCHES.len()],
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// Width of a text at a font size, on the wide side, since nobody knows the reader's font.
pub fn text_width(text: &str, size: i32) -> i32 {
    (text.chars().count() as f64 * 0.6 * f64::from(size)).ceil() as i32
}

/// A text cut to a width, with an ellipsis where something is missing: names of rows differ at their ends, and units stand there.
pub fn shortened(text: &str, size: i32, width: i32) -> String {
    if text_width(text, size) <= width {
        return text.to_string();
    }
    let fitting = (f64::from(width) / (0.6 * f64::from(size))) as usize;
    let (kept, all) = (fitting.saturating_sub(1), text.chars().count());
    let tail = kept * 2 / 5;
    text.chars().take(kept - tail).chain(['…']).chain(text.chars().skip(all - tail.min(all))).collect()
}

/// Breaks a text into lines that fit a width, and cuts words that do not; a number stays with its unit.
pub fn wrapped(text: &str, size: i32, width: i32) -> Vec<String> {
    const UNITS: [&str; 9] = ["B", "KiB", "MiB", "GiB", "TiB", "ms", "s", "µs", "%"];
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let is_unit = UNITS.contains(&word.trim_end_matches([',', '.', ';', ')']));
        match words.last_mut() {
            Some(number) if is_unit && number.ends_with(|c: char| c.is_ascii_digit()) => *number = format!("{number} {word}"),
            _ => words.push(word.to_string()),
        }
    }
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        let word = &shortened(&word, size, width);
        match lines.last_mut() {
            Some(line) if text_width(line, size) + text_width(word, size) + size <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.clone()),
        }
    }
    lines
}

/// Places for what has these widths, side by side between two edges and then in further rows: pixels from the left, and row.
pub fn flowed(widths: impl Iterator<Item = i32>, (from, to): (i32, i32), gap: i32) -> Vec<(i32, i32)> {
    let (mut x, mut row) = (from, 0);
    let place = |width: i32| {
        if x > from && x + width > to {
            (x, row) = (from, row + 1);
        }
        x += width + gap;
        (x - width - gap, row)
    };
    widths.map(place).collect()
}

pub struct Canvas<'a> {
    backend: SVGBackend<'a>,
    failure: Option<String>,
}

impl Canvas<'_> {
    fn note<E: std::fmt::Display>(&mut self, result: Result<(), E>) {
        if let Err(error) = result {
            self.failure.get_or_insert(error.to_string());
        }
    }

    pub fn line(&mut self, from: Point, to: Point, color: RGBColor, width: u32) {
        self.stroke(&[fine(from), fine(to)], color, width);
    }

    /// A line through points that are in the backend's units already.
    fn stroke(&mut self, points: &[Point], color: RGBColor, width: u32) {
        let style = ShapeStyle::from(&color).stroke_width(width * FINE as u32);
        let result = match points {
            [from, to] => self.backend.draw_line(*from, *to, &style),
            _ => self.backend.draw_path(points.iter().copied(), &style),
        };
        self.note(result);
    }

    /// A filled one.
    pub fn rectangle(&mut self, from: Point, to: Point, color: RGBColor) {
        let result = self.backend.draw_rect(fine(from), fine(to), &ShapeStyle::from(&color).filled(), true);
        self.note(result);
    }

    pub fn path(&mut self, points: &[Point], color: RGBColor, width: u32, dash: &[i32]) {
        let points: Vec<Point> = points.iter().copied().map(fine).collect();
        if dash.is_empty() {
            return self.stroke(&points, color, width);
        }
        let pattern: Vec<i32> = dash.iter().map(|length| length * FINE).collect();
        for (from, to) in dashes(&points, &pattern) {
            self.stroke(&[from, to], color, width);
        }
    }

    fn polygon(&mut self, at: Point, corners: &[Point], color: RGBColor) {
        let moved: Vec<Point> = corners.iter().map(|c| fine((at.0 + c.0, at.1 + c.1))).collect();
        let result = self.backend.fill_polygon(moved, &color.to_rgba());
        self.note(result);
    }

    /// A filled shape with its corners at these points.
    pub fn area(&mut self, outline: &[Point], color: RGBColor) {
        self.polygon((0, 0), outline, color);
    }

    /// A mark some 10 pixels wide, with a white rim so that neighbours stay apart.
    pub fn mark(&mut self, at: Point, mark: Marker, color: RGBColor) {
        match mark {
            Marker::Circle => {
                for (radius, color) in [(6, WHITE), (5, color)] {
                    let result =
                        self.backend.draw_circle(fine(at), (radius * FINE) as u32, &ShapeStyle::from(&color).filled(), true);
                    self.note(result);
                }
            }
            Marker::Cross => {
                for r in [-5, 5] {
                    self.line((at.0 - 5, at.1 - r), (at.0 + 5, at.1 + r), color, 3);
                }
            }
            Marker::Plus => {
                for (reach, width, color) in [(7, 6, WHITE), (6, 4, color)] {
                    self.line((at.0 - reach, at.1), (at.0 + reach, at.1), color, width);
                    self.line((at.0, at.1 - reach), (at.0, at.1 + reach), color, width);
                }
            }
            Marker::Square | Marker::Triangle | Marker::Diamond | Marker::Wedge => {
                for (rim, color) in [(1, WHITE), (0, color)] {
                    self.polygon(at, &corners(mark, rim), color);
                }
            }
        }
    }

    /// A bar with an outline in its colour; a hatched one is filled with stripes on white.
    pub fn bar(&mut self, from: Point, to: Point, color: RGBColor, hatch: Hatch) {
        self.rectangle(from, to, if hatch == Hatch::None { color } else { WHITE });
        for (a, b) in stripes(from, to, hatch) {
            self.line(a, b, color, 2);
        }
        // The backend's own outline has no width.
        self.path(&[from, (to.0, from.1), to, (from.0, to.1), from], color, 1, &[]);
    }

    /// Text with its vertical middle at `at`.
    pub fn text(&mut self, at: Point, text: &str, size: i32, color: RGBColor, anchor: Anchor) {
        self.styled(at, text, size, color, anchor, FontStyle::Normal);
    }

    pub fn bold(&mut self, at: Point, text: &str, size: i32, color: RGBColor, anchor: Anchor) {
        self.styled(at, text, size, color, anchor, FontStyle::Bold);
    }

    fn styled(&mut self, at: Point, text: &str, size: i32, color: RGBColor, anchor: Anchor, style: FontStyle) {
        let h_pos = match anchor {
            Anchor::Start => HPos::Left,
            Anchor::Middle => HPos::Center,
            Anchor::End => HPos::Right,
        };
        // The SVG backend writes a font size 1.24 times smaller than the one it is given.
        let font = ("sans-serif", f64::from(size * FINE) * 1.24).into_font().style(style);
        let style = TextStyle::from(font).color(&color).pos(Pos::new(h_pos, VPos::Center));
        let result = self.backend.draw_text(text, &style, fine(at));
        self.note(result);
    }
}

/// Draws a picture below its head, on white, so many pixels high.
pub fn picture(head: &Head, height: i32, draw: impl FnOnce(&mut Canvas)) -> Result<String> {
    let size = (head.width, height);
    // What a screen reader says.
    let title = format!("{} {}", head.title, head.subtitle);
    let mut svg = String::new();
    let backend = SVGBackend::with_string(&mut svg, ((size.0 * FINE) as u32, (size.1 * FINE) as u32));
    let mut canvas = Canvas { backend, failure: None };
    canvas.rectangle((0, 0), size, WHITE);
    head.draw(&mut canvas);
    draw(&mut canvas);
    let result = canvas.backend.present();
    canvas.note(result);
    let failure = canvas.failure.take();
    drop(canvas);
    if let Some(failure) = failure {
        return Err(anyhow!("drawing '{title}': {failure}"));
    }
    let drawn = svg.find(">\n").map(|end| &svg[end + 2..]).with_context(|| format!("drawing '{title}': no picture came out"))?;
    let escaped = title.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let (width, (fine_width, fine_height)) = (head.width, fine(size));
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {fine_width} {fine_height}\" \
         role=\"img\">\n<title>{escaped}</title>\n<style>{DARK}</style>\n{drawn}"
    ))
}

fn corners(mark: Marker, rim: i32) -> Vec<Point> {
    let r = 5 + rim;
    match mark {
        Marker::Triangle => vec![(0, -r - 1), (r + 1, r - 1), (-r - 1, r - 1)],
        Marker::Wedge => vec![(0, r + 1), (r + 1, 1 - r), (-r - 1, 1 - r)],
        Marker::Diamond => vec![(0, -r - 1), (r + 1, 0), (0, r + 1), (-r - 1, 0)],
        _ => vec![(-r, -r), (r, -r), (r, r), (-r, r)],
    }
}

/// The drawn pieces of a dashed path; the pattern runs on around corners.
fn dashes(points: &[Point], pattern: &[i32]) -> Vec<(Point, Point)> {
    let mut pieces = Vec::new();
    let (mut part, mut left) = (0, f64::from(pattern[0]));
    for pair in points.windows(2) {
        let (a, b) = ((f64::from(pair[0].0), f64::from(pair[0].1)), (f64::from(pair[1].0), f64::from(pair[1].1)));
        let length = ((b.0 - a.0).powi(2) + (b.1 - a.1).powi(2)).sqrt();
        let at = |t: f64| {
            let share = if length > 0.0 { t / length } else { 0.0 };
            ((a.0 + (b.0 - a.0) * share).round() as i32, (a.1 + (b.1 - a.1) * share).round() as i32)
        };
        let mut done = 0.0;
        while done < length {
            let step = left.min(length - done);
            if part % 2 == 0 {
                pieces.push((at(done), at(done + step)));
            }
            done += step;
            left -= step;
            if left <= 0.0 {
                part = (part + 1) % pattern.len();
                left = f64::from(pattern[part]);
            }
        }
    }
    pieces
}

/// The lines of a hatch within a box.
fn stripes(from: Point, to: Point, hatch: Hatch) -> Vec<(Point, Point)> {
    const STEP: i32 = 8;
    let ((left, top), (right, bottom)) = (from, to);
    let height = bottom - top;
    let steps = |start: i32, end: i32| (start..end).step_by(STEP as usize);
    // A diagonal that starts at x on the lower edge, cut off at the sides.
    let rising =
        |x: i32| ((x.max(left), bottom - (x.max(left) - x)), ((x + height).min(right), bottom - ((x + height).min(right) - x)));
    let mirrored = |(x, y): Point| (x, top + bottom - y);
    let diagonal = || steps(left - height + STEP, right).map(rising);
    match hatch {
        Hatch::None => Vec::new(),
        Hatch::Rising => diagonal().collect(),
        Hatch::Falling => diagonal().map(|(a, b)| (mirrored(a), mirrored(b))).collect(),
        Hatch::Upright => steps(left + STEP, right).map(|x| ((x, top), (x, bottom))).collect(),
        Hatch::Crossed => diagonal().flat_map(|(a, b)| [(a, b), (mirrored(a), mirrored(b))]).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_differ() {
        for n in 0..30 {
            for m in 0..n {
                let (a, b) = (look(n), look(m));
                assert!(a.color != b.color || a.dash != b.dash || a.mark != b.mark, "{n} and {m}");
            }
        }
    }
}
