//! Runs every experiment, one after the other, and writes the report.

use super::launch::STOP;
use super::{EXPERIMENTS, INTERRUPTED, Options, interruptible};
use crate::dry;
use crate::machine::DeviceChoice;
use crate::protocol::Profile;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Runs all experiments with the same flags, as the programs that stand next to this one; gives the exit status and, where results
/// are kept, their folder.
///
/// # Errors
/// A program is missing or cannot be started. One that fails does not stop the others.
pub fn run_all(options: &Options, flags: &[String]) -> Result<(u8, Option<PathBuf>)> {
    interruptible()?;
    let here = std::env::current_exe().context("finding this program's own file")?;
    let folder = here.parent().context("this program stands in no folder")?;
    let devices = devices(options);
    // What is kept depends on the profile's being smoke alone, which is the same for all devices.
    let profile = options.profile(devices[0]);
    let mut flags = flags.to_vec();
    let kept = options.results(profile);
    let scratch =
        if kept.is_none() { Some(tempfile::tempdir().context("making a folder for results that are not kept")?) } else { None };
    if let Some(scratch) = &scratch {
        flags.extend(["--out".to_string(), scratch.path().display().to_string()]);
    }
    let start = Instant::now();
    let mut worst = 0;
    let runs: Vec<(DeviceChoice, &str)> = devices.iter().flat_map(|d| EXPERIMENTS.iter().map(|(name, _)| (*d, *name))).collect();
    for (position, (device, name)) in runs.iter().enumerate() {
        let mut flags = flags.clone();
        if options.device.is_none() {
            flags.extend(["--device".to_string(), device.to_string()]);
        }
        if let Some(budget) = options.budget {
            // What is left is shared by those that are still to come.
            let left = budget.saturating_sub(start.elapsed()).as_secs_f64();
            let share = (left / (runs.len() - position) as f64).max(1.0);
            flags.extend(["--budget".to_string(), format!("{share:.0}")]);
        }
        let code = run_one(&folder.join(name), &flags)?;
        if code == INTERRUPTED || STOP.load(Ordering::SeqCst) {
            return Ok((INTERRUPTED, None));
        }
        worst = worst.max(code);
    }
    let reported = kept.filter(|_| !options.list);
    if profile == Profile::Smoke && reported.is_none() && !options.list {
        println!("smoke results are not kept and make no report; name a folder with --out to keep them");
    }
    Ok((worst, reported))
}

/// The device that the user names; else the GPU, or without one a dry device, which predicts in a short time what a GPU would need, and
/// the CPU, which gets what is left of a budget.
fn devices(options: &Options) -> Vec<DeviceChoice> {
    match (options.device, DeviceChoice::best()) {
        (Some(device), _) => vec![device],
        (None, DeviceChoice::Cpu) if dry::is_built() => vec![DeviceChoice::dry(), DeviceChoice::Cpu],
        (None, best) => vec![best],
    }
}

fn run_one(program: &Path, flags: &[String]) -> Result<u8> {
    ensure!(program.exists(), "{} is missing; build all programs with `cargo build --release`", program.display());
    let status = Command::new(program).args(flags).status().with_context(|| format!("starting {}", program.display()))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
