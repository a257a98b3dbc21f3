//! What each technique needs of the card, as bars beside the card's size.

use super::row::VariantRow;
use super::show::recommendation;
use crate::answer::SimulatedGpu;
use anyhow::Result;
use base::units::{Bytes, Seconds, tick};
use chart::{Anchor, EDGE, FAINT, GRID, Hatch, Head, INK, LinearScale, SMALL, TEXT, WIDE, look, picture, shortened, text_width};

const LINE: i32 = 26;
/// The most that names may take of the width.
const LABELS: i32 = 430;
const FIGURES: i32 = 180;

/// An SVG document of the rows that were measured, in their order.
pub fn draw(rows: &[VariantRow], gpu: &SimulatedGpu) -> Result<String> {
    let measured: Vec<(&VariantRow, i64)> = rows.iter().filter_map(|row| Some((row, row.peak_reserved?))).collect();
    // What the allocator can have of the card.
    let room = (gpu.memory - gpu.context).unsigned_abs();
    let below = format!("Most memory that PyTorch reserves; the line is what {} has for it, hatched bars do not fit.", gpu.name);
    let head = Head::new(&recommendation(gpu, rows), &below, WIDE);
    let labels = measured.iter().map(|(row, _)| text_width(&row.name(), TEXT)).max().unwrap_or(0).min(LABELS);
    let (from, to) = (EDGE + labels + 8, WIDE - EDGE - FIGURES);
    let most = measured.iter().map(|(_, peak)| peak.unsigned_abs()).max().unwrap_or(0);
    let high = if most * 2 > room { most.max(room) } else { most };
    // The unit of which round numbers stand below.
    let unit = f64::from(if high < 4 << 30 { 1 << 20 } else { 1 << 30 });
    let scale = LinearScale { high: high as f64 / unit * 1.04, from, to };
    let at = |bytes: u64| scale.at(bytes as f64 / unit);
    let top = head.bottom() + 6;
    let bottom = top + LINE * i32::try_from(measured.len())?;
    picture((WIDE, bottom + 34), &head.spoken(), |canvas| {
        head.draw(canvas);
        for value in scale.ticks() {
            let x = scale.at(value);
            canvas.line((x, top), (x, bottom), GRID, 1);
            canvas.text((x, bottom + 14), &tick(value * unit, "B"), SMALL, FAINT, Anchor::Middle);
        }
        for (number, (row, peak)) in (0i32..).zip(&measured) {
            let y = top + LINE * number + LINE / 2;
            let color = look(if row.techniques.is_empty() { 1 } else { 0 }).color;
            let hatch = if row.fits { Hatch::None } else { look(1).hatch };
            canvas.text((from - 8, y), &shortened(&row.name(), TEXT, labels), TEXT, INK, Anchor::End);
            canvas.bar((from, y - 8), (at(peak.unsigned_abs()), y + 8), color, hatch);
            let more = match row.seconds {
                Some(seconds) => format!(", {}", Seconds(seconds)),
                None if row.predicted_seconds.is_some() => {
                    row.predicted_seconds.map_or(String::new(), |s| format!(", {} predicted", Seconds(s)))
                }
                None if row.extra_share.abs() >= 1e-3 => format!(", {:+.0} % compute", row.extra_share * 100.0),
                None => String::new(),
            };
            let figures = format!("{}{more}", Bytes(peak.unsigned_abs()));
            canvas.text((to + 8, y), &shortened(&figures, SMALL, FIGURES), SMALL, FAINT, Anchor::Start);
        }
        if room <= high {
            let x = at(room);
            canvas.line((x, top - 4), (x, bottom), INK, 2);
        }
    })
}
