//! Real processes on the CPU that train together over Gloo: what they compute, and what each is told when another is wrong or gone. (No
//! harness: this program starts itself again, once for each rank. The store is served here, on a port that is free.)

mod roles;

use anyhow::{Context, Result, bail, ensure};
use models::{Batch, Model};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tch::nn::{OptimizerConfig, Sgd};
use tch::{Device, Reduction, Tensor};
use torch::ddp::{Ddp, DdpOptions};
use torch::distributed::{Launch, ProcessGroup, Store, has_nccl};
use torch::load_cuda;

/// What ranks wait for each other where they are expected to come. A loaded machine starts a process late.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What a collective waits for a rank that will never answer: within it, and some seconds for a loaded machine, the others fail.
const BOUND: Duration = Duration::from_secs(4);

/// What an error's way through a loaded machine may take beyond [`BOUND`].
const SLACK: Duration = Duration::from_secs(30);

const STEPS: usize = 4;
const JOINED: i64 = 12;

fn main() -> ExitCode {
    let tests: &[(&str, fn())] = &[
        ("ranks_get_the_gradients_of_one_process_on_the_joined_batch", ranks_get_the_gradients_of_one_process_on_the_joined_batch),
        ("batch_statistics_are_those_of_rank_0", batch_statistics_are_those_of_rank_0),
        ("a_killed_rank_gives_the_others_an_error_at_once", a_killed_rank_gives_the_others_an_error_at_once),
        ("a_silent_rank_gives_the_others_an_error_in_bounded_time", a_silent_rank_gives_the_others_an_error_in_bounded_time),
        ("different_models_are_refused_by_all_ranks", different_models_are_refused_by_all_ranks),
        ("different_worlds_are_refused_by_all_ranks", different_worlds_are_refused_by_all_ranks),
        ("a_missing_rank_is_named_in_bounded_time", a_missing_rank_is_named_in_bounded_time),
        ("nccl_is_opened_where_cuda_is", nccl_is_opened_where_cuda_is),
        ("torchrun_starts_it", torchrun_starts_it),
    ];
    roles::main(play, tests)
}

// ---- what a rank does ------------------------------------------------------------------------------------------------------------------

fn play(role: &str, argument: &str) -> Result<Value> {
    tch::set_num_threads(1);
    let settings: Value = serde_json::from_str(argument)?;
    if role == "nccl" {
        return nccl();
    }
    let launch = Launch::from_environment()?.context("no launch in the environment")?;
    let timeout = Duration::from_millis(settings["timeout_ms"].as_u64().context("timeout_ms")?);
    let bound = Duration::from_millis(settings["bound_ms"].as_u64().context("bound_ms")?);
    let group = ProcessGroup::gloo(launch.store(timeout)?, launch.rank, launch.world_size, Some("127.0.0.1"), bound)?;
    let model = settings["models"][launch.rank].as_str().or(settings["model"].as_str()).context("model")?;
    // Each rank begins with values of its own, and the joined batch is the same everywhere.
    tch::manual_seed(100 + i64::try_from(launch.rank)?);
    let model = Model::named(model, Device::Cpu)?;
    let options =
        DdpOptions { bucket_cap: settings["cap"].as_u64(), gradient_as_bucket_view: settings["view"].as_bool().unwrap_or(false) };
    let ddp = Ddp::of(&model.store, &group, options)?;
    let share = share(&joined(&model), launch.rank, launch.world_size)?;
    match role {
        "train" => train(&ddp, &model, &share),
        "stop" => {
            step(&ddp, &model, &share)?;
            if launch.rank == 1 {
                // Told on standard output, so that the test knows when to count from.
                println!("ready");
                std::thread::sleep(TIMEOUT);
            }
            ddp.zero_grad();
            step(&ddp, &model, &share)?;
            bail!("the backward pass ended without the other rank");
        }
        _ => bail!("no role '{role}'"),
    }
}

/// A group of one over NCCL, which trains where there is a GPU. Without one PyTorch's own constructor refuses, so it was found and called.
fn nccl() -> Result<Value> {
    if !has_nccl() || load_cuda().is_err() {
        return Ok(json!("built without CUDA"));
    }
    let device = Device::Cuda(0);
    let group = match ProcessGroup::nccl(served(), 0, 1, device, TIMEOUT) {
        Err(error) if tch::Cuda::device_count() == 0 => {
            ensure!(format!("{error:#}").contains("no GPUs found"), "{error:#}");
            return Ok(json!("no GPU"));
        }
        group => group?,
    };
    let model = Model::named("mlp-3x32", device)?;
    let ddp = Ddp::of(&model.store, &group, DdpOptions::default())?;
    let batch = joined(&model);
    let alone = Tensor::f_run_backward(&[loss(&model, &batch)], &model.parameters(), false, false)?;
    step(&ddp, &model, &batch)?;
    let to_doubles = |tensors: &[Tensor]| anyhow::Ok(values(tensors)?.into_iter().map(f64::from).collect::<Vec<_>>());
    ensure!(apart(&to_doubles(&model.gradients())?, &to_doubles(&alone)?) < ROUNDING, "gradients over NCCL");
    Ok(json!("trained"))
}

/// Trains some steps and gives each step's gradients, the parameters and buffers at the end, and the buckets.
fn train(ddp: &Ddp, model: &Model, share: &Batch) -> Result<Value> {
    let mut optimizer = Sgd { momentum: 0.9, ..Sgd::default() }.build(&model.store, 1e-2)?;
    let mut gradients = Vec::new();
    for _ in 0..STEPS {
        ddp.zero_grad();
        step(ddp, model, share)?;
        gradients.push(values(&model.gradients())?);
        optimizer.step();
    }
    ddp.check_reduced()?;
    let mut variables: Vec<(String, Tensor)> = model.store.variables().into_iter().collect();
    variables.sort_by(|a, b| a.0.cmp(&b.0));
    let variables: Vec<Tensor> = variables.into_iter().map(|(_, t)| t).collect();
    Ok(json!({ "gradients": gradients, "variables": values(&variables)?, "buckets": ddp.bucket_bytes()? }))
}

fn step(ddp: &Ddp, model: &Model, batch: &Batch) -> Result<()> {
    Ok(ddp.forward(|| Ok(loss(model, batch)))?.f_backward()?)
}

fn loss(model: &Model, batch: &Batch) -> Tensor {
    model.loss(&model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean)
}

fn joined(model: &Model) -> Batch {
    tch::manual_seed(7);
    model.batch(JOINED)
}

fn share(batch: &Batch, rank: usize, size: usize) -> Result<Batch> {
    let length = JOINED / i64::try_from(size)?;
    Ok(batch.narrow(i64::try_from(rank)? * length, length))
}

fn values(tensors: &[Tensor]) -> Result<Vec<f32>> {
    let mut all = Vec::new();
    for tensor in tensors {
        ensure!(tensor.defined(), "a tensor is missing");
        all.extend(Vec::<f32>::try_from(tensor.detach().to_device(Device::Cpu).to_kind(tch::Kind::Float).reshape([-1]))?);
    }
    Ok(all)
}

// ---- starting ranks --------------------------------------------------------------------------------------------------------------------

/// What became of a rank.
#[derive(Debug)]
struct Ended {
    status: ExitStatus,
    /// What it said last on standard output.
    answer: String,
    complaint: String,
}

/// A rank in a process of its own, killed where the test fails. What it says is read as it comes, so that it never waits for a full pipe.
struct Rank {
    child: Child,
    lines: Receiver<String>,
    complaint: Option<JoinHandle<String>>,
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Rank {
    fn start(command: &mut Command) -> Rank {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let (stdout, mut stderr) = (BufReader::new(child.stdout.take().unwrap()), child.stderr.take().unwrap());
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let complaint = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        Rank { child, lines, complaint: Some(complaint) }
    }

    /// Waits for the end, at most for `limit`.
    fn end(&mut self, limit: Duration) -> Ended {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < limit, "a rank has not ended within {limit:?}");
            std::thread::sleep(Duration::from_millis(20));
        };
        let complaint = self.complaint.take().unwrap().join().unwrap();
        Ended { status, answer: self.lines.iter().last().unwrap_or_default(), complaint }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

/// Starts a rank of a world of `size`.
fn rank(store: &Store, role: &str, rank: usize, size: usize, settings: &Value) -> Rank {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--role", role, &settings.to_string()]);
    command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", store.port().to_string());
    // The store is the launcher's, as torchrun's is.
    command.env("TORCHELASTIC_USE_AGENT_STORE", "True").env_remove("TORCHELASTIC_RESTART_COUNT");
    Rank::start(&mut command)
}

fn served() -> Store {
    Store::listen("127.0.0.1", 0, TIMEOUT).unwrap()
}

fn settings(model: &str) -> Value {
    json!({ "model": model, "timeout_ms": TIMEOUT.as_millis() as u64, "bound_ms": TIMEOUT.as_millis() as u64 })
}

fn with(mut settings: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        settings[key] = value.clone();
    }
    settings
}

/// What all ranks of a world answer.
fn answers(role: &str, size: usize, settings: &Value) -> Vec<Value> {
    let store = served();
    let mut ranks: Vec<Rank> = (0..size).map(|r| rank(&store, role, r, size, settings)).collect();
    let answer = |rank: &mut Rank| {
        let ended = rank.end(TIMEOUT);
        assert!(ended.status.success(), "{}: {}", ended.status, ended.complaint);
        serde_json::from_str(&ended.answer).unwrap()
    };
    ranks.iter_mut().map(answer).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// |a - b| / |b| in the Euclidean norm.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |it: &mut dyn Iterator<Item = f64>| it.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

/// Gradients of each step of one process that has rank 0's parameters and the joined batch.
fn gradients_of_one_process(model: &str) -> Vec<Vec<f64>> {
    tch::set_num_threads(1);
    tch::manual_seed(100);
    let model = Model::named(model, Device::Cpu).unwrap();
    let batch = joined(&model);
    let mut optimizer = Sgd { momentum: 0.9, ..Sgd::default() }.build(&model.store, 1e-2).unwrap();
    let mut gradients = Vec::new();
    for _ in 0..STEPS {
        optimizer.zero_grad();
        loss(&model, &batch).backward();
        gradients.push(values(&model.gradients()).unwrap().into_iter().map(f64::from).collect());
        optimizer.step();
    }
    gradients
}

/// Sums over parts of a batch are rounded in another order than over the whole, and each step starts from the parameters that the one
/// before has rounded: 1.2e-5 was seen on the fourth. A wrong average is wrong by a part of the gradient.
const ROUNDING: f64 = 1e-4;

fn must_train_as_one(role: &str, size: usize, model: &str, changes: Value) -> Vec<Value> {
    let answers = answers(role, size, &with(settings(model), changes.clone()));
    for (r, answer) in answers.iter().enumerate() {
        assert_eq!(answer["variables"], answers[0]["variables"], "rank {r}: parameters are the same to the bit; {changes}");
        assert_eq!(answer["gradients"], answers[0]["gradients"], "rank {r}: and so are gradients; {changes}");
    }
    for (i, one) in gradients_of_one_process(model).iter().enumerate() {
        let error = apart(&numbers(&answers[0]["gradients"][i]), one);
        assert!(error < ROUNDING, "step {i}: {error:e} from those of the joined batch; {size} ranks, {changes}");
    }
    answers
}

// ---- tests -------------------------------------------------------------------------------------------------------------------------------

fn ranks_get_the_gradients_of_one_process_on_the_joined_batch() {
    // One bucket, and one for each two or three tensors.
    for (size, view, cap) in [(2, false, 1 << 20), (2, true, 4096), (3, true, 1 << 20), (2, false, 4096)] {
        let answers = must_train_as_one("train", size, "mlp-3x32", json!({ "view": view, "cap": cap }));
        let buckets = answers[0]["buckets"].as_array().unwrap().len();
        assert_eq!(buckets > 2, cap == 4096, "{buckets} buckets of at most {cap} bytes");
    }
    must_train_as_one("train", 2, "gpt-2x32", json!({ "view": true }));
}

/// Ranks see different data, so their running statistics differ after a forward pass; the next begins with those of rank 0.
fn batch_statistics_are_those_of_rank_0() {
    let answers = answers("train", 2, &settings("resnet-2x8-bn"));
    assert_eq!(answers[0]["gradients"], answers[1]["gradients"]);
    let error = apart(&numbers(&answers[0]["variables"]), &numbers(&answers[1]["variables"]));
    assert!(0.0 < error && error < 0.2, "one forward pass apart: {error}");
}

/// Starts two ranks, of which rank 1 stops in the middle; gives rank 0's end, and how long it took from the signal.
fn other_rank_stops(signal: Signal, bound: Duration) -> (Ended, Duration) {
    let store = served();
    let settings = with(settings("mlp-3x32"), json!({ "bound_ms": bound.as_millis() as u64 }));
    let mut ranks: Vec<Rank> = (0..2).map(|r| rank(&store, "stop", r, 2, &settings)).collect();
    assert_eq!(ranks[1].lines.recv_timeout(TIMEOUT).as_deref(), Ok("ready"));
    ranks[1].signal(signal);
    let start = Instant::now();
    let ended = ranks[0].end(bound + SLACK);
    (ended, start.elapsed())
}

fn a_killed_rank_gives_the_others_an_error_at_once() {
    // The bound is far away: it is the broken connection that tells.
    let (ended, after) = other_rank_stops(Signal::KILL, TIMEOUT);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.complaint);
    assert!(ended.complaint.contains("Connection"), "{}", ended.complaint);
    assert!(after < SLACK, "{after:?}");
}

fn a_silent_rank_gives_the_others_an_error_in_bounded_time() {
    let (ended, after) = other_rank_stops(Signal::STOP, BOUND);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.complaint);
    assert!(ended.complaint.to_lowercase().contains("timed out"), "{}", ended.complaint);
    assert!(after < BOUND + SLACK, "{after:?}");
}

/// The ends of ranks that were started for worlds of these sizes.
fn refusals(sizes: &[(usize, usize)], settings: &Value) -> Vec<String> {
    let store = served();
    let mut ranks: Vec<Rank> = sizes.iter().map(|(r, size)| rank(&store, "train", *r, *size, settings)).collect();
    let refusal = |rank: &mut Rank| {
        let ended = rank.end(TIMEOUT);
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        ended.complaint
    };
    ranks.iter_mut().map(refusal).collect()
}

fn different_models_are_refused_by_all_ranks() {
    for (models, part) in [
        (["mlp-3x32", "mlp-3x48"], "rank 1 has parameter 0 of Float [48, 48]"),
        (["mlp-3x32", "mlp-4x32"], "rank 1 has 10 parameters, rank 0 8 parameters"),
        (["resnet-2x8-gn", "resnet-2x8-bn"], "rank 1 has"),
    ] {
        for refusal in refusals(&[(0, 2), (1, 2)], &with(settings("mlp-3x32"), json!({ "models": models }))) {
            assert!(refusal.contains("do not agree on the model") && refusal.contains(part), "{models:?}: {refusal}");
        }
    }
}

fn different_worlds_are_refused_by_all_ranks() {
    for refusal in refusals(&[(0, 2), (1, 3)], &settings("mlp-3x32")) {
        assert!(refusal.contains("do not agree on the size of the world: rank 1 has 3, rank 0 2"), "{refusal}");
    }
    // Nobody asks for rank 2, which then knows better than to begin; the others wait for nobody else.
    let store = served();
    let settings = settings("mlp-3x32");
    let mut ranks: Vec<Rank> =
        [(2, 3), (0, 2), (1, 2)].iter().map(|(r, size)| rank(&store, "train", *r, *size, &settings)).collect();
    let beyond = ranks[0].end(TIMEOUT);
    assert!(beyond.complaint.contains("rank 2 has 3, rank 0 2"), "{}", beyond.complaint);
    // Two processes of one rank: the second is refused, and never in the way of the first.
    let store = served();
    let mut first = rank(&store, "train", 0, 1, &settings);
    assert!(first.end(TIMEOUT).status.success());
    let second = rank(&store, "train", 0, 1, &settings).end(TIMEOUT);
    assert!(second.complaint.contains("another process has joined as rank 0"), "{}", second.complaint);
}

fn a_missing_rank_is_named_in_bounded_time() {
    let settings = with(settings("mlp-3x32"), json!({ "timeout_ms": BOUND.as_millis() as u64 }));
    let start = Instant::now();
    let refusal = refusals(&[(0, 2)], &settings).remove(0);
    assert!(refusal.contains("rank 1 of 2 did not tell the size of the world in time"), "{refusal}");
    assert!(start.elapsed() < BOUND + SLACK, "{:?}", start.elapsed());
}

/// NCCL as far as this machine has what it needs.
fn nccl_is_opened_where_cuda_is() {
    let ended = Rank::start(Command::new(std::env::current_exe().unwrap()).args(["--role", "nccl", "{}"])).end(TIMEOUT);
    assert!(ended.status.success(), "{}: {}", ended.status, ended.complaint);
    println!("NCCL: {}", ended.answer);
}

/// The launcher of this project's own PyTorch, where that is a wheel.
fn torchrun_starts_it() {
    let torchrun = common::root().join(".venv/bin/torchrun");
    if !torchrun.exists() {
        common::skipped(&format!("distributed: there is no {}", torchrun.display()));
        return;
    }
    let start = |extra: &[&str]| {
        let mut command = Command::new(&torchrun);
        // A port that is free, and no name of the machine.
        command.args(["--no-python", "--nnodes", "1", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]);
        command.args(["--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", &common::program("vramlab"), "ddp"]);
        command.args(["--device", "cpu", "--threads", "1", "--model", "mlp-3x32", "--batch", "8"]).args(extra);
        let output = command.stdin(Stdio::null()).output().unwrap();
        (output.status, String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (status, out, complaint) = start(&["--json", "--gradient-as-bucket-view", "--timeout", "120"]);
    assert!(status.success(), "{status}: {out}{complaint}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((report["world_size"].as_u64(), report["communication"].as_str()), (Some(2), Some("gloo")));
    assert_eq!(report["parameters_equal"].as_bool(), Some(true));
    assert!(report["gradient_error"].as_f64().unwrap() < ROUNDING, "{report}");
    let (status, _, complaint) = start(&["--bucket-cap-mb", "0"]);
    assert!(!status.success() && complaint.contains("bucket-cap-mb"), "{complaint}");
}
