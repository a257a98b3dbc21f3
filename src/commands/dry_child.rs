//! This program started again as a dry process, with the same flags, and what it tells.

use crate::cards::Card;
use crate::dry;
use crate::predict::{taken, terms};
use crate::runner::{end_with_parent, exit_reason};
use crate::units::Bytes;
use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::process::{Child, Command, Stdio};

/// Memory that everything fits.
pub const ENDLESS: u64 = 1 << 44;

/// A line from a child.
#[derive(Debug, Serialize, Deserialize)]
enum Told<T> {
    Found(T),
    Error(String),
}

/// Says whether a card has room for tensors.
///
/// # Errors
/// What a process has beside its tensors fills it.
pub fn check(card: Card) -> Result<()> {
    let terms: Vec<String> =
        terms(&card).iter().filter(|t| t.bytes > 0).map(|t| format!("{} {}", t.name, Bytes(t.bytes))).collect();
    let memory = Bytes(card.memory);
    ensure!(memory.0 > taken(&card), "a card of {memory} has no room for tensors beside {}", terms.join(" and "));
    Ok(())
}

/// Says whether a text has the form of settings of PyTorch's allocator; whether they make sense only PyTorch knows.
///
/// # Errors
/// It has not.
fn check_allocator(settings: Option<&str>) -> Result<()> {
    let Some(settings) = settings else { return Ok(()) };
    let formed = settings.split_once(':').is_some_and(|(key, value)| !key.trim().is_empty() && !value.trim().is_empty());
    ensure!(formed, "'{settings}' are no settings of PyTorch's allocator; write --alloc-conf like expandable_segments:True");
    Ok(())
}

/// Starts this program with its own flags and some more, as a dry child with such a card.
///
/// # Errors
/// No process can be started; this program has no simulated GPU.
pub fn start(card: Card, allocator: Option<&str>, flags: &[&str]) -> Result<Child> {
    check_allocator(allocator)?;
    let mut command = Command::new(std::env::current_exe().context("finding this program's own file")?);
    command.args(std::env::args_os().skip(1)).args(flags).arg("--child").arg(std::process::id().to_string());
    dry::prepare_beside(&mut command, card, taken(&card))?;
    if let Some(allocator) = allocator {
        command.env("PYTORCH_ALLOC_CONF", allocator).env_remove("PYTORCH_CUDA_ALLOC_CONF");
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    child.context("starting a dry process")
}

/// Waits for a child and gives what it found.
///
/// # Errors
/// Its own error; it ended without a finding.
pub fn wait<T: DeserializeOwned>(child: Child) -> Result<T> {
    let output = child.wait_with_output().context("waiting for a dry process")?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().next_back().map(serde_json::from_str) {
        Some(Ok(Told::Found(found))) => Ok(found),
        Some(Ok(Told::Error(message))) => bail!(message),
        _ => {
            let complaints = String::from_utf8_lossy(&output.stderr);
            // Settings that it does not understand make PyTorch end the process, with this line before a C++ stack.
            let said = complaints.lines().find(|line| line.trim_start().starts_with("what():")).unwrap_or(&complaints);
            bail!("the process with the simulated GPU was {}", exit_reason(output.status, said))
        }
    }
}

/// The child's side: does the work and tells the parent of this number.
///
/// # Errors
/// The parent is gone, or does not listen.
pub fn report<T: Serialize>(parent: u32, work: impl FnOnce() -> Result<T>) -> Result<()> {
    end_with_parent(parent)?;
    // A panic becomes an error; the default hook would only disturb.
    std::panic::set_hook(Box::new(|_| {}));
    tch::set_num_threads(1);
    let told = work().map_or_else(|error| Told::Error(format!("{error:#}")), Told::Found);
    println!("{}", serde_json::to_string(&told)?);
    Ok(())
}
