//! Charts as SVG documents: drawing in pixels, axes, and the kinds of chart that more than one part of the lab draws. Each is a pure
//! function of its data, so that the same figures give the same bytes.

mod area;
mod bars;
mod canvas;
mod ranges;
mod scale;

pub use area::{AreaPlot, Areas, MemoryCurve, Panel, PhaseBand, areas};
pub use bars::{Bar, bars};
pub use canvas::{
    Anchor, BAND, Canvas, FAINT, GRID, Hatch, INK, Look, Marker, Point, SMALL, TEXT, TITLE, WHITE, flowed, look, picture,
    shortened, text_width, wrapped,
};
pub use ranges::{Dot, RangeAxis, Ranges, Row, ranges};
pub use scale::Scale;

/// Width of a chart on a page, and on a phone, in pixels.
pub const WIDE: i32 = 860;
pub const NARROW: i32 = 390;
/// Room between a chart's edge and what it shows.
pub const EDGE: i32 = 16;

/// Title and subtitle, at the top of every chart.
#[derive(Debug, Clone)]
pub struct Head {
    pub title: String,
    pub subtitle: String,
    /// Width of the whole chart in pixels.
    pub width: i32,
}

impl Head {
    pub fn new(title: &str, subtitle: &str, width: i32) -> Head {
        Head { title: title.trim_end_matches('.').to_string(), subtitle: subtitle.to_string(), width }
    }

    fn title_lines(&self) -> Vec<String> {
        wrapped(&self.title, TITLE, self.width - 2 * EDGE)
    }

    fn subtitle_lines(&self) -> Vec<String> {
        wrapped(&self.subtitle, SMALL, self.width - 2 * EDGE)
    }

    /// The first free pixel below.
    pub fn bottom(&self) -> i32 {
        EDGE + self.title_lines().len() as i32 * (TITLE + 5) + self.subtitle_lines().len() as i32 * (SMALL + 4) + 10
    }

    fn draw(&self, canvas: &mut Canvas) {
        let mut y = EDGE + TITLE / 2;
        for line in self.title_lines() {
            canvas.bold((EDGE, y), &line, TITLE, INK, Anchor::Start);
            y += TITLE + 5;
        }
        for line in self.subtitle_lines() {
            canvas.text((EDGE, y), &line, SMALL, FAINT, Anchor::Start);
            y += SMALL + 4;
        }
    }
}
