//! Whether one machine's results may stand beside those of others: whole, valid, taken from sources that others can have, and without
//! anything that is no text.

use super::recorded::{Recorded, read_machine};
use anyhow::Result;
use record::protocol::PlainCell;
use record::results::Status;
use serde_json::Value;
use std::path::Path;

/// Longer text than any that a run writes.
const LONGEST: usize = 1 << 16;

/// What is wrong with a machine's results, `results/MACHINE`; nothing where they can be contributed.
///
/// # Errors
/// The folder holds no results; a file is damaged (file and line named).
pub fn check(machine: &Path) -> Result<Vec<String>> {
    let runs = read_machine(machine)?;
    Ok(runs.iter().flat_map(problems).collect())
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
    if let Ok(manifest) = serde_json::to_value(&run.manifest) {
        let mut seen: Vec<String> = Vec::new();
        texts(&manifest, &mut |text| seen.extend(strange(text)));
        found.extend(seen.into_iter().map(|text| format!("run.json has a text that no run writes: {text}")));
    }
    found.into_iter().map(|what| format!("{}: {what}", run.protocol.name)).collect()
}

/// What is wrong with the rows, each kind of it once.
fn samples(run: &Recorded) -> Vec<String> {
    let all = || run.passes.iter().flat_map(|pass| pass.samples.iter().map(move |sample| (pass, sample)));
    let mut found = Vec::new();
    if let Some((pass, _)) = all().find(|(_, sample)| matches!(sample.unit.as_str(), "s" | "B/s") && sample.value < 0.0) {
        found.push(format!("'{}' has a negative time or rate", pass.cell));
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
