//! A rehearsal by this program in a process of its own: its answer and its capture are files, which a later run takes as they are.

use super::environments::{Base, Environments};
use super::followed;
use super::ranges::Pin;
use crate::check::Earlier;
use crate::run::executor::{WAS_INTERRUPTED, was_interrupted};
use anyhow::{Context, Result, anyhow, bail};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How each version is rehearsed.
#[derive(Debug)]
pub struct Trial<'a> {
    /// This program.
    pub program: PathBuf,
    /// Of `vramlab rehearse`.
    pub flags: Vec<OsString>,
    pub base: &'a Base,
    /// Where answers, captures and what was printed are kept, by the version's name.
    pub out: &'a Path,
}

const INTERRUPTED: i32 = 130;

impl Trial<'_> {
    /// The answer of an earlier run with this name, if it came to one.
    pub fn kept(&self, name: &str) -> Option<Earlier> {
        let answer = Earlier::read(&self.out.join(format!("{name}.json"))).ok();
        answer.filter(|answer| ["fits", "barely_fits", "does_not_fit"].contains(&answer.verdict.as_str()))
    }

    /// As [`Trial::run`] in an environment with these versions, unless there is an answer already.
    pub fn with(&self, environments: &Environments, name: &str, pins: &[Pin]) -> Result<Result<Earlier>> {
        if let Some(kept) = self.kept(name) {
            (environments.progress)("of an earlier run");
            return Ok(Ok(kept));
        }
        match environments.with(pins) {
            Ok(environment) => {
                (environments.progress)("rehearsing");
                self.run(name, &environment.python, None, &[])
            }
            Err(why) if was_interrupted() => Err(why),
            Err(why) => Ok(Err(why)),
        }
    }

    /// Rehearses the command with a Python, in a folder; imports come from `path` first.
    ///
    /// # Errors
    /// It was interrupted, or nothing can be started; within, why there is no answer.
    pub fn run(&self, name: &str, python: &Path, folder: Option<&Path>, path: &[PathBuf]) -> Result<Result<Earlier>> {
        let file = |end: &str| self.out.join(format!("{name}.{end}"));
        let log = File::create(file("log")).with_context(|| format!("writing {}", file("log").display()))?;
        let mut command = Command::new(&self.program);
        command.arg("rehearse").args(&self.flags).arg("--json").arg(file("json")).arg("--keep").arg(file("cap"));
        command.arg("--").arg(python).args(&self.base.words);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        if let Some(folder) = folder {
            command.current_dir(folder);
        }
        if !path.is_empty() {
            let given = std::env::var_os("PYTHONPATH").unwrap_or_default();
            let all = path.iter().cloned().chain(std::env::split_paths(&given).filter(|folder| !folder.as_os_str().is_empty()));
            command.env("PYTHONPATH", std::env::join_paths(all).context("PYTHONPATH")?);
        }
        fs::remove_file(file("json")).ok();
        let status = followed::run(&mut command)?;
        if status.code() == Some(INTERRUPTED) || status.code().is_none() {
            bail!(WAS_INTERRUPTED);
        }
        Ok(self.kept(name).ok_or_else(|| anyhow!("{}", why(&fs::read_to_string(file("log")).unwrap_or_default(), status.code()))))
    }
}

/// Why there is no answer, of what was printed: what the program says at its end, or the exception.
fn why(log: &str, status: Option<i32>) -> String {
    let is_exception =
        |line: &&str| line.split_once(": ").is_some_and(|(kind, _)| kind.ends_with("Error") || kind.ends_with("Exception"));
    let of_program = log.lines().rev().find_map(|line| line.strip_prefix("vramlab: ")).filter(|_| status == Some(2));
    let line = of_program.or_else(|| log.lines().map(str::trim).rfind(is_exception));
    match line.or_else(|| log.lines().map(str::trim).rfind(|line| !line.is_empty())) {
        Some(line) => line.to_string(),
        None => "it ended without a word".to_string(),
    }
}
