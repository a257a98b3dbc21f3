//! What was found on this machine, what is missing and what would fix it, and what the lab's own instruments cost.

use crate::machine::{DeviceChoice, Machine, libtorch_version, why_no_cuda};
use crate::measure::{Bench, Probe, Step};
use anyhow::{Context, Result, ensure};
use base::stats::{Interval, median, ratio_interval};
use base::units::{Bytes, Seconds};
use models::Model;
use record::protocol::{PlainCell, Platform};
use std::process::Command;
use std::time::Instant;
use tch::nn::{OptimizerConfig, Sgd};
use tch::{Device, Reduction};
use torch::{self, Backend, Cpu};

/// Rounds of the comparison with and without meter, and steps of each side in a round.
const ROUNDS: usize = 300;
const STEPS: usize = 4;

/// Prints what was found.
///
/// # Errors
/// A part that no experiment can do without is missing; says what would fix it.
pub fn run() -> Result<()> {
    let machine = Machine::describe(DeviceChoice::Cpu)?;
    let found = |name: &str| found_in(&machine, name);
    println!("CPU       {}, {} cores, {} of memory", found("cpu"), found("cores"), found("memory"));
    let library = torch::loaded_library().map(|path| path.display().to_string()).unwrap_or_default();
    println!("libtorch  {} ({library})", libtorch_version()?);
    match why_no_cuda() {
        None => {
            let gpu = Machine::describe(DeviceChoice::Cuda(0))?;
            for name in ["gpu", "driver", "gpu power limit"] {
                println!("{name:9} {}", found_in(&gpu, name));
            }
            println!("memory    {}", gpu.device_memory.map_or("unknown".to_string(), |b| Bytes(b).to_string()));
        }
        Some(reason) => println!("CUDA      not used: {reason}"),
    }
    match Machine::describe("dry".parse().map_err(anyhow::Error::msg)?) {
        Ok(dry) => println!("dry       --device dry[:MEMORY] predicts a GPU's memory; assumed: {}", found_in(&dry, "assumed")),
        Err(reason) => println!("dry       not available: {reason:#}"),
    }
    println!("device    experiments run on {} unless --device says otherwise", DeviceChoice::best());
    println!(
        "child     a process for a cell starts in {}",
        Seconds(median(&(0..5).map(|_| start_up()).collect::<Result<Vec<_>>>()?))
    );
    let (step, overhead) = meter_overhead()?;
    println!(
        "meter     counting CPU memory costs {:+.2} % of a step of {} (95 % interval {:+.2} % to {:+.2} %)",
        (overhead.estimate - 1.0) * 100.0,
        Seconds(step),
        (overhead.low - 1.0) * 100.0,
        (overhead.high - 1.0) * 100.0
    );
    Ok(())
}

fn found_in<'a>(machine: &'a Machine, name: &str) -> &'a str {
    machine.hardware.get(name).map_or("unknown", String::as_str)
}

/// Seconds from starting this program to its end, where it does nothing.
fn start_up() -> Result<f64> {
    let start = Instant::now();
    let output = Command::new(std::env::current_exe()?).arg("--version").output().context("starting a child process")?;
    ensure!(output.status.success(), "a child process ended with {}", output.status);
    Ok(start.elapsed().as_secs_f64())
}

/// Time of a small training step with libtorch's own allocator, and with the meter over without it. Both alternate in one process: between
/// processes the same step differs by more than the meter costs.
fn meter_overhead() -> Result<(f64, Interval)> {
    let cpu = Cpu::new(None);
    tch::set_num_threads(1);
    let bench = Bench { device: Device::Cpu, platform: Platform::Cpu, seed: 1 };
    let mut step = bench.set_up(&doctor_step, &PlainCell::new(Vec::new()))?;
    let mut timed = |metered: bool| {
        torch::use_cpu_meter(metered);
        // The first step after the change fills the other allocator's free lists.
        step.run(&mut Probe::idle())?;
        cpu.time(&mut || (0..STEPS).try_for_each(|_| step.run(&mut Probe::idle())))
    };
    for metered in [true, false] {
        timed(metered)?;
    }
    let (mut logs, mut plain) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // Which of the two goes first changes, so that a drift of the machine's speed cancels.
        let first = timed(round % 2 == 0)?;
        let second = timed(round % 2 != 0)?;
        let (metered, own) = if round % 2 == 0 { (first, second) } else { (second, first) };
        logs.push((metered / own).ln());
        plain.push(own / STEPS as f64);
    }
    let typical = median(&logs);
    // Rounds that the machine disturbed are as likely on either side; the middle 90 % tell the meter from them.
    logs.sort_by(|a, b| (a - typical).abs().total_cmp(&(b - typical).abs()));
    logs.truncate(ROUNDS * 9 / 10);
    let overhead = ratio_interval(&logs, 0.05).context("no interval from so few rounds")?;
    Ok((median(&plain), overhead))
}

fn doctor_step(_: &PlainCell, bench: &Bench) -> Result<Step> {
    let model = Model::named("mlp-8x64", bench.device)?;
    let batch = model.batch(256);
    let mut optimizer = Sgd::default().build(&model.store, 1e-3)?;
    Ok(Step::new(move |_| {
        let logits = model.forward(&batch.inputs, true);
        optimizer.backward_step(&model.loss(&logits, &batch.targets, Reduction::Mean));
        Ok(())
    }))
}
