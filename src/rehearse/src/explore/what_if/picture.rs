//! What each technique needs of the card, as bars beside the card's size.

use super::row::{MeasuredStep, VariantRow};
use super::show::recommendation;
use anyhow::Result;
use base::units::{Bytes, Seconds};
use chart::{Bar, Head, WIDE, bars};

/// An SVG document of the rows that were measured, in their order.
pub fn draw(rows: &[VariantRow], base: &MeasuredStep) -> Result<String> {
    let bar = |row: &VariantRow| {
        let bytes = row.bytes()?.unsigned_abs();
        let more = match row.seconds {
            Some(seconds) => format!(", {}", Seconds(seconds)),
            None if row.predicted_seconds.is_some() => {
                row.predicted_seconds.map_or(String::new(), |s| format!(", {} predicted", Seconds(s)))
            }
            None if row.extra_share.abs() >= 1e-3 => format!(", {:+.0} % compute", row.extra_share * 100.0),
            None => String::new(),
        };
        let figures = format!("{}{more}", Bytes(bytes));
        Some(Bar { name: row.name(), bytes, figures, look: usize::from(row.techniques.is_empty()), is_hatched: !row.fits })
    };
    let gpu = &base.gpu;
    // A real GPU's meters know what is reserved, of what the context leaves of the card.
    let (what, room) = match base.needs {
        Some(_) => ("The least GPU memory on which it runs; the line is", gpu.memory),
        None => ("Most memory that PyTorch reserves; the line is what is left for it of", gpu.memory - gpu.context),
    };
    let below = format!("{what} {}, hatched bars do not fit.", gpu.name);
    let head = Head::new(&recommendation(base, rows), &below, WIDE);
    bars(&head, &rows.iter().filter_map(bar).collect::<Vec<Bar>>(), Some(room.unsigned_abs()))
}
