//! `vramlab ddp`: distributed data parallel training as one of the processes that a launcher started, and where its memory goes.

use super::SettingsFlags;
use super::table::{aligned, bytes};
use anyhow::{Context, Result, bail, ensure};
use base::stats::median;
use base::units::Seconds;
use clap::Args;
use harness::machine::{DeviceChoice, cores};
use harness::measure::distance;
use harness::runner::open;
use models::{Batch, Model};
use serde::Serialize;
use std::time::Duration;
use tch::nn::{AdamW, Optimizer, OptimizerConfig};
use tch::{Device, Kind, Reduction, Tensor};
use torch::attempt;
use torch::ddp::{Ddp, DdpOptions};
use torch::distributed::{Launch, ProcessGroup};

/// Iterations whose bytes are followed; buckets are built anew in the second.
const FOLLOWED: u32 = 3;

/// Flags of `vramlab ddp`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Started by a launcher, once for each rank; by itself it is one process that communicates with nobody:

  torchrun --no-python --nproc-per-node 2 vramlab ddp --device cpu --model mlp-8x512 --batch 32

The launcher's RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT say who is who. On the CPU the processes talk with Gloo (by the
interface in GLOO_SOCKET_IFNAME, or this machine's name), on GPUs with NCCL. Rank 0 prints.")]
pub struct DdpFlags {
    /// A model of the lab: resnet50, gpt2, bert-base, mlp-DEPTHxWIDTH and others
    #[arg(long, value_name = "NAME")]
    pub model: String,

    #[command(flatten)]
    pub settings: SettingsFlags,

    /// Samples of each rank
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=1 << 20))]
    pub batch: i64,

    /// Largest bucket in MiB [default: PyTorch's: 25, and 1 for the first]
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub bucket_cap_mb: Option<u64>,

    /// Gradients are views of the buckets
    #[arg(long)]
    pub gradient_as_bucket_view: bool,

    /// Where to train: cpu, or cuda, where each rank takes the GPU of its LOCAL_RANK [default: cuda where libtorch can use it, else cpu]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,

    /// Threads that libtorch computes with in each rank [default: all cores, shared out among the ranks of this machine]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,

    /// Steps that are timed
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub steps: u32,

    /// How long a rank waits for the others before it fails
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,

    /// Print JSON with bytes and seconds as plain numbers
    #[arg(long)]
    pub json: bool,
}

/// What rank 0 prints.
#[derive(Debug, Serialize)]
struct DdpReport {
    schema: u32,
    command: &'static str,
    model: String,
    batch: i64,
    world_size: usize,
    communication: &'static str,
    gradient_as_bucket_view: bool,
    /// Relative distance of the averaged gradients from those of rank 0 alone on the joined batch.
    gradient_error: f64,
    /// Ranks that differ end with an error, so a report says true.
    parameters_equal: bool,
    gradient_bytes: i64,
    moments: Vec<DdpMoment>,
    /// Bytes of each bucket after they were built anew, in the order in which they are reduced.
    buckets: Vec<i64>,
    step_seconds: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct DdpMoment {
    name: String,
    /// Bytes of all live tensors, and their peak since the moment before.
    live: i64,
    peak: i64,
}

/// Trains as one rank, and prints on rank 0.
///
/// # Errors
/// The environment is half a launcher's; the model or the device cannot be had; the ranks do not fit each other; a rank is gone or late.
pub fn ddp(flags: &DdpFlags) -> Result<()> {
    let launch = Launch::from_environment()?;
    let who = launch.as_ref().map_or(String::new(), |launch| format!("rank {} of {}", launch.rank, launch.world_size));
    let run = attempt(|| train(flags, launch.as_ref()));
    let (rank, report) = if who.is_empty() { run? } else { run.context(who)? };
    if rank == 0 {
        match flags.json {
            true => println!("{}", serde_json::to_string_pretty(&report)?),
            false => print!("{}", report.text()),
        }
    }
    Ok(())
}

fn train(flags: &DdpFlags, launch: Option<&Launch>) -> Result<(usize, DdpReport)> {
    Model::check(&flags.model, &flags.settings.settings(), flags.batch)?;
    let choice = match (flags.device.unwrap_or_else(DeviceChoice::best), launch) {
        (DeviceChoice::Dry(_), _) => {
            bail!("a simulated GPU has nobody to talk to; `ddp_buckets --device dry` predicts one process's bytes")
        }
        (DeviceChoice::Cuda(_), Some(launch)) => DeviceChoice::Cuda(u32::try_from(launch.local_rank)?),
        (choice, _) => choice,
    };
    tch::set_num_threads(threads(flags)?);
    let backend = open(choice, None)?;
    let timeout = Duration::from_secs(flags.timeout);
    let (group, communication) = match (launch, choice) {
        (None, _) => (ProcessGroup::alone(backend.device(), 1)?, "none"),
        (Some(launch), DeviceChoice::Cuda(_)) => (ProcessGroup::launched(launch, backend.device(), timeout)?, "nccl"),
        (Some(launch), _) => (ProcessGroup::launched(launch, backend.device(), timeout)?, "gloo"),
    };
    let gradient_error = checked(flags, &group)?;
    let before = backend.memory()?.requested;
    let mut moments = Vec::new();
    let mut at = |name: &str| -> Result<()> {
        let memory = backend.memory()?;
        moments.push(DdpMoment { name: name.to_string(), live: memory.requested - before, peak: memory.requested_peak - before });
        backend.reset_peaks()
    };
    backend.reset_peaks()?;
    let (model, batch) = flags.loaded(&group)?;
    let share = share(&batch, &group, flags.batch)?;
    drop(batch);
    let mut optimizer = AdamW::default().build(&model.store, 1e-4)?;
    at("model and data")?;
    let ddp = Ddp::of(&model.store, &group, flags.options())?;
    at("DDP is built")?;
    for iteration in 1..=FOLLOWED {
        let mut phase = |name: &str| at(&format!("iteration {iteration}: {name}"));
        iterate(&model, &ddp, &mut optimizer, &share, &mut phase)?;
    }
    let mut step_seconds = Vec::new();
    for _ in 0..flags.steps {
        step_seconds.push(backend.time(&mut || iterate(&model, &ddp, &mut optimizer, &share, &mut |_| Ok(())))?);
    }
    ddp.check_reduced()?;
    group.agree("the parameters after training", &format!("{:016x}", fingerprint(&model.parameters())?))?;
    let report = DdpReport {
        schema: 1,
        command: "ddp",
        model: flags.model.clone(),
        batch: flags.batch,
        world_size: group.size(),
        communication,
        gradient_as_bucket_view: flags.gradient_as_bucket_view,
        gradient_error,
        parameters_equal: true,
        gradient_bytes: ddp.bucket_bytes()?.iter().sum(),
        moments,
        buckets: ddp.bucket_bytes()?,
        step_seconds,
    };
    // Rank 0 may serve the store: nobody leaves before all are done.
    group.barrier()?;
    Ok((group.rank(), report))
}

/// libtorch's threads, shared out among the ranks of this machine.
fn threads(flags: &DdpFlags) -> Result<i32> {
    let here = std::env::var("LOCAL_WORLD_SIZE").ok().and_then(|text| text.parse::<usize>().ok()).unwrap_or(1);
    let threads = flags.threads.map_or((cores() / here.max(1)).max(1), |threads| threads as usize);
    Ok(i32::try_from(threads)?)
}

impl DdpFlags {
    fn options(&self) -> DdpOptions {
        let bucket_cap = self.bucket_cap_mb.map(|mib| mib << 20);
        DdpOptions { bucket_cap, gradient_as_bucket_view: self.gradient_as_bucket_view }
    }

    /// A model whose values are this rank's own until DDP gives it those of rank 0, and the batch of all ranks, which is the same everywhere.
    fn loaded(&self, group: &ProcessGroup) -> Result<(Model, Batch)> {
        tch::manual_seed(1000 + i64::try_from(group.rank())?);
        let model = Model::with(&self.model, &self.settings.settings(), group.device())?;
        tch::manual_seed(1);
        let samples = self.batch.checked_mul(i64::try_from(group.size())?).context("more samples than can be counted")?;
        let batch = model.batch(samples);
        Ok((model, batch))
    }
}

fn share(batch: &Batch, group: &ProcessGroup, samples: i64) -> Result<Batch> {
    let share = batch.narrow(i64::try_from(group.rank())? * samples, samples);
    Ok(Batch { inputs: share.inputs.copy(), targets: share.targets.copy() })
}

fn iterate(
    model: &Model,
    ddp: &Ddp,
    optimizer: &mut Optimizer,
    batch: &Batch,
    phase: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    ddp.zero_grad();
    let loss = ddp.forward(|| Ok(loss(model, batch)))?;
    phase("forward")?;
    loss.f_backward()?;
    drop(loss);
    phase("backward")?;
    optimizer.step();
    phase("step")
}

fn loss(model: &Model, batch: &Batch) -> Tensor {
    model.loss(&model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean)
}

/// Relative distance of one backward pass's averaged gradients from those of one process on the joined batch, which rank 0 computes. (With
/// batch norm or dropout the two are not the same computation.)
fn checked(flags: &DdpFlags, group: &ProcessGroup) -> Result<f64> {
    let (model, batch) = flags.loaded(group)?;
    let ddp = Ddp::of(&model.store, group, flags.options())?;
    let share = share(&batch, group, flags.batch)?;
    ddp.forward(|| Ok(loss(&model, &share)))?.f_backward()?;
    if group.rank() > 0 {
        return Ok(0.0);
    }
    let parameters = model.parameters();
    let joined = Tensor::f_run_backward(&[loss(&model, &batch)], &parameters, false, false)?;
    distance(&model.gradients(), &joined, 1.0)
}

/// A number that differs where any bit of a tensor differs, but for chance.
fn fingerprint(tensors: &[Tensor]) -> Result<u64> {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for tensor in tensors {
        let flat = tensor.detach().to_device(Device::Cpu).to_kind(Kind::Float).reshape([-1]);
        let values = Vec::<f32>::try_from(&flat)?;
        ensure!(values.iter().all(|value| value.is_finite()), "a parameter is not finite after training");
        // FNV-1a, a value at a time.
        hash = values.iter().fold(hash, |hash, value| (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01b3));
    }
    Ok(hash)
}

impl DdpReport {
    fn text(&self) -> String {
        let view = if self.gradient_as_bucket_view { "views of buckets" } else { "copies" };
        let mut text = format!(
            "{} with {} samples for each of {} ranks, communication: {}, gradients: {view}\n",
            self.model, self.batch, self.world_size, self.communication
        );
        let mut rows = vec![["rank 0", "live", "peak until then"].map(str::to_string).to_vec()];
        rows.extend(self.moments.iter().map(|m| vec![m.name.clone(), bytes(m.live), bytes(m.peak)]));
        text += &format!("\n{}\n", aligned(&rows));
        let buckets: Vec<String> = self.buckets.iter().map(|b| bytes(*b)).collect();
        text += &format!("gradients: {}; buckets: {}\n", bytes(self.gradient_bytes), buckets.join(", "));
        text += &format!("gradients of the joined batch in one process: {:.1e} away\n", self.gradient_error);
        text += "parameters after training: the same to the bit on all ranks\n";
        text + &format!("{} a step, the median of {}\n", Seconds(median(&self.step_seconds)), self.step_seconds.len())
    }
}
