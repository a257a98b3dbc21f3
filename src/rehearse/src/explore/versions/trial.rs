//! A rehearsal by this program in a process of its own: its answer and its capture are files, which a later run takes as they are.

use super::environments::{Base, Environments};
use super::followed;
use super::ranges::Pin;
use crate::check::Earlier;
use crate::run::executor::{WAS_INTERRUPTED, was_interrupted};
use crate::run::zygote::SHARED;
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
    /// A folder in which Pythons that have imported PyTorch wait for several trials, until it is gone.
    pub zygotes: Option<&'a Path>,
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
                Ok(self.run(name, &environment.python, None, &[], pins)?.and_then(|answer| is_of(answer, pins)))
            }
            Err(why) if was_interrupted() => Err(why),
            Err(why) => Ok(Err(why)),
        }
    }

    /// Rehearses the command with a Python, in a folder; imports come from `path` first.
    ///
    /// # Errors
    /// It was interrupted, or nothing can be started; within, why there is no answer.
    pub fn run(&self, name: &str, python: &Path, folder: Option<&Path>, path: &[PathBuf], pins: &[Pin]) -> Result<Result<Earlier>> {
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
        let packages: Vec<&str> = pins.iter().map(|pin| pin.package.split('[').next().unwrap_or_default()).collect();
        command.env(PACKAGES, packages.join(","));
        if let Some(folder) = self.zygotes.filter(|_| std::env::var_os(SHARED).is_none()) {
            command.env(SHARED, folder);
        }
        fs::remove_file(file("json")).ok();
        let status = followed::run(&mut command)?;
        if status.code() == Some(INTERRUPTED) || status.code().is_none() {
            bail!(WAS_INTERRUPTED);
        }
        Ok(self.kept(name).ok_or_else(|| anyhow!("{}", why(&fs::read_to_string(file("log")).unwrap_or_default(), status.code()))))
    }
}

/// Names of packages whose versions the script's process writes down.
const PACKAGES: &str = "VRAMLAB_REHEARSAL_PACKAGES";

/// An answer whose process had the versions that its name says.
fn is_of(answer: Earlier, pins: &[Pin]) -> Result<Earlier> {
    for pin in pins {
        let package = pin.package.split('[').next().unwrap_or_default();
        let seen = answer.versions().find_map(|versions| versions.get(package));
        // Without a public part's +cu126.
        let is_same = |seen: &String| seen == &pin.version || seen.split('+').next() == Some(&pin.version);
        match seen {
            Some(seen) if !is_same(seen) => bail!("the script ran with {package} {seen}: {pin} is not what it imports"),
            None => bail!("the script ran without {package}: {pin} is not what it imports"),
            Some(_) => {}
        }
    }
    Ok(answer)
}

/// Why there is no answer, of what was printed: what the program says at its end, or the exception.
fn why(log: &str, status: Option<i32>) -> String {
    // Under a launcher each line of a rank begins with [rank0]: or [default1]:.
    let without_rank = |line: &str| match line.trim().strip_prefix('[').and_then(|line| line.split_once("]:")) {
        Some((rank, rest)) if rank.ends_with(|c: char| c.is_ascii_digit()) && !rank.contains(' ') => rest.trim().to_string(),
        _ => line.trim().to_string(),
    };
    let lines: Vec<String> = log.lines().map(without_rank).filter(|line| !line.is_empty()).collect();
    let is_exception = |line: &&String| {
        let kind = line.split(": ").next().unwrap_or_default();
        (kind.ends_with("Error") || kind.ends_with("Exception")) && !kind.contains(' ')
    };
    // A launcher's own error, which only says that a rank failed, comes after the rank's.
    let is_own = |line: &&String| is_exception(line) && !line.contains("ChildFailedError") && !line.contains("CalledProcessError");
    let of_program = lines.iter().rev().find_map(|line| line.strip_prefix("vramlab: ")).filter(|_| status == Some(2));
    let exception = lines.iter().rfind(is_own).or_else(|| lines.iter().rfind(is_exception)).map(String::as_str);
    // What a process died of that no exception tells, as torch's or Python's own handler says it; then what came before this program's own words.
    let died = lines
        .iter()
        .find(|line| ["Segfault encountered", "Fatal Python error", "Segmentation fault"].iter().any(|said| line.contains(said)));
    let died = died.map(|line| line.trim_matches(['!', ' ']));
    let own = lines.iter().position(|line| line.starts_with("THE SCRIPT FAILED")).filter(|at| *at > 0).unwrap_or(lines.len());
    of_program.or(exception).or(died).or(lines[..own].last().map(String::as_str)).unwrap_or("it ended without a word").to_string()
}

#[cfg(test)]
mod tests {
    use super::why;

    #[test]
    fn the_reason_is_the_error_of_the_script() {
        let log = "[rank0]: Traceback (most recent call last):\n[rank0]:   File \"t.py\", line 2\n\
                   [rank0]: RuntimeError: shapes do not match\n\
                   torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n\n  Note: rank 1 of 2 was ended\n";
        assert_eq!(why(log, Some(5)), "RuntimeError: shapes do not match");
        assert_eq!(why("ImportError: no module\nvramlab: --gpu: name one card\n", Some(2)), "--gpu: name one card");
        assert_eq!(why("KeyError: 'a'\nsomething else: an Error: in words\n", Some(5)), "KeyError: 'a'");
        let died = "!!!!!!! Segfault encountered !!!!!!!\n  File \"<unknown>\", line 0\n\nTHE SCRIPT FAILED\n\nWrote a.json.\n";
        assert_eq!(why(died, Some(1)), "Segfault encountered");
        assert_eq!(why("no such model\n\nTHE SCRIPT FAILED\n\nWrote a.json.\n", Some(1)), "no such model");
        assert_eq!(why("", Some(5)), "it ended without a word");
    }
}
