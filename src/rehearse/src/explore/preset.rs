//! `--model NAME`: a published model that comes with this program, trained in plain PyTorch, in place of a script of the user's.

use super::template::FlagTemplate;
use super::versions::in_path;
use crate::run::libraries::libraries;
use anyhow::Result;
use std::ffi::OsString;

/// Names of the models in `python/presets/train.py`.
pub fn models() -> Vec<&'static str> {
    let script = include_str!("../../python/presets/train.py");
    let table = script.lines().skip_while(|line| *line != "MODELS = {").take_while(|line| *line != "}");
    table.filter_map(|line| line.trim().strip_prefix('"')?.split('"').next()).collect()
}

/// How a preset is given the samples of a micro-batch.
pub fn batch() -> FlagTemplate {
    FlagTemplate::of(["--batch", "{}"])
}

/// How a preset is given the micro-batches of a step.
pub fn accumulation() -> FlagTemplate {
    FlagTemplate::of(["--accumulate", "{}"])
}

/// The command that trains a preset with micro-batches of so many samples, and with flags of its own.
///
/// # Errors
/// There is no folder in which its script can be kept.
pub fn command(model: &str, samples: u64, flags: &[OsString]) -> Result<Vec<OsString>> {
    let python = ["python", "python3"].into_iter().find(|name| in_path(name.as_ref()).is_some());
    let script = libraries()?.folder.join("python/presets/train.py");
    let words = [python.unwrap_or("python3").into(), script.into_os_string(), "--model".into(), model.into()];
    Ok(batch().with(&[&words, flags].concat(), samples))
}
