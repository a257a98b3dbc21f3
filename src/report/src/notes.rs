//! What is to be said of a run beside its figures: what became of the cells that gave none, for one.

use super::plots::grouped;
use super::prose;
use super::recorded::Recorded;
use base::stats::outliers;
use base::units::{counted, plain, significant};
use record::protocol::{Pass, PlainCell, Relation};
use record::results::Status;
use std::collections::BTreeMap;

/// Cells that a note names one by one.
const NAMED: usize = 6;

/// What is to be said of a run beside its figures: what was checked, what failed, which samples are remarkable.
pub fn notes_of(recorded: &Recorded) -> Vec<String> {
    let cells = recorded.all_cells();
    let mut notes = checks(recorded, &cells);
    notes.extend(obstacles(recorded, &cells));
    let planned: usize = recorded.grids().map(|grid| grid.cells().len()).sum();
    if planned > cells.len() {
        notes.push(format!("{} of {planned} configurations: a filter or a shard left the others out.", cells.len()));
    }
    notes.extend(earlier_forms(recorded, &cells));
    notes.extend(remarkable_samples(recorded, &cells));
    let shares: Vec<f64> = cells.iter().filter_map(|cell| recorded.share_of_fastest(cell)).collect();
    if let (Some(low), Some(high)) = (shares.iter().copied().reduce(f64::min), shares.iter().copied().reduce(f64::max)) {
        let percent = |share: f64| significant(share * 100.0);
        let range = if low == high { percent(low) } else { format!("{} to {}", percent(low), percent(high)) };
        notes.push(format!("Steps reach {range} % of peak FLOP/s (measured: the fastest single fp32 operation on this machine)."));
    }
    notes
}

/// What was checked before measuring, and how well it held.
fn checks(recorded: &Recorded, cells: &[PlainCell]) -> Vec<String> {
    let was_checked =
        |cell: &&PlainCell| recorded.outcome(cell, Pass::Check).is_some_and(|(s, _)| matches!(s, Status::Ok | Status::Invalid));
    let is_compared = |cell: &&PlainCell| recorded.grid_of(cell).is_some_and(|grid| grid.baseline_of(cell) != **cell);
    let checked = cells.iter().filter(was_checked).filter(is_compared);
    grouped(checked.filter_map(|cell| Some((recorded.protocol.check_of(cell)?, cell))))
        .into_iter()
        .map(|(relation, group)| check(recorded, relation, &group))
        .collect()
}

fn check(recorded: &Recorded, relation: &Relation, cells: &[&PlainCell]) -> String {
    let is = |status: Status| move |cell: &&&PlainCell| recorded.outcome(cell, Pass::Check).is_some_and(|(s, _)| s == status);
    let held = cells.iter().filter(is(Status::Ok)).count();
    let failed = cells.iter().filter(is(Status::Invalid)).count();
    let mut text = format!("Checked against the baseline: {} {}", counted(held, "configuration"), expectation(relation, held));
    let errors = largest_errors(recorded, cells);
    // Elsewhere the error is that before the expected factor is taken out, and would only confuse.
    if !errors.is_empty() && matches!(relation, Relation::Equal { .. } | Relation::Differs { .. } | Relation::Missing { .. }) {
        text.push_str(&format!(" (largest {})", errors.join(", ")));
    }
    if failed > 0 {
        text.push_str(&format!("; **{} not, and so invalid**", if failed == 1 { "1 is".into() } else { format!("{failed} are") }));
    }
    text + "."
}

fn expectation(relation: &Relation, n: usize) -> String {
    let (gives, raises, differs) = if n == 1 { ("gives", "raises", "differs") } else { ("give", "raise", "differ") };
    match relation {
        Relation::Equal { tolerance } => format!("{gives} its result within {}", plain(*tolerance)),
        Relation::Scaled { by, tolerance } => format!("{gives} {} times its result within {}", plain(*by), plain(*tolerance)),
        Relation::Differs { at_least, at_most } => {
            format!("{differs} from it by {} to {} without any error raised, as expected", plain(*at_least), plain(*at_most))
        }
        Relation::Missing { at_least } => {
            let lacks = if n == 1 { "lacks" } else { "lack" };
            format!("{lacks} at least {} % of its result without any error raised, as expected", plain(at_least * 100.0))
        }
        Relation::Raises { message } => format!("{raises} the expected error, '{message}'"),
    }
}

/// The largest relative error of each kind that the check passes recorded.
fn largest_errors(recorded: &Recorded, cells: &[&PlainCell]) -> Vec<String> {
    let mut largest: BTreeMap<&str, f64> = BTreeMap::new();
    for record in recorded.passes.iter().filter(|r| r.pass == Pass::Check && r.status == Status::Ok && cells.contains(&&r.cell)) {
        for sample in record.samples.iter().filter(|s| s.metric.ends_with("error")) {
            let worst = largest.entry(&sample.metric).or_insert(0.0);
            *worst = worst.max(sample.value);
        }
    }
    largest.into_iter().map(|(name, value)| format!("{} {}", name.replace('_', " "), plain(value))).collect()
}

/// Passes without a figure, by what became of them and why.
fn obstacles(recorded: &Recorded, cells: &[PlainCell]) -> Vec<String> {
    let mut groups: BTreeMap<(Pass, Status, &str), Vec<&PlainCell>> = BTreeMap::new();
    let awaited = recorded.awaited();
    for cell in cells {
        for pass in [Pass::Check, Pass::Memory, Pass::Time] {
            // What cannot be measured here is no trouble, and said once, among what needs a GPU.
            let is_failure = |(status, _): &(Status, &str)| !matches!(status, Status::Ok | Status::Skipped);
            if let Some((status, reason)) = recorded.outcome(cell, pass).filter(is_failure) {
                groups.entry((pass, status, reason)).or_default().push(cell);
            }
        }
    }
    let said = groups.into_iter().map(|((pass, status, reason), of_group)| {
        let why = if reason.is_empty() { String::new() } else { format!(" ({})", reason.trim_end_matches('.')) };
        let which = if of_group.len() == cells.len() { "all configurations".to_string() } else { named(&of_group) };
        format!("{}: {}{why}: {which}.", prose::capitalised(&pass.to_string()), prose::status(status))
    });
    let mut notes: Vec<String> = said.collect();
    if !awaited.is_empty() {
        let cells: Vec<&PlainCell> = awaited.iter().collect();
        notes.push(format!(
            "Not measured in full, since the run was cut short (the same command goes on with it): {}.",
            named(&cells)
        ));
    }
    notes
}

/// What today's step asks for otherwise than the step that was measured, by what is the first of it.
fn earlier_forms(recorded: &Recorded, cells: &[PlainCell]) -> Vec<String> {
    let of_run = recorded.earlier_form.iter().filter(|(cell, _)| !recorded.is_prediction() && cells.contains(cell));
    let told = |(first, cells): (&String, Vec<&PlainCell>)| {
        format!("Measured by an earlier form of the step: {}. What differs first today: {first}.", named(&cells))
    };
    grouped(of_run.map(|(cell, first)| (first, cell))).into_iter().map(told).collect()
}

fn named(cells: &[&PlainCell]) -> String {
    let names: Vec<String> = cells.iter().take(NAMED).map(|cell| format!("`{cell}`")).collect();
    match cells.len().saturating_sub(NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// Timed samples that stand out, and those that the measuring side marked, a throttled clock for instance.
fn remarkable_samples(recorded: &Recorded, cells: &[PlainCell]) -> Vec<String> {
    let mut timed: BTreeMap<(&PlainCell, &str), Vec<f64>> = BTreeMap::new();
    let mut marks: BTreeMap<&str, usize> = BTreeMap::new();
    for record in recorded.passes.iter().filter(|r| r.pass == Pass::Time && r.status == Status::Ok && cells.contains(&r.cell)) {
        for sample in &record.samples {
            timed.entry((&record.cell, &sample.metric)).or_default().push(sample.value);
            if !sample.reason.is_empty() {
                *marks.entry(&sample.reason).or_default() += 1;
            }
        }
    }
    let all: usize = timed.values().map(Vec::len).sum();
    let far: usize = timed.values().map(|samples| outliers(samples)).sum();
    let mut notes = Vec::new();
    if far > 0 {
        notes.push(format!(
            "{far} of {all} timed samples lie more than 5 scaled MADs from the median of their configuration; they are counted here and never dropped."
        ));
    }
    notes.extend(marks.into_iter().map(|(reason, n)| format!("{} of {all} marked: {reason}.", counted(n, "timed sample"))));
    notes
}
