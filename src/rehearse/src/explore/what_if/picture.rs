//! What each technique needs of the card, as bars beside the card's size.

use super::row::VariantRow;
use super::show::recommendation;
use super::trials::WhatIf;
use anyhow::Result;
use base::units::{Bytes, Seconds};
use chart::{Bar, Head, WIDE, bars};

impl WhatIf {
    /// An SVG document of the rows that were measured, in their order.
    pub fn picture(&self) -> Result<String> {
        let bar = |row: &VariantRow| {
            let bytes = row.bytes()?.unsigned_abs();
            let more = match (row.seconds, row.predicted_seconds) {
                (Some(seconds), _) => format!(", {}", Seconds(seconds)),
                (None, Some(seconds)) => format!(", {} predicted", Seconds(seconds)),
                (None, None) if row.extra_share.abs() >= 1e-3 => format!(", {:+.0} % compute", row.extra_share * 100.0),
                (None, None) => String::new(),
            };
            let figures = format!("{}{more}", Bytes(bytes));
            Some(Bar { name: row.name(), bytes, figures, look: usize::from(row.techniques.is_empty()), is_hatched: !row.fits })
        };
        let gpu = &self.base.gpu;
        // A real GPU's meters know what is reserved, of what the context leaves of the card.
        let (what, room) = match self.base.needs {
            Some(_) => ("The least GPU memory on which it runs; the line is", gpu.memory),
            None => ("Most memory that PyTorch reserves; the line is what is left for it of", gpu.memory - gpu.context),
        };
        let below = format!("{what} {}, hatched bars do not fit.", gpu.name);
        let head = Head::new(&recommendation(&self.base, &self.rows), &below, WIDE);
        bars(&head, &self.rows.iter().filter_map(bar).collect::<Vec<Bar>>(), Some(room.unsigned_abs()))
    }
}
