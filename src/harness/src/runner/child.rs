//! A child process: one pass over one cell, told to the parent line by line.

use super::shared_tensors;
use super::spec::{ChildMessage, Spec};
use crate::machine::{Conditions, DeviceChoice, Gpu, libtorch_version};
use crate::measure::{self, Bench, Found, SetUp, Timing};
use anyhow::{Context, Result, ensure};
use record::protocol::{Pass, PlainCell, PlainProtocol};
use record::results::Status;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::fs::File;
use std::io::Write;
use std::time::Instant;
use tch::Device;
use torch::dry::Dry;
use torch::{Backend, Cpu, Cuda, Memory, attempt, end_process, keep_heap};

/// Runs one pass, writes its rows to the pipe that was this process's standard output, and ends the process.
pub fn run(protocol: &PlainProtocol, prepare: SetUp, spec: &str) -> ! {
    let sent = take_pipe().and_then(|mut pipe| {
        wait_for_turn(spec, &mut pipe)?;
        // A panic becomes a row; the default hook would only fill the parent's pipe.
        std::panic::set_hook(Box::new(|_| {}));
        let found = attempt(|| pass(protocol, prepare, spec)).unwrap_or_else(|e| Found::failed(&e));
        for sample in found.samples {
            tell(&mut pipe, &ChildMessage::Sample(sample))?;
        }
        tell(&mut pipe, &ChildMessage::End { status: found.status, reason: found.reason })
    });
    match sent {
        Ok(()) => end_process(0),
        Err(e) => {
            eprintln!("{e:#}");
            end_process(1)
        }
    }
}

/// Says that all is loaded and waits for its turn, where the parent asks for that.
fn wait_for_turn(spec: &str, pipe: &mut File) -> Result<()> {
    // What is wrong with it the pass says.
    let Ok(Spec { waits: true, parent, .. }) = serde_json::from_str(spec) else { return Ok(()) };
    end_with_parent(parent)?;
    tell(pipe, &ChildMessage::Ready)?;
    let read = std::io::stdin().read_line(&mut String::new()).context("waiting for the parent")?;
    ensure!(read > 0, "the parent does not want the pass any more");
    Ok(())
}

/// Keeps the pipe for rows alone: whatever a library prints to standard output goes to standard error from here on.
fn take_pipe() -> Result<File> {
    let pipe = rustix::io::dup(rustix::stdio::stdout()).context("keeping the pipe to the parent")?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr()).context("turning standard output aside")?;
    Ok(File::from(pipe))
}

fn tell(pipe: &mut File, message: &ChildMessage) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    pipe.write_all(&line).context("telling the parent")
}

fn pass(protocol: &PlainProtocol, prepare: SetUp, spec: &str) -> Result<Found> {
    let spec: Spec = serde_json::from_str(spec).context("--child is for the program's own use")?;
    end_with_parent(spec.parent)?;
    libtorch_version()?;
    tch::set_num_threads(i32::try_from(spec.threads)?);
    let choice: DeviceChoice = spec.device.parse().map_err(anyhow::Error::msg)?;
    let backend = open(choice, spec.memory_limit)?;
    let cell = PlainCell::parse(&spec.cell).map_err(anyhow::Error::msg)?;
    let bench = Bench { device: backend.device(), platform: choice.platform(), seed: i64::from(spec.seed) };
    if spec.exchange.is_some() {
        // Whether it is kept depends on what else a program keeps there, which is not what the two sides are compared in.
        ensure!(keep_heap(), "malloc does not keep what is freed, and both sides of a comparison must do the same");
    }
    if spec.hand_over {
        let files = spec.exchange.as_ref().context("a start is handed over by a file")?;
        shared_tensors::write_start(&bench.set_up(prepare, &cell)?, &files.start)?;
        return Ok(Found { samples: Vec::new(), status: Status::Ok, reason: String::new() });
    }
    if let (DeviceChoice::FakeCuda(_), Pass::Check | Pass::Time) = (choice, spec.pass) {
        return smoke_run(protocol, prepare, &spec, &*backend, &bench);
    }
    match spec.pass {
        Pass::Check => {
            let grid = protocol.grid_of(spec.profile, &cell).with_context(|| format!("no cell '{cell}' is planned"))?;
            let expected = protocol.check_of(&cell).with_context(|| format!("no check applies to '{cell}'"))?;
            match spec.exchange {
                Some(files) => {
                    measure::check_against(expected, prepare, &cell, &shared_tensors::read_outcome(&files.outcome)?, &bench)
                }
                None => measure::check(expected, prepare, &cell, &grid.baseline_of(&cell), &bench),
            }
        }
        Pass::Memory => {
            let mut step = bench.set_up(prepare, &cell)?;
            // What a comparison with the reference names in a difference.
            let samples = measure::memory(&mut step, &*backend)?;
            Ok(Found { samples, status: Status::Ok, reason: String::new() })
        }
        Pass::Time => {
            let mut step = bench.set_up(prepare, &cell)?;
            let gpu = match choice {
                DeviceChoice::Cuda(index) => Gpu::open(index).ok(),
                DeviceChoice::Cpu | DeviceChoice::Dry(_) | DeviceChoice::FakeCuda(_) => None,
            };
            let conditions = || gpu.as_ref().map(Gpu::conditions).unwrap_or_default();
            let timing = match choice {
                DeviceChoice::Cuda(_) => step.timing.on_gpu(step.computes()),
                _ => step.timing,
            };
            measure::time(&mut step, &*backend, timing, &conditions)
        }
    }
}

/// Runs all of a check or of a time pass where no figure of it is one.
fn smoke_run(protocol: &PlainProtocol, prepare: SetUp, spec: &Spec, backend: &dyn Backend, bench: &Bench) -> Result<Found> {
    let cell = PlainCell::parse(&spec.cell).map_err(anyhow::Error::msg)?;
    if spec.pass == Pass::Time {
        let mut step = bench.set_up(prepare, &cell)?;
        let timing = Timing { samples: 1, warm_up_seconds: 0.0, ..step.timing };
        measure::time(&mut step, backend, timing, &Conditions::default)?;
    } else {
        let expected = protocol.check_of(&cell).with_context(|| format!("no check applies to '{cell}'"))?;
        let baseline = PlainCell::parse(&spec.baseline).map_err(anyhow::Error::msg)?;
        measure::smoke_run(expected, prepare, &[baseline, cell], bench)?;
    }
    let reason = "ran on a simulated GPU in the place of a real one, which gives no figures".to_string();
    Ok(Found { samples: Vec::new(), status: Status::Skipped, reason })
}

/// A simulated GPU whose events are told by the host's clock: how long it takes to launch nothing.
#[derive(Debug)]
struct HostClock(Dry);

impl Backend for HostClock {
    fn device(&self) -> Device {
        self.0.device()
    }

    fn memory(&self) -> Result<Memory> {
        self.0.memory()
    }

    fn reset_peaks(&self) -> Result<()> {
        self.0.reset_peaks()
    }

    fn clear_workspaces(&self) -> Result<()> {
        self.0.clear_workspaces()
    }

    fn time(&self, body: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        let start = Instant::now();
        body()?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Opens the device that was chosen.
///
/// # Errors
/// It cannot be used here.
pub fn open(choice: DeviceChoice, memory_limit: Option<u64>) -> Result<Box<dyn Backend>> {
    Ok(match choice {
        DeviceChoice::Cpu => Box::new(Cpu::new(memory_limit)),
        // Its limit came with the environment.
        DeviceChoice::Cuda(index) => Box::new(Cuda::new(i32::try_from(index)?)?),
        DeviceChoice::Dry(_) => Box::new(Dry::open()?),
        DeviceChoice::FakeCuda(_) => Box::new(HostClock(Dry::open()?)),
    })
}

/// Has the kernel end this process when its parent ends.
///
/// # Errors
/// The parent is gone already.
pub(crate) fn end_with_parent(parent: u32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("asking to end with the parent")?;
    let still_there = getppid().is_some_and(|pid| u32::try_from(pid.as_raw_nonzero().get()) == Ok(parent));
    ensure!(still_there, "the parent is gone");
    Ok(())
}
