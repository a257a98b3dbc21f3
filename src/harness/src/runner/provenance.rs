//! Where a run's rows come from: the revision, what it was built with, the command line.

use super::python::{Python, project_with};
use crate::machine::{exact_cpu, kernel};
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::Path;

/// What a run ran on and was built with, beyond what must agree between runs.
pub(super) fn environment(python: Option<&Result<Python, String>>) -> BTreeMap<String, String> {
    let known =
        [("kernel", kernel()), ("exact cpu", Some(exact_cpu())), ("compilers", Some(env!("VRAMLAB_COMPILERS").to_string()))];
    let known = known.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?)));
    let packages = python.and_then(|found| found.as_ref().ok()).map(|python| python.packages.clone());
    known.chain(packages.unwrap_or_default()).collect()
}

/// Git revision of the project, and whether what measures had local changes: as git says where the project is, or else as `just dist` wrote it
/// down. Asked when a run begins: compiled in, each commit would link all programs again.
pub(super) fn revision() -> (String, bool) {
    let unknown = || ("unknown".to_string(), false);
    let Ok(project) = project_with(Path::new("experiments")) else { return unknown() };
    let git = |arguments: &[&str]| {
        let output = std::process::Command::new("git").arg("-C").arg(&project).args(arguments).output().ok();
        let output = output.filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let packed = std::fs::read_to_string(project.join("REVISION")).ok();
    if let Some((revision, state)) = packed.as_deref().and_then(|text| text.trim().split_once(' ')) {
        return (revision.to_string(), state == "dirty");
    }
    let Some(revision) = git(&["rev-parse", "--short=12", "HEAD"]) else { return unknown() };
    let measuring = ["src", "experiments", "records/real_gpus", "Cargo.toml", "Cargo.lock"];
    let changed = git(&[&["status", "--porcelain", "--"][..], &measuring].concat());
    (revision, changed.is_some_and(|changed| !changed.is_empty()))
}

/// The command line, as it can be typed elsewhere: the program by its name, paths from the folder that it was started in, and without where
/// the results go, which may be a private folder, and the summary that only the run of all experiments around it can read.
pub(super) fn invocation() -> Vec<String> {
    let here = std::env::current_dir().map(|here| format!("{}/", here.display())).unwrap_or_default();
    let mut given = std::env::args().map(|argument| argument.strip_prefix(&here).map_or(argument.clone(), str::to_string));
    let program = given.next().unwrap_or_default();
    let mut kept = vec![Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned()];
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--within" | "--out" => drop(given.next()),
            out if out.starts_with("--out=") => {}
            _ => kept.push(argument),
        }
    }
    kept
}
