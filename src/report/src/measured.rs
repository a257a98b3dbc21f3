//! What a real GPU measured of a technique, beside what was predicted: programs of `records/gpus`, and the lab's own cells where both ran.

use super::recorded::Recorded;
use base::units::percent;
use minijinja::{Value, context};
use record::protocol::{BY, PEAK, PlainCell, PlainGrid, Platform, TIME};
use record::rules::recorded_programs;
use std::collections::BTreeMap;

/// The techniques of `--what-if` that an experiment's page is about.
const PAGES: [(&str, &[&str]); 7] = [
    ("amp", &["autocast-bf16"]),
    ("convolutions", &["channels-last", "autocast-bf16+channels-last"]),
    ("loss", &["chunked-loss", "fused-linear-loss"]),
    ("checkpointing", &["checkpoint-every"]),
    ("offloading", &["offload-activations"]),
    ("optimizer_state", &["fused", "for-loop"]),
    ("combined", &["autocast-bf16+channels-last"]),
];

/// More of the lab's own cells than this are in the data.
const MOST_CELLS: usize = 12;

/// What an H100 allocated of the lab's cells, beside what had been predicted for it.
const LAB: &str = include_str!("../../../records/gpus/h100-lab.csv");
const LAB_GPU: &str = "nvidia-h100-80gb-hbm3";

/// The peak of each of an experiment's cells over its baseline's, predicted and measured, by the cell's text.
fn lab_peaks(of: &Recorded) -> BTreeMap<String, (f64, f64)> {
    let rows = csv::Reader::from_reader(LAB.as_bytes()).into_records().filter_map(Result::ok);
    let own = rows.filter(|row| row.get(0) == Some(&of.protocol.name));
    let peaks: BTreeMap<String, (f64, f64)> = own
        .filter_map(|row| Some((row.get(1)?.replace(" by=pytorch", ""), (row.get(2)?.parse().ok()?, row.get(3)?.parse().ok()?))))
        .collect();
    let of_cell = |grid: &PlainGrid, cell: &PlainCell| {
        let ((predicted, measured), baseline) = (*peaks.get(&plain(cell))?, *peaks.get(&plain(&grid.baseline_of(cell)))?);
        (grid.baseline_of(cell) != *cell).then(|| (plain(cell), (predicted / baseline.0, measured / baseline.1)))
    };
    of.protocol.grids.iter().flat_map(|grid| grid.cells().into_iter().filter_map(move |cell| of_cell(grid, &cell))).collect()
}

/// A cell's text without who runs it: the records are of both.
fn plain(cell: &PlainCell) -> String {
    let levels = cell.levels().iter().filter(|(factor, _)| factor != BY);
    levels.map(|(factor, level)| format!("{factor}={level}")).collect::<Vec<_>>().join(" ")
}

/// A cell by its levels.
fn named(cell: &str) -> String {
    let level = |term: &str| {
        term.split_once('=')
            .map(|(factor, level)| if level.parse::<f64>().is_ok() { format!("{factor} {level}") } else { level.to_string() })
    };
    cell.split(' ').filter_map(level).collect::<Vec<_>>().join(", ")
}

/// Rows of a page's table: the GPU, what ran, memory predicted and measured, time predicted and measured; a dash where one of them is not there.
pub fn rows(runs: &[Recorded]) -> Vec<Value> {
    let name = runs[0].protocol.name.as_str();
    let techniques = PAGES.iter().find(|(page, _)| *page == name).map_or(&[][..], |(_, techniques)| *techniques);
    let of_programs = recorded_programs().into_iter().filter(|row| techniques.contains(&row.technique.as_str()));
    let row = |gpu: &str, what: String, memory: (Option<f64>, Option<f64>), time: (Option<f64>, Option<String>)| {
        let written = |ratio: Option<f64>| ratio.map_or("–".to_string(), percent);
        let timed = time.1.unwrap_or_else(|| "–".to_string());
        context! { gpu, what, memory => (written(memory.0), written(memory.1)), time => (written(time.0), timed) }
    };
    let mut rows: Vec<Value> = of_programs
        .map(|of| {
            let what = format!("{}, {}", of.program.rsplit(':').next().unwrap_or_default(), of.technique);
            row(of.machine, what, (Some(of.memory.0), Some(of.memory.1)), (Some(of.time.0), Some(percent(of.time.1))))
        })
        .collect();
    let newest = runs.iter().max_by_key(|run| run.manifest.method.revision).unwrap_or(&runs[0]);
    let shown = newest.protocol.subject.shown.iter().find_map(|shown| shown.memory.as_deref()).unwrap_or(PEAK.name);
    // They are of peaks alone.
    let mut lab = if shown == PEAK.name { lab_peaks(newest) } else { BTreeMap::new() };
    for run in runs.iter().filter(|run| run.platform() == Platform::Gpu && !run.is_own) {
        let ratio = |cell: &PlainCell, name: &str| run.ratio(cell, run.protocol.metric(name)?);
        let cells = run.all_cells().into_iter().filter_map(|cell| {
            let (memory, time) = (ratio(&cell, shown), ratio(&cell, TIME.name));
            let beside = lab.remove(&plain(&cell)).filter(|_| run.machine == LAB_GPU);
            let memory = (beside.map(|peaks| peaks.0), memory.map(|x| x.estimate).or(beside.map(|peaks| peaks.1)));
            let time = time.map(|x| base::units::change(x.low, x.high));
            (memory.1.is_some() || time.is_some()).then(|| row(&run.machine, named(&plain(&cell)), memory, (None, time)))
        });
        rows.extend(cells.take(MOST_CELLS));
    }
    let others = lab
        .into_iter()
        .map(|(cell, (predicted, measured))| row(LAB_GPU, named(&cell), (Some(predicted), Some(measured)), (None, None)));
    rows.extend(others.take(MOST_CELLS));
    rows
}
