//! The figures of an experiment as tables, with what became of the cells that gave none.

use super::prose::{self, counted};
use super::recorded::Recorded;
use crate::pairs::pairs;
use crate::protocol::{COMPUTED, Cell, Grid, Metric, Pass, Relation, is_detail};
use crate::results::{Sample, Status};
use crate::stats::outliers;
use crate::units::{plain, quantity, ratio, significant};
use serde::Serialize;
use std::collections::BTreeMap;

/// A table with more rows than this is folded away.
const LONG: usize = 40;
/// Cells that a note names one by one.
const NAMED: usize = 6;

#[derive(Debug, Serialize)]
pub struct Table {
    pub grid: String,
    /// How many of the first columns are factors; the others are figures.
    pub factors: usize,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// Factors with one level throughout, and the baseline.
    pub caption: String,
    pub notes: Vec<String>,
    pub long: bool,
}

/// One table for each name of a grid, in the protocol's order.
pub fn tables(recorded: &Recorded) -> Vec<Table> {
    let mut names: Vec<&str> = Vec::new();
    for grid in recorded.grids() {
        if !names.contains(&grid.name) {
            names.push(grid.name);
        }
    }
    names.into_iter().filter_map(|name| table(recorded, name)).chain(beside_pytorch(recorded)).collect()
}

/// Ours and PyTorch's where both did the very same: what is equal, and which takes how long.
fn beside_pytorch(recorded: &Recorded) -> Option<Table> {
    let pairs = pairs(recorded.protocol, recorded.manifest.profile, &recorded.samples)?;
    let throughout =
        if pairs.throughout.is_empty() { String::new() } else { format!(" Throughout: {}.", pairs.throughout.join(", ")) };
    Some(Table {
        grid: "beside PyTorch".to_string(),
        factors: pairs.factors,
        long: pairs.rows.len() > LONG,
        head: pairs.head,
        rows: pairs.rows,
        caption: format!(
            "Values, bytes and times of the lab against PyTorch's in Python; a ratio below 1 says that the lab takes less.{throughout}"
        ),
        notes: pairs.notes,
    })
}

/// A figure that some cell has: one of the protocol's, or bytes that the machine gave beside them.
struct Column {
    name: String,
    label: String,
    unit: String,
    pass: Pass,
    metric: Option<&'static Metric>,
}

fn table(recorded: &Recorded, name: &str) -> Option<Table> {
    let grids: Vec<&'static Grid> = recorded.grids().filter(|grid| grid.name == name).collect();
    let mut cells: Vec<Cell> = grids.iter().flat_map(|grid| recorded.cells(grid)).collect();
    // In the order of the axes, of which the last runs fastest: so the rows of one comparison stand together.
    let mut factors: Vec<&str> = Vec::new();
    for axis in grids.iter().flat_map(|grid| grid.axes) {
        if !factors.contains(&axis.factor) {
            factors.push(axis.factor);
        }
    }
    sort(&mut cells, &factors);
    let first = cells.first()?;
    let varies = |factor: &&str| cells.iter().any(|cell| cell.get(factor) != first.get(factor));
    let (varied, constant): (Vec<&str>, Vec<&str>) = factors.into_iter().partition(varies);
    let columns = columns(recorded, &cells);
    let mut head: Vec<String> = varied.iter().map(|factor| (*factor).to_string()).collect();
    head.extend(columns.iter().map(|column| match recorded.is_prediction() {
        true => format!("{}, predicted", column.label),
        false => column.label.clone(),
    }));
    if columns.is_empty() {
        head.push("outcome".to_string());
    }
    let mut rows: Vec<Vec<String>> = cells.iter().map(|cell| row(recorded, cell, &varied, &columns)).collect();
    let shares: Vec<Option<f64>> = cells.iter().map(|cell| recorded.share_of_fastest(cell)).collect();
    if shares.iter().any(Option::is_some) {
        head.push("of the fastest rate".to_string());
        for (row, share) in rows.iter_mut().zip(shares) {
            row.push(share.map_or(String::new(), |share| format!("{} %", significant(share * 100.0))));
        }
    }
    Some(Table {
        grid: name.to_string(),
        factors: varied.len(),
        head,
        long: rows.len() > LONG,
        rows,
        caption: caption(&grids, first, &constant),
        notes: notes(recorded, &grids, &cells),
    })
}

/// Sorts by one factor after the other: levels that are numbers by value, others as they first appear. Grids of one name may each hold a
/// part of a factor's levels.
fn sort(cells: &mut [Cell], factors: &[&str]) {
    let keys: Vec<BTreeMap<String, f64>> = factors
        .iter()
        .map(|factor| {
            let mut levels: Vec<&str> = Vec::new();
            for level in cells.iter().filter_map(|cell| cell.get(factor)) {
                if !levels.contains(&level) {
                    levels.push(level);
                }
            }
            let numbers: Option<Vec<f64>> = levels.iter().map(|level| level.parse().ok()).collect();
            let keys = numbers.unwrap_or_else(|| (0..levels.len()).map(|position| position as f64).collect());
            levels.into_iter().map(str::to_string).zip(keys).collect()
        })
        .collect();
    let key =
        |cell: &Cell, n: usize| cell.get(factors[n]).and_then(|level| keys[n].get(level)).copied().unwrap_or(f64::NEG_INFINITY);
    cells.sort_by(|a, b| {
        let apart = (0..factors.len()).map(|n| key(a, n).total_cmp(&key(b, n)));
        apart.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
    });
}

fn columns(recorded: &Recorded, cells: &[Cell]) -> Vec<Column> {
    let own = recorded.protocol.metrics.iter().filter(|metric| !is_detail(metric.name)).map(|metric| Column {
        name: metric.name.to_string(),
        label: metric.label.to_string(),
        unit: metric.unit.to_string(),
        pass: metric.pass,
        metric: Some(metric),
    });
    let mut others: BTreeMap<String, Pass> = BTreeMap::new();
    for record in &recorded.passes {
        let told = |sample: &&Sample| recorded.protocol.metric(&sample.metric).is_some() || is_detail(&sample.metric);
        let bytes = record.samples.iter().filter(|sample| sample.unit == "B" && !told(sample));
        others.extend(bytes.map(|sample| (sample.metric.clone(), record.pass)));
    }
    let others = others.into_iter().map(|(name, pass)| Column {
        label: name.replace('_', " "),
        name,
        unit: "B".to_string(),
        pass,
        metric: None,
    });
    let values =
        |column: &Column| -> Vec<f64> { cells.iter().filter_map(|cell| recorded.samples.value(cell, &column.name)).collect() };
    let all: Vec<Column> = own.chain(others).filter(|column| !values(column).is_empty()).collect();
    // A check that found nothing anywhere is said in one line below the table.
    let tells = |column: &Column| column.pass != Pass::Check || values(column).iter().any(|value| *value != 0.0);
    if all.iter().any(tells) { all.into_iter().filter(tells).collect() } else { all }
}

fn row(recorded: &Recorded, cell: &Cell, varied: &[&str], columns: &[Column]) -> Vec<String> {
    let grid = recorded.grid_of(cell);
    let is_baseline = grid.is_some_and(|grid| grid.baseline_of(cell) == *cell);
    let level = |factor: &&str| match cell.get(factor) {
        Some(level) if is_baseline && grid.is_some_and(|grid| grid.studied == *factor) => format!("**{level}** (baseline)"),
        Some(level) => level.to_string(),
        None => String::new(),
    };
    let mut row: Vec<String> = varied.iter().map(level).collect();
    row.extend(columns.iter().map(|column| figure(recorded, cell, column)));
    if columns.is_empty() {
        let outcome = recorded.samples.status(cell).map_or("not run", |(status, _)| prose::status(status));
        row.push(outcome.to_string());
    }
    row
}

fn figure(recorded: &Recorded, cell: &Cell, column: &Column) -> String {
    let planned = recorded.grid_of(cell).is_some_and(|grid| grid.passes.contains(&column.pass));
    let Some(value) = recorded.samples.value(cell, &column.name) else {
        return match recorded.obstacle(cell, column.pass) {
            _ if !planned => String::new(),
            Some((status, _)) => format!("*{}*", prose::status(status)),
            None if recorded.outcome(cell, column.pass).is_none() => "*not run*".to_string(),
            None => String::new(),
        };
    };
    let text = quantity(value, &column.unit);
    match against_baseline(recorded, cell, column) {
        Some(ratio) => format!("{text} ({ratio})"),
        None => text,
    }
}

/// The ratio to the baseline, with its interval for a time; none for the baseline itself and for figures without a unit.
fn against_baseline(recorded: &Recorded, cell: &Cell, column: &Column) -> Option<String> {
    if matches!(column.unit.as_str(), "" | "1") {
        return None;
    }
    let baseline = recorded.grid_of(cell)?.baseline_of(cell);
    if *cell == baseline {
        return None;
    }
    let Some(metric) = column.metric else {
        let (value, base) = (recorded.samples.value(cell, &column.name)?, recorded.samples.value(&baseline, &column.name)?);
        return (base != 0.0).then(|| ratio(value / base));
    };
    match recorded.ratio(cell, metric) {
        Some(effect) if effect.is_exact() => Some(ratio(effect.estimate)),
        Some(effect) => Some(format!("{}, {} to {}", ratio(effect.estimate), ratio(effect.low), ratio(effect.high))),
        None if recorded.samples.value(&baseline, &column.name).is_some_and(|v| v != 0.0) => {
            Some("one round, no interval".to_string())
        }
        None => None,
    }
}

fn caption(grids: &[&'static Grid], first: &Cell, constant: &[&str]) -> String {
    let throughout: Vec<String> = constant.iter().filter_map(|factor| Some(format!("{factor} = {}", first.get(factor)?))).collect();
    let mut baselines: Vec<String> = Vec::new();
    for grid in grids {
        let baseline = format!("{} = {}", grid.studied, grid.baseline_level());
        if !baselines.contains(&baseline) {
            baselines.push(baseline);
        }
    }
    let compared = format!("Ratios are to the baseline, {}.", baselines.join(" or "));
    if throughout.is_empty() { compared } else { format!("{compared} Throughout: {}.", throughout.join(", ")) }
}

fn notes(recorded: &Recorded, grids: &[&'static Grid], cells: &[Cell]) -> Vec<String> {
    let mut notes = checks(recorded, cells);
    notes.extend(obstacles(recorded, cells));
    let planned: usize = grids.iter().map(|grid| grid.cells().len()).sum();
    if planned > cells.len() {
        notes.push(format!("{} of {planned} cells: a filter or a shard left the others out.", cells.len()));
    }
    notes.extend(remarkable_samples(recorded, cells));
    if let Some(fastest) = recorded.fastest.filter(|_| cells.iter().any(|cell| recorded.share_of_fastest(cell).is_some())) {
        let fastest = quantity(fastest, COMPUTED.unit);
        notes.push(format!(
            "Of the fastest rate: the operations of the matrix products and convolutions that a step cannot do without, in its time, over the \
             {fastest} at which this machine computed the fastest single operation in fp32."
        ));
    }
    notes
}

/// What was checked before measuring, and how well it held.
fn checks(recorded: &Recorded, cells: &[Cell]) -> Vec<String> {
    let mut groups: Vec<(&'static Relation, Vec<&Cell>)> = Vec::new();
    let was_checked =
        |cell: &&Cell| recorded.outcome(cell, Pass::Check).is_some_and(|(s, _)| matches!(s, Status::Ok | Status::Invalid));
    for cell in cells.iter().filter(was_checked) {
        let is_baseline = recorded.grid_of(cell).is_none_or(|grid| grid.baseline_of(cell) == *cell);
        let Some(relation) = recorded.protocol.check_of(cell).filter(|_| !is_baseline) else {
            continue;
        };
        match groups.iter_mut().find(|(known, _)| *known == relation) {
            Some((_, group)) => group.push(cell),
            None => groups.push((relation, vec![cell])),
        }
    }
    groups.into_iter().map(|(relation, group)| check(recorded, relation, &group)).collect()
}

fn check(recorded: &Recorded, relation: &Relation, cells: &[&Cell]) -> String {
    let is = |status: Status| move |cell: &&&Cell| recorded.outcome(cell, Pass::Check).is_some_and(|(s, _)| s == status);
    let held = cells.iter().filter(is(Status::Ok)).count();
    let failed = cells.iter().filter(is(Status::Invalid)).count();
    let mut text = format!("Checked against the baseline: {} {}", counted(held, "cell"), expectation(relation, held));
    let errors = largest_errors(recorded, cells);
    // Elsewhere the error is that before the expected factor is taken out, and would only confuse.
    if !errors.is_empty() && matches!(relation, Relation::Equal { .. } | Relation::Differs { .. }) {
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
        Relation::Times { factor, tolerance } => format!("{gives} {factor} times its result within {}", plain(*tolerance)),
        Relation::DividedBy { factor, tolerance } => {
            format!("{gives} its result divided by {factor} within {}", plain(*tolerance))
        }
        Relation::Scaled { by, tolerance } => format!("{gives} {} times its result within {}", plain(*by), plain(*tolerance)),
        Relation::Differs { at_least, at_most } => {
            format!("{differs} from it by {} to {} without any error raised, as expected", plain(*at_least), plain(*at_most))
        }
        Relation::Raises { message } => format!("{raises} the expected error, '{message}'"),
    }
}

/// The largest relative error of each kind that the check passes recorded.
fn largest_errors(recorded: &Recorded, cells: &[&Cell]) -> Vec<String> {
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
fn obstacles(recorded: &Recorded, cells: &[Cell]) -> Vec<String> {
    let mut groups: BTreeMap<(Pass, Status, &str), Vec<&Cell>> = BTreeMap::new();
    let mut not_run = Vec::new();
    for cell in cells {
        for pass in [Pass::Check, Pass::Memory, Pass::Time] {
            if let Some((status, reason)) = recorded.outcome(cell, pass).filter(|(status, _)| *status != Status::Ok) {
                groups.entry((pass, status, reason)).or_default().push(cell);
            }
        }
        if recorded.samples.status(cell).is_none() {
            not_run.push(cell);
        }
    }
    let said = groups.into_iter().map(|((pass, status, reason), of_group)| {
        let why = if reason.is_empty() { String::new() } else { format!(" ({})", reason.trim_end_matches('.')) };
        let which = if of_group.len() == cells.len() { "all cells".to_string() } else { named(&of_group) };
        format!("{}: {}{why}: {which}.", what(pass), prose::status(status))
    });
    let mut notes: Vec<String> = said.collect();
    if !not_run.is_empty() {
        notes.push(format!("Not run, since the run was cut short (the same command goes on with it): {}.", named(&not_run)));
    }
    notes
}

fn what(pass: Pass) -> &'static str {
    match pass {
        Pass::Check => "Check",
        Pass::Memory => "Memory",
        Pass::Time => "Time",
    }
}

fn named(cells: &[&Cell]) -> String {
    let names: Vec<String> = cells.iter().take(NAMED).map(|cell| format!("`{cell}`")).collect();
    match cells.len().saturating_sub(NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// Timed samples that stand out, and those that the measuring side marked, a throttled clock for instance.
fn remarkable_samples(recorded: &Recorded, cells: &[Cell]) -> Vec<String> {
    let mut timed: BTreeMap<(&Cell, &str), Vec<f64>> = BTreeMap::new();
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
            "{far} of {all} timed samples lie more than 5 scaled MADs from their cell's median; they are counted here and dropped nowhere."
        ));
    }
    notes.extend(marks.into_iter().map(|(reason, n)| format!("{} of {all} marked: {reason}.", counted(n, "timed sample"))));
    notes
}
