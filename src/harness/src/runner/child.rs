//! A child process: one pass over one cell, sent to the parent line by line.

use super::shared_tensors;
use super::spec::{ChildMessage, Spec};
use crate::machine::{DeviceChoice, Gpu, libtorch_version};
use crate::measure::{self, Bench, Found, SetUp};
use anyhow::{Context, Result, ensure};
use record::protocol::Pass;
use record::results::Status;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::fs::File;
use std::io::Write;
use torch::dry::Dry;
use torch::{Backend, Cpu, Cuda, attempt, end_process, keep_heap};

/// Runs one pass, writes its rows to the pipe that was this process's standard output, and ends the process.
pub fn run(prepare: SetUp, spec: &Spec) -> ! {
    let sent = take_pipe().and_then(|mut pipe| {
        end_with_parent(spec.parent)?;
        if spec.waits {
            tell(&mut pipe, &ChildMessage::Ready)?;
            let read = std::io::stdin().read_line(&mut String::new()).context("waiting for the parent")?;
            ensure!(read > 0, "the parent does not want the pass any more");
        }
        // A panic becomes a row; the default hook would only fill the parent's pipe.
        std::panic::set_hook(Box::new(|_| {}));
        let found = attempt(|| pass(prepare, spec)).unwrap_or_else(|e| Found::failed(&e));
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

fn pass(prepare: SetUp, spec: &Spec) -> Result<Found> {
    libtorch_version()?;
    tch::set_num_threads(i32::try_from(spec.threads)?);
    let choice: DeviceChoice = spec.device.parse().map_err(anyhow::Error::msg)?;
    let backend = open(choice, spec.memory_limit)?;
    let bench = Bench { device: backend.device(), platform: choice.platform(), seed: i64::from(spec.seed) };
    if spec.exchange.is_some() {
        // Whether it is kept depends on what else a program keeps there, which is not what the two sides are compared in.
        ensure!(keep_heap(), "malloc does not keep what is freed, and both sides of a comparison must do the same");
    }
    if spec.writes_for_other_side {
        let files = spec.exchange.as_ref().context("a start is handed over by a file")?;
        shared_tensors::write_start(&bench.set_up(prepare, &spec.cell)?, &files.start)?;
        return Ok(Found::ok(Vec::new()));
    }
    let expected = || spec.expected.as_ref().with_context(|| format!("no check applies to '{}'", spec.cell));
    match (spec.pass, choice) {
        (Pass::Check, DeviceChoice::FakeCuda(_)) => {
            measure::smoke_check(expected()?, prepare, &[&spec.baseline, &spec.cell], &bench)?;
            Ok(passed_without_figures())
        }
        (Pass::Check, _) => match &spec.exchange {
            Some(files) => {
                let outcome = shared_tensors::read_outcome(&files.outcome)?;
                measure::check_against(expected()?, prepare, &spec.cell, &outcome, &bench)
            }
            None => measure::check(expected()?, prepare, &spec.cell, &spec.baseline, &bench),
        },
        (Pass::Memory, _) => {
            let mut step = bench.set_up(prepare, &spec.cell)?;
            match &spec.witness {
                Some(known) => measure::witness(&mut step, &*backend, known),
                None => Ok(Found::ok(measure::memory(&mut step, &*backend)?)),
            }
        }
        (Pass::Time, DeviceChoice::FakeCuda(_)) => {
            measure::smoke_time(&mut bench.set_up(prepare, &spec.cell)?)?;
            Ok(passed_without_figures())
        }
        (Pass::Time, _) => {
            let mut step = bench.set_up(prepare, &spec.cell)?;
            let gpu = if let DeviceChoice::Cuda(index) = choice { Gpu::open(index).ok() } else { None };
            let conditions = || gpu.as_ref().map(Gpu::conditions).unwrap_or_default();
            let timing = match choice {
                DeviceChoice::Cuda(_) => step.timing.on_gpu(step.computes()),
                _ => step.timing,
            };
            measure::time(&mut step, &*backend, timing, &conditions)
        }
    }
}

/// What comes of a check or of a time pass where no figure of it is one.
fn passed_without_figures() -> Found {
    let reason = "ran on a simulated GPU in the place of a real one, which gives no figures".to_string();
    Found { samples: Vec::new(), status: Status::Skipped, reason }
}

/// Opens the device that was chosen.
fn open(choice: DeviceChoice, memory_limit: Option<u64>) -> Result<Box<dyn Backend>> {
    Ok(match choice {
        DeviceChoice::Cpu => Box::new(Cpu::new(memory_limit)),
        // Its limit came with the environment.
        DeviceChoice::Cuda(index) => Box::new(Cuda::new(i32::try_from(index)?)?),
        DeviceChoice::Dry(_) | DeviceChoice::FakeCuda(_) => Box::new(Dry::open()?),
    })
}

/// Has the kernel end this process when its parent ends; fails where the parent is gone already.
pub fn end_with_parent(parent: u32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("asking to end with the parent")?;
    let still_there = getppid().is_some_and(|pid| u32::try_from(pid.as_raw_nonzero().get()) == Ok(parent));
    ensure!(still_there, "the parent is gone");
    Ok(())
}
