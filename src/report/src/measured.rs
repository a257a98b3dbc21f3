//! What a real GPU measured of a technique, beside what was predicted: programs of `records/gpus`, and the lab's own cells where both ran.

use super::recorded::Recorded;
use base::units::percent;
use minijinja::{Value, context};
use record::protocol::{PEAK, Platform};
use record::rules::recorded_programs;

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

/// Rows of a page's table: the GPU, what ran, memory predicted and measured, time predicted and measured; a dash where one of them is not there.
pub fn rows(runs: &[Recorded]) -> Vec<Value> {
    let name = runs[0].protocol.name.as_str();
    let techniques = PAGES.iter().find(|(page, _)| *page == name).map_or(&[][..], |(_, techniques)| *techniques);
    let of_programs = recorded_programs().into_iter().filter(|row| techniques.contains(&row.technique.as_str()));
    let change = |ratio: f64| percent(ratio);
    let mut rows: Vec<Value> = of_programs
        .map(|row| {
            let program = row.program.rsplit(':').next().unwrap_or_default();
            context! {
                gpu => row.machine,
                what => format!("{program}, {}", row.technique),
                memory => (change(row.memory.0), change(row.memory.1)),
                time => (change(row.time.0), change(row.time.1)),
            }
        })
        .collect();
    let predicted = runs.iter().find(|run| run.platform() == Platform::Dry && !run.is_own);
    for run in runs.iter().filter(|run| run.platform() == Platform::Gpu && !run.is_own) {
        let metric = |of: &Recorded| of.protocol.metric(PEAK.name).copied();
        let time = run.protocol.metric(record::protocol::TIME.name).copied();
        let cells = run.all_cells().into_iter().filter_map(|cell| {
            let memory = metric(run).and_then(|metric| run.ratio(&cell, &metric));
            let timed = time.and_then(|metric| run.ratio(&cell, &metric));
            let foreseen = predicted.and_then(|dry| dry.ratio(&cell, &metric(dry)?));
            let dash = || "–".to_string();
            (memory.is_some() || timed.is_some()).then(|| {
                context! {
                    gpu => &run.machine,
                    what => cell.to_string().replace('=', " "),
                    memory => (foreseen.map_or_else(dash, |x| change(x.estimate)), memory.map_or_else(dash, |x| change(x.estimate))),
                    time => (dash(), timed.map_or_else(dash, |x| base::units::change(x.low, x.high))),
                }
            })
        });
        rows.extend(cells.take(MOST_CELLS));
    }
    rows
}
