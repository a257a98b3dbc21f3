//! What to try when memory runs out: what each technique does to memory, and what it costs in time.

use super::Picture;
use crate::order::{Order, OrderPlace};
use anyhow::Result;
use base::units::{percent, tick};
use chart::{Dot, Head, RangeAxis, Ranges, Row, ranges};

/// A row for each technique in the order in which it is tried, a colour for each kind of it; nothing where none saves memory.
///
/// # Errors
/// The drawing library fails.
pub fn overview(order: &Order) -> Result<Option<Picture>> {
    let dot = |series: usize, [middle, low, high]: [f64; 3], text: String| Dot { series, middle, low, high, text };
    let row = |series: usize, place: &OrderPlace| Row {
        name: place.name.clone(),
        panels: vec![
            vec![dot(series, place.of_memory, percent(place.of_memory[0]))],
            // Where one takes seven times as long and another a tenth of the time.
            vec![dot(series, place.of_time.map(f64::log2), percent(place.of_time[0]))],
        ],
    };
    let of_group = |(series, places): (usize, &[OrderPlace])| places.iter().map(|place| row(series, place)).collect::<Vec<_>>();
    let rows: Vec<Row> = order.groups.iter().map(|group| group.places.as_slice()).enumerate().flat_map(of_group).collect();
    if rows.is_empty() {
        return Ok(None);
    }
    let series: Vec<String> = order.groups.iter().map(|group| group.title.to_string()).collect();
    let title = format!("What one technique alone saves on {} models, and what it costs", order.models.len());
    let alt = "Peak memory and predicted time of a step with each technique, beside the model without it";
    Picture::drawn("overview", alt.to_string(), |width| {
        let head = Head::new(&title, "dot: median over the models; line: smallest to largest", width);
        let axes = vec![
            RangeAxis { title: "peak reserved memory".to_string(), tick: super::change_tick, reference: 1.0 },
            RangeAxis {
                title: "time of a step, predicted (logarithmic)".to_string(),
                tick: |log| format!("{}x", tick(log.exp2(), "1")),
                reference: 0.0,
            },
        ];
        ranges(&Ranges { head: &head, axes, series: series.clone(), rows: rows.clone() }).map(Some)
    })
}
