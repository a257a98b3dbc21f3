//! Whether one machine's results may stand beside those of others: whole, valid, taken from sources that others can have, and without
//! anything that is no text.

use super::plausible::implausible;
use super::recorded::{Recorded, read_machine};
use anyhow::Result;
use record::protocol::{PEAK, Pass, PlainCell, Platform, Relation, TIME};
use record::results::{PassRecord, Sample, Status};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Longer text than any that a run writes.
const LONGEST: usize = 1 << 16;

/// More of what a machine's results lack is not listed.
const MOST_MISSING: usize = 10;

/// What is wrong with a machine's results, `results/MACHINE`; nothing where they can be contributed.
pub fn check(machine: &Path) -> Result<Vec<String>> {
    let runs = read_machine(machine)?;
    let mut found = links(machine);
    found.extend(runs.iter().flat_map(problems));
    found.extend(several_processors(&runs));
    Ok(found)
}

/// Machines of one name may have processors of several models, whose times are no one machine's. Microcode is left out, which an update changes.
fn several_processors(runs: &[Recorded]) -> Option<String> {
    let on_cpu = runs.iter().filter(|run| run.manifest.identity.platform == Platform::Cpu);
    let exact = on_cpu.flat_map(|run| &run.manifest.commands).filter_map(|command| command.environment.get("exact cpu"));
    let models: BTreeSet<&str> = exact.map(|text| text.split(", microcode").next().unwrap_or(text)).collect();
    let named = models.iter().copied().collect::<Vec<&str>>().join("; ");
    let several = || format!("processors of {} models took these figures ({named}): measure all on one", models.len());
    (models.len() > 1).then(several)
}

fn problems(run: &Recorded) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let identity = &run.manifest.identity;
    if identity.machine != run.machine {
        found.push(format!("was taken on '{}'; name the machine's folder so", identity.machine));
    }
    if run.manifest.is_dirty() {
        found.push("was taken with local changes, which nobody else has: commit them, and measure again with --fresh".to_string());
    }
    let awaited = run.awaited();
    if let Some(first) = awaited.first() {
        let measured = run.all_cells().len() - awaited.len();
        found.push(format!(
            "{measured} of {} configurations are measured in full, '{first}' is not: the same command goes on with them",
            run.all_cells().len()
        ));
    }
    let unplanned = run.passes.iter().filter(|pass| run.grid_of(&pass.cell).is_none()).map(|pass| pass.cell.to_string());
    if let Some(cell) = unplanned.min() {
        found.push(format!("has rows of '{cell}', which its protocol does not plan"));
    }
    for cell in run.all_cells() {
        if let Some(status) = run.trouble(&cell).filter(|status| status.is_failure()) {
            found.push(format!("'{cell}' ended as {status}: {}", reason(run, &cell, status)));
        }
    }
    found.extend(samples(run));
    found.extend(missing(run));
    found.extend(implausible(run));
    if let Ok(manifest) = serde_json::to_value(&run.manifest) {
        let mut seen: Vec<String> = Vec::new();
        texts(&manifest, &mut |text| seen.extend(strange(text)));
        found.extend(seen.into_iter().map(|text| format!("run.json has a text that no run writes: {text}")));
    }
    found.into_iter().map(|what| format!("{}: {what}", run.protocol.name)).collect()
}

/// Links in a machine's folder: what they lead to is on this machine alone.
fn links(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_symlink() {
            found.push(format!("{} is a link: put what it leads to in its place", path.display()));
        } else if path.is_dir() {
            found.extend(links(&path));
        }
    }
    found
}

/// A pass, and the metrics of the protocol that it has.
type WithMetrics<'a> = (&'a PassRecord, BTreeSet<String>);

/// Figures that passes owe and do not have: those of the cell's other rounds, the peak and the time where all cells have them that differ from it in
/// numbers alone, and in a check that of the comparison itself; and rounds that are left out.
fn missing(run: &Recorded) -> Vec<String> {
    let went_well = |pass: &&PassRecord| pass.status == Status::Ok && !pass.samples.is_empty();
    let named = |pass: &PassRecord| -> BTreeSet<String> {
        // Parts of a picture are of one configuration.
        pass.samples.iter().map(|sample| sample.metric.clone()).filter(|name| run.protocol.metric(name).is_some()).collect()
    };
    let mut found = Vec::new();
    let mut of_cells: BTreeMap<(&PlainCell, Pass), Vec<WithMetrics>> = BTreeMap::new();
    for pass in run.passes.iter().filter(went_well) {
        of_cells.entry((&pass.cell, pass.pass)).or_default().push((pass, named(pass)));
    }
    // Of cells that differ in numbers alone how many there are, and how many have a peak and a time.
    let shared = [PEAK.name, TIME.name];
    let has = |passes: &[WithMetrics]| shared.map(|name| passes.iter().all(|(_, names)| names.contains(name)));
    let mut alike: BTreeMap<_, (usize, [usize; 2])> = BTreeMap::new();
    for ((cell, kind), passes) in &of_cells {
        let (cells, with) = alike.entry((in_words(cell), *kind)).or_default();
        *cells += 1;
        with.iter_mut().zip(has(passes)).for_each(|(with, has)| *with += usize::from(has));
    }
    for ((cell, kind), passes) in &of_cells {
        let mut owed: BTreeSet<String> = passes.iter().flat_map(|(_, names)| names.clone()).collect();
        let (cells, with) = alike[&(in_words(cell), *kind)];
        let all_others =
            shared.iter().zip(with).zip(has(passes)).filter(|((_, with), has)| cells > 1 && with - usize::from(*has) == cells - 1);
        owed.extend(all_others.map(|((name, _), _)| name.to_string()));
        for (pass, own) in passes {
            if let Some(lacked) = owed.iter().find(|name| !own.contains(*name)) {
                found.push(format!("'{cell}' has no '{lacked}' in round {} of its {kind} passes", pass.round));
            }
            let compares = matches!(run.protocol.check_of(cell), Some(Relation::Equal { .. } | Relation::Scaled { .. }));
            if *kind == Pass::Check && compares && !own.iter().any(|name| name.ends_with("_error")) {
                found.push(format!("'{cell}' was checked, and nothing of it was compared with its baseline"));
            }
        }
    }
    let mut rounds: BTreeMap<(&PlainCell, Pass), BTreeSet<u32>> = BTreeMap::new();
    for pass in &run.passes {
        rounds.entry((&pass.cell, pass.pass)).or_default().insert(pass.round);
    }
    for ((cell, kind), rounds) in rounds {
        if let Some(lacked) = (1..=rounds.len() as u32).find(|round| !rounds.contains(round)) {
            found.push(format!("'{cell}' has no round {lacked} of its {kind} passes, and later ones"));
        }
    }
    found.truncate(MOST_MISSING);
    found
}

/// A cell's levels that are no numbers.
fn in_words(cell: &PlainCell) -> Vec<&(String, String)> {
    cell.levels().iter().filter(|(_, level)| !level.starts_with(|first: char| first.is_ascii_digit())).collect()
}

/// What no machine has or takes: bytes, seconds, and rates of either.
fn is_absurd(sample: &Sample) -> bool {
    let most = match sample.unit.as_str() {
        "B" => 2f64.powi(50),
        "s" => 1e7,
        "B/s" => 1e15,
        "FLOP/s" => 1e18,
        _ => return false,
    };
    sample.value.abs() > most
}

/// What is wrong with the rows, each kind of it once.
fn samples(run: &Recorded) -> Vec<String> {
    let all = || run.passes.iter().flat_map(|pass| pass.samples.iter().map(move |sample| (pass, sample)));
    let mut found = Vec::new();
    if let Some((pass, _)) = all().find(|(_, sample)| matches!(sample.unit.as_str(), "s" | "B/s") && sample.value < 0.0) {
        found.push(format!("'{}' has a negative time or rate", pass.cell));
    }
    if let Some((pass, sample)) = all().find(|(_, sample)| is_absurd(sample)) {
        found.push(format!(
            "'{}' has {:e} {} of {}, which no machine has",
            pass.cell,
            sample.value,
            sample.unit,
            shown(&sample.metric)
        ));
    }
    let unit = |metric: &str| run.protocol.metric(metric).map(|metric| metric.unit);
    if let Some((_, sample)) = all().find(|(_, sample)| unit(&sample.metric).is_some_and(|unit| unit != sample.unit)) {
        found.push(format!(
            "has '{}' in {}, which its protocol gives in '{}'",
            sample.metric,
            shown(&sample.unit),
            unit(&sample.metric).unwrap_or_default()
        ));
    }
    let texts = run.passes.iter().map(|pass| pass.reason.as_str());
    let texts = texts.chain(all().flat_map(|(_, sample)| [sample.metric.as_str(), &sample.unit, &sample.reason]));
    let cells = run.passes.iter().flat_map(|pass| pass.cell.levels().iter().flat_map(|(factor, level)| [factor.as_str(), level]));
    found.extend(texts.chain(cells).find_map(strange).map(|text| format!("samples.csv has a text that no run writes: {text}")));
    found
}

/// A text that no run writes, shortened; nothing for any other.
fn strange(text: &str) -> Option<String> {
    let lower = text.to_lowercase();
    let is_markup = ["<script", "<img", "<iframe", "<svg", "javascript:", "onerror="].iter().any(|bad| lower.contains(bad));
    (text.len() > LONGEST || text.chars().any(char::is_control) || is_markup).then(|| shown(text))
}

fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(60).collect::<String>())
}

fn reason(run: &Recorded, cell: &PlainCell, status: Status) -> String {
    let own = run.passes.iter().find(|pass| pass.cell == *cell && pass.status == status);
    own.map_or(String::new(), |pass| pass.reason.clone())
}

fn texts(value: &Value, see: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => see(text),
        Value::Array(items) => items.iter().for_each(|item| texts(item, see)),
        Value::Object(fields) => fields.iter().for_each(|(key, item)| {
            see(key);
            texts(item, see);
        }),
        _ => {}
    }
}
