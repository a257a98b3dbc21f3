//! Bytes as bars, one below the other.

use super::{Anchor, EDGE, FAINT, GRID, Hatch, Head, INK, SMALL, Scale, TEXT, look, picture, shortened, text_width};
use anyhow::Result;
use base::units::tick;

const LINE: i32 = 26;
/// The most that names may take of the width.
const LABELS: i32 = 430;
const FIGURES: i32 = 180;

#[derive(Debug, Clone)]
pub struct Bar {
    pub name: String,
    pub bytes: u64,
    /// What stands right of it.
    pub figures: String,
    /// Which of the colours.
    pub look: usize,
    pub is_hatched: bool,
}

/// Draws them, and a line at `room` bytes.
pub fn bars(head: &Head, bars: &[Bar], room: Option<u64>) -> Result<String> {
    let labels = bars.iter().map(|bar| text_width(&bar.name, TEXT)).max().unwrap_or(0).min(LABELS);
    let (from, to) = (EDGE + labels + 8, head.width - EDGE - FIGURES);
    let most = bars.iter().map(|bar| bar.bytes).max().unwrap_or(0);
    let high = room.filter(|room| most * 2 > *room).map_or(most, |room| most.max(room));
    // The unit of which round numbers stand below.
    let unit = f64::from(if high < 4 << 30 { 1 << 20 } else { 1 << 30 });
    let scale = Scale::linear(0.0, high as f64 / unit * 1.04, from, to);
    let at = |bytes: u64| scale.at(bytes as f64 / unit);
    let top = head.bottom() + 6;
    let bottom = top + LINE * i32::try_from(bars.len())?;
    picture(head, bottom + 34, |canvas| {
        for value in scale.linear_ticks(6) {
            let x = scale.at(value);
            canvas.line((x, top), (x, bottom), GRID, 1);
            canvas.text((x, bottom + 14), &tick(value * unit, "B"), SMALL, FAINT, Anchor::Middle);
        }
        for (number, bar) in (0i32..).zip(bars) {
            let y = top + LINE * number + LINE / 2;
            let hatch = if bar.is_hatched { look(1).hatch } else { Hatch::None };
            canvas.text((from - 8, y), &shortened(&bar.name, TEXT, labels), TEXT, INK, Anchor::End);
            canvas.bar((from, y - 8), (at(bar.bytes), y + 8), look(bar.look).color, hatch);
            canvas.text((to + 8, y), &shortened(&bar.figures, SMALL, FIGURES), SMALL, FAINT, Anchor::Start);
        }
        if let Some(room) = room.filter(|room| *room <= high) {
            canvas.line((at(room), top - 4), (at(room), bottom), INK, 2);
        }
    })
}
