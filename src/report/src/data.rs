//! Every configuration of an experiment on one machine as a table of numbers, beside the pages that show some of them.

use super::markup::slug;
use super::recorded::Recorded;
use anyhow::{Context, Result};
use record::protocol::{Metric, PlainCell, Role};
use record::results::Status;

/// Folder of the tables inside the report's.
pub const FOLDER: &str = "data";

pub fn path(run: &Recorded) -> String {
    format!("{FOLDER}/{}-{}.csv", slug(&run.protocol.name), slug(&run.machine))
}

/// Whether there is anything to tell of a run.
pub fn has_rows(run: &Recorded) -> bool {
    run.all_cells().iter().any(|cell| has_row(run, cell))
}

/// What was skipped altogether has no figure, and its reason stands in the results.
fn has_row(run: &Recorded, cell: &PlainCell) -> bool {
    run.trouble(cell) != Some(Status::Skipped)
}

/// The table's file with a row for each cell that was run or should have been: its levels, then each figure in its unit, and what became of it.
pub fn table(run: &Recorded) -> Result<(String, Vec<u8>)> {
    let cells = run.all_cells();
    let factors =
        run.protocol.factors.iter().map(|f| f.name.as_str()).filter(|name| cells.iter().any(|cell| cell.get(name).is_some()));
    let factors: Vec<&str> = factors.collect();
    let has_values = |metric: &&Metric| cells.iter().any(|cell| run.samples.value(cell, metric.name).is_some());
    let metrics: Vec<&Metric> = run.protocol.metrics.iter().filter(|m| m.role == Role::Column).filter(has_values).collect();
    let mut writer = csv::Writer::from_writer(Vec::new());
    // A factor may have the name of a metric.
    let name = |m: &Metric| if factors.contains(&m.name) { m.label } else { m.name };
    let head = metrics.iter().map(|m| if m.unit == "1" { name(m).to_string() } else { format!("{} [{}]", name(m), m.unit) });
    let head = factors.iter().map(|name| (*name).to_string()).chain(head).chain(["status".to_string()]);
    writer.write_record(head.map(|name| harmless(&name)))?;
    for cell in cells.iter().filter(|cell| has_row(run, cell)) {
        let levels = factors.iter().map(|name| harmless(cell.get(name).unwrap_or("")));
        let values = metrics.iter().map(|m| run.samples.value(cell, m.name).map_or(String::new(), |value| value.to_string()));
        // A pass that was skipped beside one that went well is no trouble.
        let status = match run.samples.status(cell) {
            None => "not run".to_string(),
            Some(_) => run.trouble(cell).unwrap_or(Status::Ok).to_string(),
        };
        writer.write_record(levels.chain(values).chain([status]))?;
    }
    Ok((path(run), writer.into_inner().context("formatting the table of an experiment")?))
}

/// Spreadsheets run what begins like a formula.
fn harmless(text: &str) -> String {
    if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text.to_string() }
}
