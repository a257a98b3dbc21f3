//! The simulated GPU on real processes: it agrees with the counted CPU to the byte, its allocator is PyTorch's, and it never meets a real
//! GPU's libraries. (No harness: a dry process is a process of its own, so this program starts itself again, with a role.)

mod roles;

use anyhow::{Context, Result, bail, ensure};
use models::Model;
use rand::{RngExt, SeedableRng};
use record::results::{Run, Status};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::process::{Command, ExitCode};
use tch::nn::{self, Optimizer, OptimizerConfig, VarStore};
use tch::{Device, Kind, Reduction, Tensor};
use torch::dry::{self, Dry};
use torch::{self, Backend, Cpu, allocations, autocast};

const MIB: i64 = 1 << 20;
const FLOAT: (Kind, Device) = (Kind::Float, Device::Cuda(0));

fn main() -> ExitCode {
    let tests: &[(&str, fn())] = &[
        ("statistics_are_pytorchs_and_the_same_every_time", statistics_are_pytorchs_and_the_same_every_time),
        ("memory_runs_out_with_pytorchs_message", memory_runs_out_with_pytorchs_message),
        ("allocator_settings_change_what_is_reserved", allocator_settings_change_what_is_reserved),
        ("an_operation_that_is_missing_is_named", an_operation_that_is_missing_is_named),
        ("tensors_of_two_devices_do_not_mix", tensors_of_two_devices_do_not_mix),
        ("a_process_is_dry_or_real", a_process_is_dry_or_real),
        ("values_are_the_documented_constants", values_are_the_documented_constants),
        ("kernels_that_pytorch_compiles_while_it_runs_run_nothing", kernels_that_pytorch_compiles_while_it_runs_run_nothing),
        ("every_model_trains", every_model_trains),
        ("every_experiment_runs", every_experiment_runs),
        ("recurrent_networks_take_what_cudnn_keeps_for_them", recurrent_networks_take_what_cudnn_keeps_for_them),
        ("recorded_allocations_add_up_to_the_meter", recorded_allocations_add_up_to_the_meter),
        ("a_dry_run_counts_what_the_cpu_counts", a_dry_run_counts_what_the_cpu_counts),
        ("known_differences_have_their_formula", known_differences_have_their_formula),
        ("gigabytes_cost_no_memory", gigabytes_cost_no_memory),
    ];
    roles::main(play, tests)
}

// ---- processes ---------------------------------------------------------------------------------------------------------------------------

fn command(role: &str, argument: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--role", role, argument]).env_remove("PYTORCH_ALLOC_CONF").env_remove("PYTORCH_CUDA_ALLOC_CONF");
    command
}

fn dry_command(role: &str, argument: &str, memory: i64, settings: &str) -> Command {
    let mut command = command(role, argument);
    dry::prepare(&mut command, memory as u64).unwrap();
    if !settings.is_empty() {
        command.env("PYTORCH_ALLOC_CONF", settings);
    }
    command
}

fn outcome(mut command: Command) -> Result<Value> {
    let output = command.output()?;
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}: {complaint}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What a role answers in a dry process with a card of so many bytes.
fn dry_answer(role: &str, argument: &str, memory: i64, settings: &str) -> Value {
    outcome(dry_command(role, argument, memory, settings)).unwrap()
}

fn dry_failure(role: &str) -> String {
    outcome(dry_command(role, "", 1024 * MIB, "")).unwrap_err().to_string()
}

fn play(role: &str, argument: &str) -> Result<Value> {
    tch::set_num_threads(1);
    Ok(match role {
        "statistics" => statistics()?,
        "allocate" => allocate(argument)?,
        "nonzero" => {
            Dry::open()?;
            Tensor::zeros([4], FLOAT).f_nonzero().map(|_| Value::Null)?
        }
        "mixed" => {
            Dry::open()?;
            (Tensor::zeros([4], FLOAT).f_add(&Tensor::zeros([4], (Kind::Float, Device::Cpu)))).map(|_| Value::Null)?
        }
        "open" => {
            Dry::open()?;
            serde_json::json!(torch::load_cuda().map_err(|e| e.to_string()).err())
        }
        "values" => values()?,
        "compiled" => compiled()?,
        "models" => models()?,
        "recurrent" => recurrent()?,
        "recorded" => recorded(argument)?,
        "counted" => serde_json::to_value(counted(argument)?)?,
        "differences" => differences(argument)?,
        "huge" => huge()?,
        _ => bail!("no role '{role}'"),
    })
}

fn open(device: &str) -> Result<Box<dyn Backend>> {
    Ok(if device == "cpu" { Box::new(Cpu::new(None)) } else { Box::new(Dry::open()?) })
}

/// Opens a device and multiplies once in each thread, the caller's and autograd's: cuBLAS's workspaces, which stay, are there before
/// anything is counted.
fn open_with_workspaces(device: &str) -> Result<Box<dyn Backend>> {
    let backend = open(device)?;
    let x = Tensor::randn([32, 32], (Kind::Float, backend.device())).set_requires_grad(true);
    let bias = Tensor::zeros([32], (Kind::Float, backend.device()));
    x.linear(&x, Some(&bias)).sum(Kind::Float).f_backward()?;
    Ok(backend)
}

// ---- the allocator -----------------------------------------------------------------------------------------------------------------------

fn statistics() -> Result<Value> {
    let device = Dry::open()?;
    ensure!(tch::Cuda::is_available() && tch::Cuda::device_count() == 1 && tch::Cuda::cudnn_is_available());
    let mut seen = Vec::new();
    let mut see = || -> Result<()> {
        let m = torch::cuda_memory(0)?;
        seen.push([m.requested, m.allocated, m.reserved, m.inactive_split]);
        Ok(())
    };
    see()?;
    let small = Tensor::zeros([1000], (Kind::Uint8, Device::Cuda(0)));
    see()?;
    let large = Tensor::zeros([3 * MIB], (Kind::Uint8, Device::Cuda(0)));
    see()?;
    drop((small, large));
    see()?;
    torch::empty_cuda_cache()?;
    see()?;
    let peak = torch::cuda_memory(0)?.reserved_peak;
    device.reset_peaks()?;
    ensure!(torch::cuda_memory(0)?.reserved_peak == 0);
    ensure!(device.time(&mut || Ok(())).unwrap_err().to_string().contains("nothing of it takes time"));
    Ok(serde_json::json!([seen, peak]))
}

fn statistics_are_pytorchs_and_the_same_every_time() {
    let first = dry_answer("statistics", "", 1024 * MIB, "");
    let expected = serde_json::json!([
        [
            [0, 0, 0, 0],
            // Blocks are multiples of 512 bytes; the first small one brings a segment of 2 MiB.
            [1000, 1024, 2 * MIB, 2 * MIB - 1024],
            // A block from 1 to 10 MiB brings a segment of 20 MiB.
            [1000 + 3 * MIB, 1024 + 3 * MIB, 22 * MIB, 19 * MIB - 1024],
            [0, 0, 22 * MIB, 0],
            [0, 0, 0, 0],
        ],
        22 * MIB
    ]);
    assert_eq!(first, expected);
    assert_eq!(dry_answer("statistics", "", 1024 * MIB, ""), first);
}

/// Allocates and frees: `a100 f0 a50` allocates 100 MiB, frees the first allocation and allocates 50 MiB.
fn allocate(script: &str) -> Result<Value> {
    Dry::open()?;
    let mut tensors = Vec::new();
    for word in script.split(' ') {
        let (action, number) = word.split_at(1);
        let number: i64 = number.parse()?;
        match action {
            "a" => tensors.push(Some(Tensor::f_empty([number * MIB], (Kind::Uint8, Device::Cuda(0)))?)),
            _ => *tensors.get_mut(number as usize).context("no such allocation")? = None,
        }
    }
    let m = torch::cuda_memory(0)?;
    Ok(serde_json::json!({
        "requested": m.requested / MIB, "allocated": m.allocated / MIB, "reserved": m.reserved / MIB,
        "retries": m.retries, "ooms": m.out_of_memory_errors, "free": m.free / MIB,
    }))
}

fn memory_runs_out_with_pytorchs_message() {
    let error = outcome(dry_command("allocate", "a600 a600", 1024 * MIB, "")).unwrap_err().to_string();
    for part in [
        "CUDA out of memory. Tried to allocate 600.00 MiB. GPU 0 has a total capacity of 1024.00 MiB of which 424.00 MiB is free.",
        "this process has 600.00 MiB memory in use",
        "Of the allocated memory 600.00 MiB is allocated by PyTorch",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let error = outcome(dry_command("allocate", "a600", 1024 * MIB, "per_process_memory_fraction:0.5")).unwrap_err().to_string();
    assert!(error.contains("512.00 MiB allowed"), "{error}");
    // What is cached is given back before memory runs out, which counts as a retry.
    let saved = dry_answer("allocate", "a600 f0 a700", 1024 * MIB, "");
    assert_eq!((&saved["retries"], &saved["ooms"], &saved["free"]), (&1.into(), &0.into(), &324.into()));
}

fn allocator_settings_change_what_is_reserved() {
    let figure =
        |script: &str, settings: &str, figure: &str| dry_answer("allocate", script, 4096 * MIB, settings)[figure].as_i64().unwrap();
    let split = "a100 f0 a50";
    assert_eq!(figure(split, "", "reserved"), 100, "the cached block is split");
    assert_eq!(figure(split, "max_split_size_mb:32", "reserved"), 150, "too large to be split");
    assert_eq!(figure("a1200", "", "allocated"), 1200);
    assert_eq!(figure("a1200", "roundup_power2_divisions:4", "allocated"), 1280, "a quarter of 1024 MiB upwards");
    let grows = "a100 a100 f0 f1 a180";
    assert_eq!(figure(grows, "", "reserved"), 380, "two blocks of 100 hold no 180");
    assert_eq!(figure(grows, "expandable_segments:True", "reserved"), 200, "one segment of 200 does");
    let error = outcome(dry_command("allocate", "a1500 a3000", 4096 * MIB, "expandable_segments:True")).unwrap_err().to_string();
    assert!(error.contains("CUDA out of memory. Tried to allocate 2.93 GiB."), "{error}");
    let error = outcome(dry_command("allocate", "a1", 1024 * MIB, "no_such_setting:1")).unwrap_err().to_string();
    assert!(error.contains("no_such_setting"), "PyTorch reads the settings: {error}");
}

// ---- what it refuses ---------------------------------------------------------------------------------------------------------------------

fn an_operation_that_is_missing_is_named() {
    let error = dry_failure("nonzero");
    assert!(error.contains("cannot run aten::nonzero") && error.contains("depends on values"), "{error}");
}

fn tensors_of_two_devices_do_not_mix() {
    let error = dry_failure("mixed");
    assert!(error.contains("Expected all tensors to be on the same device"), "{error}");
}

fn a_process_is_dry_or_real() {
    let refused = dry_answer("open", "", 1024 * MIB, "");
    assert!(refused.as_str().unwrap().contains("dry or real, never both"), "load_cuda in a dry process: {refused}");
    let error = outcome(command("open", "")).unwrap_err().to_string();
    assert!(error.contains("was not started as a dry one"), "{error}");
    assert!(dry::prepare(&mut Command::new("true"), 0).unwrap_err().to_string().contains("without memory"));
}

fn values() -> Result<Value> {
    Dry::open()?;
    tch::manual_seed(1);
    let float = Tensor::randn([3], FLOAT);
    let int = Tensor::randint(9, [3], (Kind::Int64, Device::Cuda(0)));
    let copied: Vec<f32> = Vec::try_from(float.to_device(Device::Cpu))?;
    Ok(serde_json::json!([
        float.sum(Kind::Float).double_value(&[]),
        int.max().int64_value(&[]),
        i64::from(bool::try_from(float.gt(0.0).any())?),
        copied
    ]))
}

fn values_are_the_documented_constants() {
    assert_eq!(dry_answer("values", "", 1024 * MIB, ""), serde_json::json!([0.0, 1, 0, [0.0, 0.0, 0.0]]));
}

// ---- what it runs ------------------------------------------------------------------------------------------------------------------------

/// As trunc_normal_, with which torchvision's vision transformers begin.
fn compiled() -> Result<Value> {
    let dry = Dry::open()?;
    let x = Tensor::zeros([1000], FLOAT);
    let before = dry.memory()?.requested;
    drop(x.f_erfinv()?);
    Ok(serde_json::json!([before, dry.memory()?.requested_peak]))
}

fn kernels_that_pytorch_compiles_while_it_runs_run_nothing() {
    assert_eq!(dry_answer("compiled", "", 1 << 30, ""), serde_json::json!([4000, 8000]));
}

fn optimizer(name: &str, store: &VarStore) -> Result<Optimizer> {
    Ok(match name {
        "sgd" => nn::Sgd::default().build(store, 1e-3)?,
        "momentum" => nn::Sgd { momentum: 0.9, ..nn::Sgd::default() }.build(store, 1e-3)?,
        "adam" => nn::Adam::default().build(store, 1e-3)?,
        "adamw" => nn::AdamW::default().build(store, 1e-3)?,
        "rmsprop" => nn::RmsProp::default().build(store, 1e-3)?,
        other => bail!("no optimizer '{other}'"),
    })
}

const OPTIMIZERS: [&str; 5] = ["sgd", "momentum", "adam", "adamw", "rmsprop"];

/// Each kind of model under each precision, then the primitives of a GradScaler.
fn models() -> Result<Value> {
    let backend = Dry::open()?;
    let mut trained = 0;
    for (name, optimizer_name) in [
        ("mlp-2x32", "sgd"),
        ("resnet-2x8-gn", "momentum"),
        ("resnet-2x8-bn", "adam"),
        ("gpt-2x64", "adamw"),
        ("gpt-2x96", "rmsprop"),
    ] {
        for kind in [Kind::Float, Kind::Half, Kind::BFloat16] {
            let model = Model::named(name, backend.device())?;
            let mut optimizer = optimizer(optimizer_name, &model.store)?;
            let batch = model.batch(4);
            for _ in 0..2 {
                let logits = autocast(backend.device(), kind, || model.forward(&batch.inputs, true))?;
                let expected = if kind == Kind::Float { Kind::Float } else { kind };
                ensure!(logits.kind() == expected, "{name}: logits of {:?} under autocast to {kind:?}", logits.kind());
                let loss = model.loss(&logits.to_kind(Kind::Float), &batch.targets, Reduction::Mean);
                optimizer.zero_grad();
                loss.f_backward()?;
                optimizer.step();
            }
            ensure!(model.gradients().iter().all(Tensor::defined), "{name}: a gradient is missing");
            ensure!(tch::no_grad(|| model.forward(&batch.inputs, false)).size()[0] > 0, "{name}: evaluation");
            trained += 1;
        }
    }
    let x = Tensor::randn([4, 3, 16, 16], FLOAT).set_requires_grad(true);
    let rms = x.rms_norm([16], Some(&Tensor::ones([16], FLOAT).set_requires_grad(true)), None);
    rms.sum(Kind::Float).f_backward()?;
    let pooled = x.max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false).avg_pool2d([2, 2], [2, 2], [0, 0], false, true, None);
    let y = pooled.adaptive_avg_pool2d([2, 2]).flatten(1, -1).softmax(-1, Kind::Float);
    y.sum(Kind::Float).f_backward()?;
    ensure!(x.grad().size() == x.size());
    let gradient = Tensor::ones([8], FLOAT);
    let (mut found, scale) = (Tensor::zeros([1], FLOAT), Tensor::full([1], 65536.0, FLOAT));
    gradient.shallow_clone().f_internal_amp_non_finite_check_and_unscale(&mut found, &scale.reciprocal())?;
    ensure!(found.double_value(&[]) == 0.0, "nothing overflows");
    let mut scale = scale;
    let growth = Tensor::zeros([1], (Kind::Int, Device::Cuda(0)));
    let _ = scale.f_internal_amp_update_scale_(&growth, &found, 2.0, 0.5, 2000)?;
    Ok(trained.into())
}

/// Bytes that the forward pass of an LSTM and of a GRU leaves alive; both go back, too.
fn recurrent() -> Result<Value> {
    let device = Dry::open()?;
    let store = VarStore::new(device.device());
    let layers: [&dyn Fn(&Tensor) -> Tensor; 2] = [
        &{
            let layer = nn::lstm(store.root(), 512, 512, Default::default());
            move |x: &Tensor| nn::RNN::seq(&layer, x).0
        },
        &{
            let layer = nn::gru(store.root(), 512, 512, Default::default());
            move |x: &Tensor| nn::RNN::seq(&layer, x).0
        },
    ];
    let mut left = Vec::new();
    for layer in layers {
        let x = Tensor::randn([8, 8, 512], FLOAT);
        let before = device.memory()?.requested;
        let y = layer(&x);
        left.push(device.memory()?.requested - before);
        y.f_sum(Kind::Float)?.f_backward()?;
    }
    ensure!(store.trainable_variables().iter().all(|v| v.grad().defined()), "each weight has its gradient");
    Ok(serde_json::to_value(left)?)
}

fn recurrent_networks_take_what_cudnn_keeps_for_them() {
    // The output, the first state (tch starts both of an LSTM's with one tensor), and what cuDNN keeps. Who calls here does not hold the
    // last states.
    let (output, state) = (8 * 8 * 512 * 4, 8 * 512 * 4);
    let left = [output + state + 5 * output + 256, output + state + 6 * output + 256];
    assert_eq!(dry_answer("recurrent", "", 8192 * MIB, ""), serde_json::json!(left));
}

fn every_model_trains() {
    assert_eq!(dry_answer("models", "", 4096 * MIB, ""), serde_json::json!(15));
}

fn every_experiment_runs() {
    let out = tempfile::tempdir().unwrap();
    for program in [
        env!("CARGO_BIN_EXE_accumulation"),
        env!("CARGO_BIN_EXE_amp"),
        env!("CARGO_BIN_EXE_checkpointing"),
        env!("CARGO_BIN_EXE_combined"),
        env!("CARGO_BIN_EXE_ddp_buckets"),
        env!("CARGO_BIN_EXE_empty_cache"),
        env!("CARGO_BIN_EXE_free_tensors"),
        env!("CARGO_BIN_EXE_inplace"),
        env!("CARGO_BIN_EXE_load_checkpoint"),
        env!("CARGO_BIN_EXE_no_grad"),
        env!("CARGO_BIN_EXE_step_timeline"),
        env!("CARGO_BIN_EXE_optimizer_state"),
        env!("CARGO_BIN_EXE_transfer_learning"),
        env!("CARGO_BIN_EXE_published"),
    ] {
        let run = || {
            let output = Command::new(program)
                .args(["--device", "dry:8GiB", "--profile", "smoke", "--out"])
                .arg(out.path())
                .env_remove("PYTORCH_ALLOC_CONF")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(output.status.success(), "{program}: {said}");
            said
        };
        run();
        let name = program.rsplit('/').next().unwrap();
        let recorded = Run::read(&out.path().join("dry-8gib").join(name)).unwrap();
        let mut memory_rows = 0;
        for cell in &recorded.manifest.planned {
            let passes: Vec<_> = recorded.passes.iter().filter(|p| p.cell.to_string() == *cell).collect();
            assert!(!passes.is_empty(), "{cell} left no row");
            for pass in passes {
                let small = cell.contains("device-memory=1MiB");
                match pass.pass.to_string().as_str() {
                    "memory" if small => {
                        assert_eq!(pass.status, Status::Oom, "{cell}");
                        assert!(pass.reason.contains("CUDA out of memory. Tried to allocate"), "{cell}: {}", pass.reason);
                    }
                    "memory" if pass.reason.contains("only these devices have") => assert_eq!(pass.status, Status::Skipped),
                    "memory" => {
                        assert_eq!(pass.status, Status::Ok, "{cell}: {}", pass.reason);
                        let has = |metric: &str| pass.samples.iter().any(|s| s.metric == metric && s.value > 0.0);
                        // A step that resets peaks itself has figures of its own in their place.
                        let peaks =
                            ["requested_peak", "allocated_peak", "reserved_peak"].into_iter().filter(|metric| has(metric)).count();
                        assert!(peaks == 3 || (peaks == 0 && cell.contains("softcap=") && has("both_copies")), "{cell}");
                        memory_rows += peaks;
                    }
                    _ => {
                        assert_eq!(pass.status, Status::Skipped, "{cell}");
                        let why = ["a simulated GPU computes nothing", "only these devices have"];
                        assert!(why.iter().any(|why| pass.reason.contains(why)), "{cell}: {}", pass.reason);
                    }
                }
            }
        }
        assert!(memory_rows > 0, "{name} counted nothing");
        assert!(run().contains(" 0 passes in"), "a second run has nothing to do");
    }
    for device in ["dry:", "dry:lots", "dry:0"] {
        let output = Command::new(env!("CARGO_BIN_EXE_inplace")).args(["--device", device, "--profile", "smoke"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains("like dry:24GiB"), "{device}: {said}");
    }
}

fn recorded(device: &str) -> Result<Value> {
    let backend = open_with_workspaces(device)?;
    let model = Model::named("mlp-3x64", backend.device())?;
    let batch = model.batch(32);
    let mut optimizer = optimizer("adam", &model.store)?;
    let before = backend.memory()?.requested;
    backend.reset_peaks()?;
    allocations::record(backend.device())?;
    optimizer.backward_step(&model.loss(&model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean));
    allocations::stop();
    let after = backend.memory()?;
    drop(Tensor::zeros([8], (Kind::Float, backend.device())));
    let (mut live, mut peak) = (before, before);
    let events = allocations::take();
    for event in &events {
        live += event.change();
        peak = peak.max(live);
    }
    ensure!(!events.is_empty() && allocations::take().is_empty(), "events are handed over once, and only while recording");
    Ok(serde_json::json!([live - after.requested, peak - after.requested_peak]))
}

fn recorded_allocations_add_up_to_the_meter() {
    assert_eq!(dry_answer("recorded", "dry", 1024 * MIB, ""), serde_json::json!([0, 0]));
    assert_eq!(outcome(command("recorded", "cpu")).unwrap(), serde_json::json!([0, 0]));
}

// ---- the same bytes as the CPU's -----------------------------------------------------------------------------------------------------------

/// A model of operations that CPU and CUDA allocate alike for, and how it is trained.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Configuration {
    layers: i64,
    width: i64,
    heads: i64,
    batch: i64,
    sequence: i64,
    vocabulary: i64,
    attention: bool,
    optimizer: String,
    accumulate: i64,
}

impl Configuration {
    fn random(random: &mut rand_chacha::ChaCha8Rng) -> Configuration {
        let heads = random.random_range(1..=4);
        Configuration {
            layers: random.random_range(1..=4),
            width: heads * random.random_range(3..=20),
            heads,
            batch: random.random_range(1..=9),
            sequence: random.random_range(2..=24),
            vocabulary: random.random_range(5..=200),
            attention: random.random_bool(0.6),
            optimizer: OPTIMIZERS[random.random_range(0..OPTIMIZERS.len())].to_string(),
            accumulate: random.random_range(1..=3),
        }
    }
}

/// Bytes after one phase of a training step, and the most within it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Phase {
    name: String,
    live: i64,
    peak: i64,
}

/// Two training steps of each configuration.
fn counted(argument: &str) -> Result<Vec<Vec<Phase>>> {
    let (device, seed) = argument.split_once(' ').context("a device and a seed")?;
    let backend = open_with_workspaces(device)?;
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed.parse()?);
    (0..CONFIGURATIONS).map(|_| train(&Configuration::random(&mut random), &*backend)).collect()
}

const CONFIGURATIONS: usize = 60;

struct Weights(Vec<Tensor>);

impl Weights {
    /// A pre-norm block of attention, written out, or of two linear layers.
    fn block(&self, x: &Tensor, c: &Configuration) -> Tensor {
        let w = &self.0;
        let x_normal = x.layer_norm([c.width], None::<&Tensor>, None::<&Tensor>, 1e-5, true);
        if !c.attention {
            return x + x_normal.linear(&w[0], Some(&w[1])).gelu("none").linear(&w[2], Some(&w[3]));
        }
        let qkv = x_normal.linear(&w[0], Some(&w[1])).chunk(3, -1);
        let size = x.size();
        let by_head = |t: &Tensor| t.reshape([size[0], size[1], c.heads, c.width / c.heads]).transpose(1, 2);
        let scores = by_head(&qkv[0]).matmul(&by_head(&qkv[1]).transpose(-2, -1)).softmax(-1, Kind::Float);
        let mixed = scores.matmul(&by_head(&qkv[2])).transpose(1, 2).reshape(&size);
        x + mixed.linear(&w[2], Some(&w[3]))
    }
}

fn train(c: &Configuration, backend: &dyn Backend) -> Result<Vec<Phase>> {
    let base = backend.memory()?.requested;
    let store = VarStore::new(backend.device());
    let root = store.root();
    let inner = if c.attention { 3 * c.width } else { 2 * c.width };
    let from_inner = if c.attention { c.width } else { inner };
    let blocks: Vec<Weights> = (0..c.layers)
        .map(|i| {
            let path = &root / i;
            let shapes = [vec![inner, c.width], vec![inner], vec![c.width, from_inner], vec![c.width]];
            Weights(shapes.iter().enumerate().map(|(j, shape)| path.randn_standard(&format!("w{j}"), shape)).collect())
        })
        .collect();
    let table = root.randn_standard("table", &[c.vocabulary, c.width]);
    let mut optimizer = optimizer(&c.optimizer, &store)?;
    let tokens = Tensor::randint(c.vocabulary, [c.batch, c.sequence], (Kind::Int64, backend.device()));
    let mut phases = Vec::new();
    let mut phase = |name: String| -> Result<()> {
        let m = backend.memory()?;
        phases.push(Phase { name, live: m.requested - base, peak: m.requested_peak - base });
        backend.reset_peaks()
    };
    backend.reset_peaks()?;
    for step in 0..2 {
        optimizer.zero_grad();
        for part in 0..c.accumulate {
            let mut x = Tensor::embedding(&table, &tokens, -1, false, false);
            for block in &blocks {
                x = block.block(&x, c);
            }
            let logits = x.matmul(&table.transpose(0, 1)).view([-1, c.vocabulary]);
            let loss = logits.cross_entropy_loss::<Tensor>(&tokens.view([-1]), None, Reduction::Mean, -100, 0.0);
            drop((x, logits));
            phase(format!("step {step}, part {part}: forward"))?;
            loss.f_backward()?;
            drop(loss);
            phase(format!("step {step}, part {part}: backward"))?;
        }
        optimizer.step();
        phase(format!("step {step}: optimizer"))?;
    }
    Ok(phases)
}

/// Bytes of CPU scalars at the peak of an optimizer's step: a factor that multiplies is a tensor of 8 bytes and, cast to the parameters'
/// kind, one of 4. On CUDA it stays on the CPU and is handed to the kernel. Plain SGD multiplies by none, momentum from its second step on.
fn scalar_bytes(optimizer: &str, phase: &str) -> i64 {
    match (optimizer, phase) {
        ("sgd", _) | ("momentum", "step 0: optimizer") => 0,
        (_, phase) if phase.ends_with("optimizer") => 12,
        _ => 0,
    }
}

/// Bytes of attention's scores in one layer.
fn scores(c: &Configuration) -> i64 {
    4 * c.batch * c.heads * c.sequence * c.sequence
}

fn a_dry_run_counts_what_the_cpu_counts() {
    let mut with_scores = 0;
    for seed in [1, 2] {
        let phases = |value: Value| serde_json::from_value::<Vec<Vec<Phase>>>(value).unwrap();
        let dry = phases(dry_answer("counted", &format!("dry {seed}"), 1024 * MIB, ""));
        let cpu = phases(outcome(command("counted", &format!("cpu {seed}"))).unwrap());
        assert_eq!((dry.len(), cpu.len()), (CONFIGURATIONS, CONFIGURATIONS));
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        for (dry, cpu) in dry.into_iter().zip(cpu) {
            let c = Configuration::random(&mut random);
            assert!(dry.iter().all(|p| p.live > 0 && p.peak >= p.live), "{c:?}: {dry:?}");
            assert_eq!(dry.len(), cpu.len(), "{c:?}");
            for (dry, cpu) in dry.iter().zip(&cpu) {
                let above = dry.peak + scalar_bytes(&c.optimizer, &dry.name) - cpu.peak;
                // CUDA's softmax multiplies gradient and result into a tensor of its own; the peak may lie elsewhere.
                let scores = if c.attention && dry.name.ends_with("backward") { scores(&c) } else { 0 };
                assert_eq!((&dry.name, dry.live), (&cpu.name, cpu.live), "{c:?}");
                assert!(
                    (0..=scores).contains(&above),
                    "{c:?}: {above} bytes above the CPU's, of {scores} at most: {dry:?}, {cpu:?}"
                );
                with_scores += usize::from(scores > 0 && above == scores);
            }
        }
    }
    assert!(with_scores > 0, "in no configuration does the peak lie in softmax's backward pass");
}

/// Bytes of single operations for which CPU and CUDA allocate differently.
fn differences(device: &str) -> Result<Value> {
    let backend = open_with_workspaces(device)?;
    let float = (Kind::Float, backend.device());
    let leaf = |shape: &[i64]| Tensor::randn(shape, float).set_requires_grad(true);
    // Bytes that a forward pass leaves alive, and the peak of its backward pass above what lived before both.
    let figures = |forward: &dyn Fn() -> Result<Tensor>| -> Result<(i64, i64)> {
        let before = backend.memory()?.requested;
        let y = forward()?;
        let kept = backend.memory()?.requested - before;
        let loss = y.sum(Kind::Float);
        drop(y);
        backend.reset_peaks()?;
        loss.f_backward()?;
        Ok((kept, backend.memory()?.requested_peak - before))
    };
    let x = leaf(&[64, 32]);
    let (weight, bias) = (leaf(&[32]), leaf(&[32]));
    let layer_norm = figures(&|| Ok(x.layer_norm([32], Some(&weight), Some(&bias), 1e-5, true)))?;
    let dropout = figures(&|| Ok(leaf(&[100, 10]).dropout(0.1, true)))?;
    let q = leaf(&[2, 3, 20, 8]);
    let attention = figures(&|| Ok(Tensor::scaled_dot_product_attention(&q, &q, &q, None::<&Tensor>, 0.0, true, None, false)))?;
    let (table, indices) = (leaf(&[50, 16]), Tensor::randint(50, [4000], (Kind::Int64, backend.device())));
    let embedding = figures(&|| Ok(Tensor::embedding(&table, &indices, -1, false, false)))?;
    Ok(serde_json::json!([layer_norm.1, dropout.0, attention.0, embedding.1]))
}

fn known_differences_have_their_formula() {
    let figures = |value: Value| serde_json::from_value::<Vec<i64>>(value).unwrap();
    let dry = figures(dry_answer("differences", "dry", 1024 * MIB, ""));
    let cpu = figures(outcome(command("differences", "cpu")).unwrap());
    let cpu_over_dry: Vec<i64> = cpu.iter().zip(&dry).map(|(cpu, dry)| cpu - dry).collect();
    let (threads, width) = (1, 32);
    // LayerNorm's backward sums the gradients of weight and bias for each thread.
    let layer_norm = 2 * threads * width * 4;
    // Dropout keeps factors on the CPU, 4 bytes each, and a mask on CUDA, 1 byte each.
    let dropout = 3 * 100 * 10;
    // The sums of attention's softmax are kept for each row, and rows are rounded up to 32 on CUDA.
    let attention = 4 * 2 * 3 * (20 - 32);
    // More than 3072 indices are sorted on CUDA, with their places and beside a range, before the gradient is there. CUB takes the last
    // for so many pairs of 8 bytes on compute capability 9.0.
    let (count, rows, columns) = (4000, 50, 16);
    let cub = 81_919;
    let embedding = 4 * rows * columns - 3 * 8 * count - cub;
    assert_eq!(cpu_over_dry, [layer_norm, dropout, attention, embedding]);
}

fn huge() -> Result<Value> {
    Dry::open()?;
    let w = Tensor::randn([200_000, 50_000], FLOAT).set_requires_grad(true);
    let x = Tensor::randn([50_000, 1000], FLOAT);
    w.matmul(&x).mean(Kind::Float).f_backward()?;
    ensure!(w.grad().size() == w.size());
    let matrix = torch::cuda_memory(0)?.requested_peak;
    drop((w, x));
    // As many parameters as GPT-2 XL has in its blocks.
    let model = Model::named("gpt-48x1600", Device::Cuda(0))?;
    let (batch, mut optimizer) = (model.batch(8), optimizer("adamw", &model.store)?);
    let mut step = || optimizer.backward_step(&model.loss(&model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean));
    step();
    step();
    Ok(serde_json::json!([matrix, torch::cuda_memory(0)?.requested]))
}

fn gigabytes_cost_no_memory() {
    let answer = dry_answer("huge", "", 200 * 1024 * MIB, "");
    assert!(answer[0].as_i64().unwrap() > 80_000_000_000, "{answer}");
    assert!(answer[1].as_i64().unwrap() > 4 * 4 * 1_474_000_000, "parameters, gradients and two moments: {answer}");
}
