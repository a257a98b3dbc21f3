//! Children that end with this program, and with them what they have started, as pip starts others.

use crate::run::executor::{WAS_INTERRUPTED, follow_interruptions, was_interrupted};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// A rehearsal asks its script to end, and makes it, in less.
const MOST: Duration = Duration::from_secs(25);

/// Runs a child to its end, in a process group of its own: the terminal's Ctrl-C reaches it from here.
///
/// # Errors
/// It cannot be started, or this program was told to end.
pub fn run(command: &mut Command) -> Result<ExitStatus> {
    follow_interruptions();
    let name = command.get_program().display().to_string();
    let mut child = command.process_group(0).spawn().with_context(|| format!("starting {name}"))?;
    let (group, mut asked) = (Pid::from_child(&child), None::<Instant>);
    loop {
        let status = child.try_wait().with_context(|| format!("waiting for {name}"))?;
        if let (Some(status), None) = (status, asked) {
            return Ok(status);
        }
        let is_late = asked.is_some_and(|since| since.elapsed() > MOST);
        if status.is_some() || is_late {
            kill_process_group(group, Signal::KILL).ok();
            child.wait().with_context(|| format!("waiting for {name}"))?;
            bail!(WAS_INTERRUPTED);
        }
        if was_interrupted() && asked.is_none() {
            kill_process_group(group, Signal::TERM).ok();
            asked = Some(Instant::now());
        }
        thread::sleep(Duration::from_millis(10));
    }
}
