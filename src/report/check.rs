//! Whether one machine's results may stand beside those of others: whole, valid, taken from sources that others can have, and without
//! anything that is no text.

use super::recorded::{Recorded, read_machine};
use crate::protocol::Cell;
use crate::results::Status;
use anyhow::Result;
use serde_json::Value;
use std::path::Path;

/// Longer text than any that a run writes.
const LONGEST: usize = 4000;

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
    if run.manifest.git_dirty {
        found.push("was taken with local changes, which nobody else has: commit them, and measure again with --fresh".to_string());
    }
    if run.not_run() > 0 {
        found.push(format!("{} configurations were not run: the same command goes on with them", run.not_run()));
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
    let negative =
        |pass: &&crate::results::PassRecord| pass.samples.iter().any(|s| matches!(s.unit.as_str(), "s" | "B/s") && s.value < 0.0);
    if let Some(pass) = run.passes.iter().find(negative) {
        found.push(format!("'{}' has a negative time or rate", pass.cell));
    }
    if let Ok(manifest) = serde_json::to_value(&run.manifest) {
        texts(&manifest, &mut |text| {
            if text.len() > LONGEST
                || text.chars().any(char::is_control)
                || ["<script", "<img", "javascript:"].iter().any(|bad| text.contains(bad))
            {
                found.push(format!("run.json has a text that no run writes: {:?}", text.chars().take(60).collect::<String>()));
            }
        });
    }
    found.into_iter().map(|what| format!("{}: {what}", run.protocol.name)).collect()
}

fn reason(run: &Recorded, cell: &Cell, status: Status) -> String {
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
