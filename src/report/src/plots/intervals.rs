//! Ratios of times with their intervals, and signed errors, as dots on a linear axis that shows what differs.

use super::{PlotView, extent, grouped, levels};
use anyhow::Result;
use base::stats::median;
use base::units::tick;
use base::units::{change, percent};
use chart::{Dot, RangeAxis, Ranges, Row, ranges};
use record::protocol::{BY, PlainCell};

/// A row for each comparison, named by what tells it from others, with its 95 % interval.
pub fn intervals(view: &PlotView, clusters: &[&str]) -> Result<Option<String>> {
    let compared = |cell: &&PlainCell| view.recorded.ratio(cell, view.metric).is_some();
    let cells: Vec<&PlainCell> = view.cells.iter().filter(compared).collect();
    let Some(grid) = cells.first().and_then(|cell| view.recorded.grid_of(cell)) else { return Ok(None) };
    let factors = view.distinguishing_factors(clusters, &[&grid.studied]);
    let name = |cell: &PlainCell| {
        let own = view.recorded.grid_of(cell).map_or("", |grid| &grid.studied);
        let of = levels(cell, &factors.iter().copied().filter(|factor| *factor != own).collect::<Vec<_>>());
        let level = view.level_label(own, cell.get(own).unwrap_or(""));
        let level = if level.parse::<f64>().is_ok() { format!("{own} = {level}") } else { level };
        // Who ran it stands in the axis's name.
        if own == BY && !of.is_empty() {
            return of;
        }
        if of.is_empty() { level } else { format!("{of}: {level}") }
    };
    let row = |cell: &&PlainCell| {
        let ratio = view.recorded.ratio(cell, view.metric)?;
        let text = format!("{} ({})", percent(ratio.estimate), change(ratio.low, ratio.high));
        Some(Row {
            name: name(cell),
            dots: vec![Dot { series: 0, middle: ratio.estimate, low: ratio.low, high: ratio.high, text }],
        })
    };
    let title = format!("change against {}, 95 % CI", view.recorded.protocol.doing(&grid.studied, grid.baseline_level()));
    let axis = RangeAxis { title, tick: super::change_tick, reference: 1.0 };
    ranges(&Ranges { head: &view.head, axis, series: vec![], rows: cells.iter().filter_map(row).collect() }).map(Some)
}

/// The signed errors of a prediction, a row for each model: on which side of the truth they are.
pub fn signed(view: &PlotView) -> Result<Option<String>> {
    let Some(name) = view.metric.signed else { return Ok(None) };
    let value = |cell: &PlainCell| view.recorded.samples.value(cell, name);
    let models = grouped(view.cells.iter().filter_map(|cell| Some((levels(cell, &["model"]), value(cell)?))));
    if models.is_empty() {
        return Ok(None);
    }
    let row = |(model, errors): &(String, Vec<f64>)| {
        let (low, high) = extent(errors.iter().copied());
        let text = format!("{} to {}", signed_percent(low), signed_percent(high));
        Row { name: model.clone(), dots: vec![Dot { series: 0, middle: median(errors), low, high, text }] }
    };
    let axis = RangeAxis { title: "signed error, relative to the measured peak".to_string(), tick: signed_percent, reference: 0.0 };
    ranges(&Ranges { head: &view.head, axis, series: vec![], rows: models.iter().map(row).collect() }).map(Some)
}

fn signed_percent(share: f64) -> String {
    let percent = (share * 1000.0).round() / 10.0;
    let sign = match percent {
        percent if percent > 0.0 => "+",
        percent if percent < 0.0 => "−",
        _ => "",
    };
    format!("{sign}{} %", tick(percent.abs(), "1"))
}
