//! What was found on this machine, what is missing and what would fix it, and what the lab's own instruments cost.

use crate::machine::{DeviceChoice, Machine, libtorch_version, why_no_cuda};
use crate::measure::{Bench, Probe, Quantity, Step, Timing, time};
use crate::models::{Batch, Model};
use crate::native;
use crate::protocol::Cell;
use crate::stats::{Interval, mean, median, ratio_interval};
use crate::torch::{Backend, Cpu};
use crate::units::{Bytes, Seconds};
use anyhow::{Context, Result, ensure};
use std::process::Command;
use std::time::Instant;
use tch::nn::{Optimizer, OptimizerConfig, Sgd};
use tch::{Device, Reduction};

/// Rounds of the comparison with and without meter.
const ROUNDS: usize = 6;

/// Prints what was found.
///
/// # Errors
/// A part that no experiment can do without is missing; says what would fix it.
pub fn run() -> Result<()> {
    let machine = Machine::describe(DeviceChoice::Cpu)?;
    let found = |name: &str| machine.hardware.get(name).map_or("unknown", String::as_str);
    println!("CPU       {}, {} cores, {} of memory", found("cpu"), found("cores"), found("memory"));
    let library = native::loaded_library().map(|path| path.display().to_string()).unwrap_or_default();
    println!("libtorch  {} ({library})", libtorch_version()?);
    match why_no_cuda() {
        None => {
            let gpu = Machine::describe(DeviceChoice::Cuda(0))?;
            for name in ["gpu", "driver", "gpu power limit"] {
                println!("{name:9} {}", gpu.hardware.get(name).map_or("unknown", String::as_str));
            }
            println!("memory    {}", gpu.device_memory.map_or("unknown".to_string(), |b| Bytes(b).to_string()));
        }
        Some(reason) => println!("CUDA      not used: {reason}"),
    }
    println!("device    experiments run on {} unless --device says otherwise", DeviceChoice::best());
    println!(
        "child     a process for a cell starts in {}",
        Seconds(median(&(0..5).map(|_| start_up()).collect::<Result<Vec<_>>>()?))
    );
    let (step, overhead) = meter_overhead()?;
    println!(
        "meter     counting CPU memory costs {:+.2} % of a step of {} (95 % interval {:+.2} % to {:+.2} %, {ROUNDS} rounds)",
        (overhead.estimate - 1.0) * 100.0,
        Seconds(step),
        (overhead.low - 1.0) * 100.0,
        (overhead.high - 1.0) * 100.0
    );
    Ok(())
}

/// Seconds from starting this program to its end, where it does nothing.
fn start_up() -> Result<f64> {
    let start = Instant::now();
    let output = Command::new(std::env::current_exe()?).arg("--version").output().context("starting a child process")?;
    ensure!(output.status.success(), "a child process ended with {}", output.status);
    Ok(start.elapsed().as_secs_f64())
}

/// Time of a small training step without the meter, and with the meter over without it, from processes side by side.
fn meter_overhead() -> Result<(f64, Interval)> {
    let (mut logs, mut plain) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // Which of the two goes first changes, so that a drift of the machine's speed cancels.
        let order = if round % 2 == 0 { [false, true] } else { [true, false] };
        let times: Vec<(bool, f64)> =
            order.into_iter().map(|metered| Ok((metered, step_in_child(metered)?))).collect::<Result<_>>()?;
        let of = |metered: bool| times.iter().find(|(m, _)| *m == metered).map_or(f64::NAN, |(_, t)| *t);
        logs.push((of(true) / of(false)).ln());
        plain.push(of(false));
    }
    let overhead = ratio_interval(&logs, 0.05).context("no interval from so few rounds")?;
    Ok((mean(&plain), overhead))
}

fn step_in_child(metered: bool) -> Result<f64> {
    let kind = if metered { "metered" } else { "plain" };
    let output =
        Command::new(std::env::current_exe()?).args(["doctor", "--step", kind]).output().context("starting a child process")?;
    ensure!(output.status.success(), "measuring the meter: {}", String::from_utf8_lossy(&output.stderr).trim());
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().with_context(|| format!("'{}' is no time", text.trim()))
}

/// Prints the median time of a step of about 1 ms, with or without the meter.
///
/// # Errors
/// The step cannot be run.
pub fn step(metered: bool) -> Result<()> {
    let backend: Box<dyn Backend> = if metered { Box::new(Cpu::new(None)) } else { Box::new(Cpu::unmetered()) };
    tch::set_num_threads(1);
    let bench = Bench { device: Device::Cpu, seed: 1 };
    let mut step = bench.set_up(small_step, &Cell::new(Vec::new()))?;
    let plan = Timing { samples: 400, warm_up_seconds: 0.2, least_sample: 0.0, ..Timing::default() };
    let found = time(&mut *step, &*backend, plan, &Default::default)?;
    let times: Vec<f64> = found.samples.iter().filter(|s| s.metric == "time").map(|s| s.value).collect();
    println!("{}", median(&times));
    Ok(())
}

fn small_step(_: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    let model = Model::named("mlp-8x64", bench.device)?;
    let batch = model.batch(256);
    let optimizer = Sgd::default().build(&model.store, 1e-3)?;
    Ok(Box::new(SmallStep { model, batch, optimizer }))
}

struct SmallStep {
    model: Model,
    batch: Batch,
    optimizer: Optimizer,
}

impl Step for SmallStep {
    fn run(&mut self, _: &mut Probe) -> Result<()> {
        let logits = self.model.forward(&self.batch.inputs, true);
        self.optimizer.backward_step(&self.model.loss(&logits, &self.batch.targets, Reduction::Mean));
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "gradient", tensors: self.model.gradients() }])
    }
}
