//! What each technique needs of the card, as bars beside the card's size.

use super::row::{MeasuredStep, VariantRow};
use super::show::recommendation;
use anyhow::Result;
use base::units::{Bytes, Seconds};
use chart::{Bar, Head, WIDE, bars};

/// An SVG document of the rows that were measured, in their order.
pub fn draw(rows: &[VariantRow], base: &MeasuredStep) -> Result<String> {
    let bar = |row: &VariantRow| {
        let bytes = row.peak_reserved?.unsigned_abs();
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
    // What the allocator can have of the card.
    let room = (gpu.memory - gpu.context).unsigned_abs();
    let below = format!("Most memory that PyTorch reserves; the line is what {} has for it, hatched bars do not fit.", gpu.name);
    let head = Head::new(&recommendation(base, rows), &below, WIDE);
    bars(&head, &rows.iter().filter_map(bar).collect::<Vec<Bar>>(), Some(room))
}
