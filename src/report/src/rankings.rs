//! What cells are made of, as tables: the largest parts first. See [`PlotKind::Ranking`].

use super::plots::texts;
use super::recorded::Recorded;
use base::units::quantity;
use minijinja::{Value, context};
use record::protocol::{Metric, PlainCell, PlainPlot, PlotKind, selects};
use std::collections::BTreeSet;

/// The rankings of an experiment on one machine, one for each cell that has figures for it.
pub fn rankings(recorded: &Recorded) -> Vec<Value> {
    let of_plot = |plot: &PlainPlot| -> Vec<Value> {
        let PlotKind::Ranking { rows, part, columns, most } = &plot.kind else { return Vec::new() };
        let cells = recorded.all_cells().into_iter().filter(|cell| selects(&plot.of, cell));
        cells.filter_map(|cell| ranking(recorded, plot, &cell, (&texts(rows), part, columns, *most))).collect()
    };
    recorded.protocol.plots.iter().flat_map(of_plot).collect()
}

fn ranking(
    recorded: &Recorded,
    plot: &PlainPlot,
    cell: &PlainCell,
    (rows, part, columns, most): (&[&str], &str, &[Metric], usize),
) -> Option<Value> {
    let of_cell = recorded.passes.iter().filter(|record| record.cell == *cell).flat_map(|record| &record.samples);
    let metrics: BTreeSet<&str> = of_cell.map(|sample| sample.metric.as_str()).collect();
    let names: BTreeSet<&str> =
        metrics.iter().filter_map(|name| columns.iter().find_map(|column| name.strip_prefix(column.name))).collect();
    // Times are lacking where nothing was timed, for one.
    let has_figures = |column: &&Metric| metrics.iter().any(|name| name.starts_with(column.name));
    let first = columns.first().filter(has_figures)?;
    let columns: Vec<&Metric> = columns.iter().filter(has_figures).collect();
    let value = |name: &str, column: &Metric| recorded.samples.value(cell, &format!("{}{name}", column.name));
    let mut parts: Vec<(&str, Vec<Option<f64>>)> =
        names.into_iter().map(|name| (name, columns.iter().map(|column| value(name, column)).collect())).collect();
    let totals: Vec<f64> = (0..columns.len()).map(|n| parts.iter().filter_map(|(_, values)| values[n]).sum()).collect();
    if totals[0] <= 0.0 {
        return None;
    }
    let key = |values: &[Option<f64>]| values[0].unwrap_or(0.0);
    // What has none of it has no rank.
    parts.retain(|(_, values)| key(values) > 0.0);
    // Equal ones stay in the order of their names.
    parts.sort_by(|a, b| key(&b.1).total_cmp(&key(&a.1)));
    let rest = parts.split_off(most.min(parts.len()));
    let figures = |values: &[Option<f64>]| -> Vec<String> {
        let text = |n: usize, value: Option<f64>| match value {
            Some(value) if n == 0 => format!("{} ({:.0} %)", quantity(value, first.unit), 100.0 * value / totals[0]),
            Some(value) => quantity(value, columns[n].unit),
            None => String::new(),
        };
        values.iter().enumerate().map(|(n, value)| text(n, *value)).collect()
    };
    let mut table: Vec<Vec<String>> =
        parts.iter().map(|(name, values)| [vec![format!("`{name}`")], figures(values)].concat()).collect();
    if !rest.is_empty() {
        let sum = |n: usize| Some(rest.iter().filter_map(|(_, values)| values[n]).sum());
        let sums: Vec<Option<f64>> = (0..columns.len()).map(sum).collect();
        table.push([vec![format!("{} others", rest.len())], figures(&sums)].concat());
    }
    let predicted = if recorded.is_prediction() { ", predicted" } else { "" };
    let head = columns.iter().map(|column| format!("{}{predicted}", column.label));
    let levels: Vec<String> = rows.iter().filter_map(|factor| Some(format!("{factor} = {}", cell.get(factor)?))).collect();
    Some(context! {
        caption => &plot.caption,
        cell => levels.join(", "),
        head => std::iter::once(part.to_string()).chain(head).collect::<Vec<_>>(),
        rows => table,
    })
}
