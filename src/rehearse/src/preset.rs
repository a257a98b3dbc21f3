//! `--model NAME`: a published model that comes with this program, trained in plain PyTorch, in place of a script of the user's.

use super::launch::RehearseOptions;
use super::libraries::Libraries;
use super::template::FlagTemplate;
use anyhow::{Context, Result, bail, ensure};
use std::env;
use std::ffi::OsString;
use std::str::FromStr;

/// Names of the models in `python/presets/train.py`.
pub const MODELS: [&str; 9] =
    ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "bert-base", "bert-large", "llama-1b", "vit-l16", "resnet50"];

/// What `--batch` says: a preset's batch, or how the user's command is told its batch.
#[derive(Debug, Clone)]
pub enum BatchFlag {
    Samples(u64),
    Told(FlagTemplate),
}

impl FromStr for BatchFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<BatchFlag, String> {
        match text.parse() {
            Ok(0) => Err("a batch has at least one sample".to_string()),
            Ok(samples) => Ok(BatchFlag::Samples(samples)),
            Err(_) => text.parse().map(BatchFlag::Told),
        }
    }
}

/// How a preset is told the samples of a micro-batch.
pub fn batch() -> FlagTemplate {
    FlagTemplate::of(["--batch", "{}"])
}

/// The command that trains a preset with micro-batches of so many samples, and with flags of its own.
pub fn command(model: &str, samples: u64, flags: &[OsString], libraries: &Libraries) -> Vec<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let python = ["python", "python3"].into_iter().find(|name| env::split_paths(&path).any(|folder| folder.join(name).is_file()));
    let script = libraries.folder.join("python/presets/train.py");
    let words = [python.unwrap_or("python3").into(), script.into_os_string(), "--model".into(), model.into()];
    batch().with(&[&words, flags].concat(), samples)
}

/// The options with the command and flags that a preset takes, where one is named.
///
/// # Errors
/// Flags that do not go together.
pub fn resolved(options: &RehearseOptions, libraries: &Libraries) -> Result<RehearseOptions> {
    let mut options = options.clone();
    match (&options.model, &options.batch) {
        (Some(model), Some(BatchFlag::Samples(samples))) => {
            options.command = command(model, *samples, &options.command, libraries);
            options.batch = Some(BatchFlag::Told(batch()));
            options.accumulation = Some(FlagTemplate::of(["--accumulate", "{}"]));
        }
        (Some(model), _) => bail!("--model {model}: name the samples of a batch, as in --batch 8"),
        (None, Some(BatchFlag::Samples(samples))) => {
            bail!(
                "--batch {samples} is for --model; of your own command it says how that is told its batch, as in '--batch-size {{}}'"
            )
        }
        (None, Some(BatchFlag::Told(_))) => {
            ensure!(options.what_if, "--batch goes with --what-if; vramlab fit finds the largest batch that fits");
            options.accumulation.as_ref().context("--batch needs --accumulation, as in '--grad-accum {}'")?;
        }
        (None, None) => {}
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_script() {
        let script = include_str!("../python/presets/train.py");
        let (_, models) = script.split_once("MODELS = {").unwrap();
        let (models, _) = models.split_once("\n}").unwrap();
        let names: Vec<&str> = models.lines().filter_map(|line| line.trim().strip_prefix('"')?.split('"').next()).collect();
        assert_eq!(names, MODELS);
    }
}
