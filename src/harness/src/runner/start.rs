//! How a process that runs passes is started, and what all that wait for one look at.

use super::python::Python;
use crate::machine::DeviceChoice;
use anyhow::{Context, Result, ensure};
use record::protocol::Pass;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use torch::dry;

/// Who runs a cell.
#[derive(Debug, Clone, Copy)]
pub enum Program<'a> {
    /// This program.
    Own,
    /// The experiment's PyTorch reference.
    Reference(&'a Python),
}

/// Set by Ctrl-C; read here and between cells.
static STOP: AtomicBool = AtomicBool::new(false);

/// Has Ctrl-C and a request to terminate stop the run between two rows instead of in the middle of one.
pub fn interruptible() -> Result<()> {
    ctrlc::set_handler(|| STOP.store(true, Ordering::SeqCst)).context("catching Ctrl-C")
}

pub fn stopped() -> bool {
    STOP.load(Ordering::SeqCst)
}

/// The names by which a user sets the caching allocator; the first counts.
const ALLOC_CONF: [&str; 2] = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];

/// What the environment sets of the caching allocator.
pub fn allocator_settings() -> Option<String> {
    ALLOC_CONF.iter().filter_map(|name| std::env::var(name).ok()).find(|set| !set.is_empty())
}

/// Fails where the environment turns the caching allocator off or puts another in its place: nothing is left to count.
pub fn refuse_other_allocators() -> Result<()> {
    let is_off = std::env::var_os("PYTORCH_NO_CUDA_MEMORY_CACHING").is_some();
    ensure!(!is_off, "PYTORCH_NO_CUDA_MEMORY_CACHING turns the caching allocator off, whose bytes are counted here: unset it");
    let other = allocator_settings().filter(|set| set.contains("backend:") && !set.contains("backend:native"));
    let set = other.unwrap_or_default();
    ensure!(
        set.is_empty(),
        "the environment sets '{set}', and bytes are counted in PyTorch's own caching allocator: unset PYTORCH_ALLOC_CONF"
    );
    Ok(())
}

/// What OpenMP's threads do while they wait, as OpenMP's own variable says.
const WAIT_POLICY: &str = "OMP_WAIT_POLICY";

/// How often a waiting parent polls [`STOP`]. Rows of a child wake it at once.
pub const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The command that starts a program for a kind of pass; what it is to do, and what it hears, are still to be added.
pub fn command(program: Program, choice: DeviceChoice, pass: Pass) -> Result<Command> {
    let mut command = match program {
        Program::Own => Command::new(std::env::current_exe().context("finding this program's own file")?),
        Program::Reference(python) => python.command(),
    };
    // A group of its own: the terminal's Ctrl-C reaches the parent alone, and the end of the group is the end of all it started.
    command.stdout(Stdio::piped()).process_group(0);
    match (choice, program) {
        // A cell of the CPU sees no GPU, also on a machine that has one.
        (DeviceChoice::Cpu, _) => drop(command.env("CUDA_VISIBLE_DEVICES", "")),
        (DeviceChoice::Dry(card) | DeviceChoice::FakeCuda(card), Program::Own) => dry::prepare(&mut command, card)?,
        (DeviceChoice::Dry(card) | DeviceChoice::FakeCuda(card), Program::Reference(_)) => dry::prepare_python(&mut command, card)?,
        (DeviceChoice::Cuda(_), _) => {}
    }
    // Threads of OpenMP that wait spin. On cores that others want, too, that takes ten times as long, and of an untimed pass nobody wants its pace.
    if pass != Pass::Time && std::env::var_os(WAIT_POLICY).is_none() {
        command.env(WAIT_POLICY, "passive");
    }
    Ok(command)
}

/// Sets the environment of a child that will use CUDA: a cell's settings of the allocator, which what the user's environment sets would change, or
/// else those of the environment; and a limit on its memory where one is given and the device's size is known.
pub(crate) fn prepare_cuda(command: &mut Command, limit: Option<u64>, device_memory: Option<u64>, alloc_conf: Option<&str>) {
    // NVML counts GPUs by their place on the bus.
    command.env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    let fraction = limit.zip(device_memory).map(|(limit, total)| (limit as f64 / total as f64).min(1.0));
    for name in ALLOC_CONF {
        command.env_remove(name);
    }
    let settings: Vec<String> = match alloc_conf {
        Some("default") => None,
        Some(own) => Some(own.to_string()),
        None => allocator_settings(),
    }
    .into_iter()
    .chain(fraction.map(|fraction| format!("per_process_memory_fraction:{fraction:.9}")))
    .collect();
    if !settings.is_empty() {
        command.env("PYTORCH_ALLOC_CONF", settings.join(","));
    }
}

/// Gives the lines of a stream as they come, until it ends or nobody listens any more.
pub fn listen(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || BufReader::new(stream).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untimed_passes_wait_without_spinning() {
        let policy = |pass| {
            let command = command(Program::Own, DeviceChoice::Cpu, pass).unwrap();
            let set = command.get_envs().find(|(name, _)| *name == WAIT_POLICY);
            set.and_then(|(_, value)| value).map(|value| value.to_string_lossy().into_owned())
        };
        let is_users = std::env::var_os(WAIT_POLICY).is_some();
        for pass in [Pass::Check, Pass::Memory] {
            assert_eq!(policy(pass), (!is_users).then(|| "passive".to_string()));
        }
        assert_eq!(policy(Pass::Time), None);
    }
}
