//! Why there is no answer.

use crate::capture::plain::on_one_line;
use crate::capture::session::{Capture, ScriptFailed, remedy, script_of};
use anyhow::{Result, bail, ensure};
use std::collections::BTreeSet;
use std::fs;

/// What was not seen whole.
pub fn incomplete(run: &Capture) -> Result<()> {
    if let Some(reason) = &run.not_set_up {
        bail!("{reason}");
    }
    if let Some(refused) = run.traces.iter().find_map(|trace| trace.refused.as_ref()) {
        bail!("{}", refused.lines().map(on_one_line).collect::<Vec<String>>().join("\n"));
    }
    if let Some(lost) = run.traces.iter().find_map(|trace| trace.lost.as_ref()) {
        bail!("the trace is incomplete, so there is no answer: writing to {}: {lost}; {}", run.folder.display(), remedy(lost));
    }
    Ok(())
}

/// Why nothing was seen.
pub fn nothing(run: &Capture, name: &str) -> Result<()> {
    let script = script_of(&run.command).map_or_else(|| format!("'{name}'"), |script| format!("'{}'", script.display()));
    ensure!(!run.interrupted, "interrupted before {script} used the GPU");
    ensure!(!run.timed_out, "the time of --timeout was over before {script} used the GPU");
    // As of a script that fails: what it says to that stands above.
    if !run.status().success() && !run.hooked && run.traces.is_empty() {
        return Err(ScriptFailed(format!("'{name}' failed before it started a Python: {}", run.end())).into());
    }
    ensure!(
        run.hooked || !run.traces.is_empty(),
        "'{name}' started no Python that vramlab could see; the command must start one, and not as another user or from a program that is linked statically"
    );
    if let Some(python) = run.without_torch.as_ref().filter(|_| run.traces.is_empty()) {
        bail!("{} has no PyTorch; install it there: {} -m pip install torch", python.trim(), python.trim());
    }
    let failed = !run.status().success() && run.traces.iter().all(|trace| trace.devices.is_none() && trace.exception.is_none());
    let when = if run.traces.is_empty() { "imported torch" } else { "used the GPU" };
    if failed {
        let hint = match run.status().code() {
            Some(2) => " (2 is how argparse refuses a command line, and Python a file that is not there)",
            _ => "",
        };
        let seen = if run.last_line_of_stderr.is_empty() { "; what it says to that stands above" } else { "" };
        let host = run.host_ran_out().map_or(String::new(), |why| format!("; {why}"));
        return Err(ScriptFailed(format!("{script} failed before it {when}: {}{hint}{seen}{host}", run.end())).into());
    }
    ensure!(!run.traces.is_empty(), "{script} ran and never imported torch, so there is nothing to rehearse");
    let flags = device_flags(&run.command);
    if let Some(steps) = run.traces.iter().find_map(|trace| trace.stopped) {
        bail!("{script} made {steps} optimizer steps on the CPU and was ended{flags}");
    }
    ensure!(!run.status().success(), "{script} ran on the CPU and never used the GPU{flags}");
    Ok(())
}

/// What to do with a script that stays on the CPU: the flags that it has for its device, as its text names them.
fn device_flags(command: &[String]) -> String {
    let text = script_of(command).and_then(|script| source(script.to_str()?)).unwrap_or_default();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
    let is_device = |word: &&str| {
        word.strip_prefix("--").is_some_and(|flag| {
            ["device", "gpu", "gpus", "cuda", "accelerator"].iter().any(|of| flag.split(['-', '_']).any(|part| part == *of))
        })
    };
    match Vec::from_iter(words.filter(is_device).collect::<BTreeSet<&str>>()).as_slice() {
        [] => ": have it put its model and batches on the GPU, as with .to(\"cuda\"), or set its flag or setting for the device, as in --device cuda".to_string(),
        flags => format!("; it has {}: set that, as in --device cuda", flags.join(", ")),
    }
}

/// The text of a source file. A code object can name any file: one that never ends, or that waits for a writer.
pub fn source(file: &str) -> Option<String> {
    const LARGEST: u64 = 16 << 20;
    let about = fs::metadata(file).ok()?;
    let is_text = about.is_file() && (1..=LARGEST).contains(&about.len());
    is_text.then(|| Some(String::from_utf8_lossy(&fs::read(file).ok()?).into_owned()))?
}
