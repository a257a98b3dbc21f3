//! A rank's command without its launcher, in the environment that the launcher would make.

use super::executor::{Output, Rehearsal};
use super::launcher::{is_accelerate, without_launcher};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;

impl Rehearsal {
    /// The command as its launcher starts each rank, without the launcher: with the environment that accelerate makes of its flags and its configuration.
    ///
    /// # Errors
    /// accelerate ends with an error.
    pub fn without_launcher(&self) -> Result<Rehearsal> {
        let command = without_launcher(&self.command);
        let words = || self.command.iter().filter_map(|word| word.to_str());
        let mut one = Rehearsal { command, ..self.clone() };
        if one.command == self.command || !words().take(3).any(is_accelerate) {
            return Ok(one);
        }
        // accelerate itself, which is asked on the machine that the ranks have, up to where it would start them.
        let flags =
            words().skip_while(|word| !is_accelerate(word)).skip(1).skip_while(|word| *word == "launch").map(OsString::from);
        let command = [&[one.command[0].clone(), "-c".into(), ASKED.into()], &*flags.collect::<Vec<_>>()].concat();
        let (capture, session) = Rehearsal { command, rank: None, is_silent: true, ..self.clone() }.run(Output::Silent)?;
        let path = session.path().join("launched");
        ensure!(path.exists(), "accelerate does not start the command: {}", capture.last_line_of_stderr);
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        one.launched = serde_json::from_str::<BTreeMap<String, String>>(&text)
            .context("the environment that accelerate makes")?
            .into_iter()
            .collect();
        Ok(one)
    }
}

/// Leaves in the session what the ranks' environment has more than its own, where accelerate would start them.
const ASKED: &str = include_str!("launched.py");
