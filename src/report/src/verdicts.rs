//! Every verdict as a table, and two such tables side by side: what a change of a rule or of a step does to verdicts.

use super::data::FOLDER;
use super::prose;
use super::recorded::Recorded;
use anyhow::{Context, Result};
use record::judge::Judgement;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// What became of one claim on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct VerdictLine {
    experiment: String,
    claim: String,
    machine: String,
    platform: String,
    verdict: String,
    /// Whether the platform's figures carry it.
    carries: bool,
    effect: String,
    /// What was changed of the claim after a look at figures.
    changed: String,
}

/// The file of the table, of the results that came with the project, in the order of experiments and machines.
pub fn table(recorded: &[Recorded]) -> Result<(String, Vec<u8>)> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let line = |run: &Recorded, judged: &Judgement| VerdictLine {
        experiment: run.protocol.name.clone(),
        claim: judged.of.id.clone(),
        machine: run.machine.clone(),
        platform: prose::platform(judged.platform).to_string(),
        verdict: judged.verdict.to_string(),
        carries: judged.carries,
        effect: prose::effect_of_all(&run.protocol, &judged.evidence),
        changed: judged.changed.as_ref().map_or(String::new(), |changed| changed.what.clone()),
    };
    for run in recorded.iter().filter(|run| !run.is_own) {
        run.judgements.iter().try_for_each(|judged| writer.serialize(line(run, judged)))?;
    }
    Ok((format!("{FOLDER}/verdicts.csv"), writer.into_inner().context("formatting the table of verdicts")?))
}

type Lines = BTreeMap<(String, String, String, bool), VerdictLine>;

fn read(file: &Path) -> Result<Lines> {
    let rows = csv::Reader::from_path(file).with_context(|| format!("reading {}", file.display()))?;
    let key = |line: &VerdictLine| {
        // A claim has one verdict of a machine, and one more of PyTorch in Python.
        let in_python = line.platform == prose::platform(record::protocol::Platform::Python);
        (line.experiment.clone(), line.claim.clone(), line.machine.clone(), in_python)
    };
    let rows = rows.into_deserialize::<VerdictLine>();
    rows.map(|row| row.map(|line| (key(&line), line)).with_context(|| format!("{} is no table of verdicts", file.display())))
        .collect()
}

/// The verdicts that differ between two tables, `report/data/verdicts.csv` before and after a change, each with what was changed of its claim.
///
/// # Errors
/// A file cannot be read, or is no such table.
pub fn diff_verdicts(before: &Path, after: &Path) -> Result<String> {
    let (before, after) = (read(before)?, read(after)?);
    let (mut text, mut same) = (String::new(), 0);
    let keys: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    for key in keys {
        let (old, new) = (before.get(key), after.get(key));
        let said = |line: Option<&VerdictLine>| match line {
            Some(line) if line.carries => line.verdict.clone(),
            Some(_) => "informational".to_string(),
            None => "no row".to_string(),
        };
        if said(old) == said(new) {
            same += 1;
            continue;
        }
        let is_nothing = |line: Option<&VerdictLine>| line.is_none_or(|line| line.verdict == "not measured here");
        if is_nothing(old) && is_nothing(new) {
            continue;
        }
        let (experiment, claim, machine, in_python) = key;
        let whose = if *in_python { format!("PyTorch in Python, {machine}") } else { machine.clone() };
        writeln!(text, "{experiment}: {claim}, {whose}: {} -> {}", said(old), said(new))?;
        let reason = new.map_or("", |line| line.changed.as_str());
        let reason = match (reason, old, new) {
            ("", None, _) => "a claim or rows that were not there".to_string(),
            ("", _, None) => "the claim is gone".to_string(),
            ("", Some(old), Some(new)) if old.effect != new.effect => {
                let effect =
                    |line: &VerdictLine| if line.effect.is_empty() { "no figure".to_string() } else { line.effect.clone() };
                format!("measured anew: {} -> {}", effect(old), effect(new))
            }
            ("", ..) => "no reason is given: claim and figures are as they were".to_string(),
            (reason, ..) => reason.to_string(),
        };
        writeln!(text, "  {reason}")?;
    }
    let changed = text.lines().count() / 2;
    Ok(format!("Verdicts: {same} the same, {changed} different\n{text}"))
}
