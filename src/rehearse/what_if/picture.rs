//! What each technique needs of the card, as bars beside the card's size.

use super::Row;
use super::show::extra;
use crate::chart::{Anchor, EDGE, FAINT, GRID, Hatch, Head, INK, LinearScale, SMALL, TEXT, WIDE, look, picture, shortened};
use crate::units::{Bytes, tick};
use anyhow::Result;

const LINE: i32 = 26;
const LABELS: i32 = 250;
const FIGURES: i32 = 200;

/// An SVG document of the rows that were measured, in their order; `room` is what the allocator can have of the card.
pub fn draw(rows: &[Row], title: &str, card: &str, room: u64, base_flops: Option<u64>) -> Result<String> {
    let measured: Vec<(&Row, i64)> = rows.iter().filter_map(|row| Some((row, row.peak_reserved?))).collect();
    let head =
        Head::new(title, &format!("Peak reserved memory; the line is what {card} has for it, hatched bars do not fit."), WIDE);
    let (from, to) = (EDGE + LABELS, WIDE - EDGE - FIGURES);
    let most = measured.iter().map(|(_, peak)| peak.unsigned_abs()).max().unwrap_or(0);
    let high = if most * 2 > room { most.max(room) } else { most };
    let scale = LinearScale { high: high as f64 / f64::from(1 << 30) * 1.04, from, to };
    let gib = |bytes: u64| scale.at(bytes as f64 / f64::from(1 << 30));
    let top = head.bottom() + 6;
    let bottom = top + LINE * i32::try_from(measured.len())?;
    picture((WIDE, bottom + 34), &head.spoken(), |canvas| {
        head.draw(canvas);
        for value in scale.ticks() {
            let x = scale.at(value);
            canvas.line((x, top), (x, bottom), GRID, 1);
            canvas.text((x, bottom + 14), &tick(value * f64::from(1 << 30), "B"), SMALL, FAINT, Anchor::Middle);
        }
        for (at, (row, peak)) in (0i32..).zip(&measured) {
            let y = top + LINE * at + LINE / 2;
            let color = look(if row.techniques.is_empty() { 1 } else { 0 }).color;
            let hatch = if row.fits { Hatch::None } else { look(1).hatch };
            canvas.text((from - 8, y), &shortened(&row.name(), TEXT, LABELS), TEXT, INK, Anchor::End);
            canvas.bar((from, y - 8), (gib(peak.unsigned_abs()), y + 8), color, hatch);
            let figures = format!("{}, {}", Bytes(peak.unsigned_abs()), extra(row, base_flops));
            canvas.text((to + 8, y), &shortened(&figures, SMALL, FIGURES), SMALL, FAINT, Anchor::Start);
        }
        if room <= high {
            let x = gib(room);
            canvas.line((x, top - 4), (x, bottom), INK, 2);
        }
    })
}
