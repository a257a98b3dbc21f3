//! What ranks move between each other, and wait for: `--world-size`, `--rank all` and `vramlab plan`.

use crate::scene::Scene;
use serde_json::Value;

/// Gradients of 64 MiB in fp32 layers are reduced one by one, and waited for at once or at the end.
const REDUCES: &str = r#"
import sys, torch, torch.distributed as dist
dist.init_process_group("nccl")
waits = sys.argv[1] != "later"
net = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, bias=False) for _ in range(4)]).cuda()
opt = torch.optim.SGD(net.parameters(), 0.1)
works = []
def reduced(p):
    if sys.argv[1] == "busy":
        sum(range(1_000_000))
    work = dist.all_reduce(p.grad, async_op=True)
    works.append(work)
    if waits:
        work.wait()
for p in net.parameters():
    p.register_post_accumulate_grad_hook(reduced)
for _ in range(4):
    net(torch.randn(8192, 4096, device="cuda")).sum().backward()
    for work in works:
        work.wait()
    works.clear()
    opt.step()
    opt.zero_grad()
"#;

fn of(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {value}"))
}

#[test]
fn what_is_reduced_takes_its_time_where_the_stream_waits_for_it() {
    let scene = Scene::new(REDUCES);
    let time = |flags: &[&str], how: &str| {
        let (output, answer) = scene.ask(&[&["rehearse"], flags].concat(), &[how]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (answer["time"].clone(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let one_machine = ["--gpu", "h100", "--world-size", "8", "--rank", "0"];
    let [(now, text), (later, _)] = ["now", "later"].map(|how| time(&one_machine, how));
    for time in [&now, &later] {
        let row = &time["communication"][0];
        assert_eq!((row["what"].as_str(), row["over"].as_str()), (Some("all_reduce"), Some("NVLink")), "{row}");
        assert_eq!((of(row, "/bytes"), of(row, "/calls"), of(row, "/ranks")), (4.0 * f64::from(64 << 20), 4.0, 8.0));
        // NCCL took 305 us for 64 MiB on eight H100s.
        assert!((3e-4..2e-3).contains(&of(row, "/seconds")), "{row}");
        assert!(!time["not_modelled"].to_string().contains("communication"), "{}", time["not_modelled"]);
    }
    assert!(text.contains("all_reduce 256 MiB in 8 ranks (NVLink)"), "{text}");
    let (shown, hidden) = (of(&now, "/exposed_seconds"), of(&later, "/exposed_seconds"));
    assert!(shown > 0.9 * of(&now, "/communication/0/seconds"), "{shown}");
    // All but the last layer's.
    assert!(hidden < 0.5 * shown && hidden > 0.1 * shown, "{hidden} of {shown}");
    assert!(of(&later, "/communication/0/hidden_seconds") > of(&later, "/communication/0/seconds") / 2.0, "{later}");
    // What the script does before is its own.
    let (busy, text) = time(&one_machine, "busy");
    assert!(of(&busy, "/host_seconds") > 0.02 && of(&busy, "/exposed_seconds") < 2.0 * shown, "{busy}");
    // Of a group that nobody counted.
    assert!(busy["bound_by"] != "communication" && text.contains("samples/s of one rank"), "{text}");
    // Over machines with 50 GB/s for eight GPUs.
    let (far, _) = time(&["--gpu", "p4d.24xlarge", "--world-size", "16", "--rank", "0"], "now");
    let row = &far["communication"][0];
    assert_eq!((row["over"].as_str(), of(row, "/nodes")), (Some("network"), 2.0), "{row}");
    assert!(of(row, "/seconds") > 1.8 * f64::from(256 << 20) / 50e9, "{row}");
}

/// Stages of a pipeline that are alike: a product forward, two backward, of eight micro-batches; by PyTorch's own schedules.
const PIPELINE: &str = r#"
import sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank % torch.cuda.device_count())
device = torch.device("cuda", torch.cuda.current_device())
kind = dict(gpipe=ScheduleGPipe, interleaved=ScheduleInterleaved1F1B).get(sys.argv[1], Schedule1F1B)
each = 2 if sys.argv[1] == "interleaved" else 1
one = torch.zeros(4096, 4096, device=device, dtype=torch.half)
def stage(at):
    layers = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, bias=False) for _ in range(8 // each)]).to(device, torch.half)
    if sys.argv[1] == "1f1b":
        # Whole parameters are in the place of parts from the first micro-batch on.
        fully_shard(layers, mesh=init_device_mesh("cuda", (size, 1), mesh_dim_names=("pp", "dp"))["dp"], reshard_after_forward=False)
    return PipelineStage(layers, at, size * each, device, input_args=one, output_args=one)
stages = [stage(rank + part * size) for part in range(each)]
schedule = kind(stages if each > 1 else stages[0], n_microbatches=8, loss_fn=lambda x, _: x.sum())
opt = torch.optim.SGD([p for s in stages for p in s.submod.parameters()], 0.1)
for _ in range(3):
    x = torch.zeros(8 * 4096, 4096, device=device, dtype=torch.half)
    schedule.step(*([x] if rank == 0 else []), **(dict(target=x, losses=[]) if rank == size - 1 else {}))
    opt.step()
    opt.zero_grad()
"#;

#[test]
fn a_pipeline_takes_as_long_as_its_bubble_makes_it() {
    // Eight micro-batches and one more, and what is moved between stages.
    let (step, busy) = pipeline("gpipe", "2");
    assert!((9.0 / 8.0..1.35).contains(&(step / busy)), "{step} of {busy}");
}

#[test]
#[ignore = "long"]
fn pipelines_of_other_schedules_take_as_long_as_their_bubbles_make_them() {
    for kind in ["gpipe", "1f1b"] {
        let (step, busy) = pipeline(kind, "4");
        assert!((11.0 / 8.0..1.60).contains(&(step / busy)), "{kind}: {step} of {busy}");
    }
    // PyTorch's interleaved schedule has its ranks wait for each other at each of its steps, of which some go forward and some back.
    let (step, busy) = pipeline("interleaved", "2");
    assert!((1.05..1.8).contains(&(step / busy)), "{step} of {busy}");
}

/// How long a step of a schedule takes in so many ranks, and how long its second rank is busy.
fn pipeline(kind: &str, size: &str) -> (f64, f64) {
    let scene = Scene::new(PIPELINE);
    let flags = ["--gpu", "h100", "--world-size", size, "--rank", "all", "--steps", "2"];
    let output = scene.command(&flags).arg(kind).output().unwrap();
    let answers = scene.answer();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let job = &answers[0]["time"]["job"];
    let ranks = job["ranks"].as_array().map(Vec::len);
    assert_eq!((ranks, job["is_pipeline"].as_bool()), (size.parse().ok(), Some(true)), "{kind}: {job}");
    assert_eq!(of(job, "/unmatched"), 0.0, "{kind}: {job}");
    let (step, busy) = (of(job, "/step_seconds"), of(job, "/ranks/1/device_seconds"));
    // Eight samples each of 4096 rows go through the job.
    assert_eq!(of(&answers[0], "/time/samples"), 8.0 * 4096.0, "{kind}");
    assert!(text.contains("ranks together") && text.contains("its bubble"), "{text}");
    (step, busy)
}

/// A layer that a tensor parallel group shares, with a batch of its own for each other rank.
const LAYOUTS: &str = r#"
import sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
tp, batch = int(sys.argv[sys.argv.index("--tp") + 1]), int(sys.argv[sys.argv.index("--mb") + 1])
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (dist.get_world_size() // tp, tp), mesh_dim_names=("dp", "tp"))
assert 4096 % tp == 0
if tp == REFUSED:
    raise ValueError("refused")
net = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096 * 16 // tp), torch.nn.Linear(4096 * 16 // tp, 4096)]).cuda()
opt = torch.optim.Adam(net.parameters())
for _ in range(3):
    y = net(torch.randn(1024 * batch, 4096, device="cuda"))
    dist.all_reduce(y, group=mesh["tp"].get_group())
    y.sum().backward()
    for p in net.parameters():
        dist.all_reduce(p.grad, group=mesh["dp"].get_group())
    opt.step()
    opt.zero_grad()
"#;

#[test]
fn a_plan_has_the_fastest_layouts_that_fit_and_says_why_others_do_not() {
    has_the_fastest([2, 4], 1, "mb=1,64");
}

#[test]
#[ignore = "long"]
fn a_plan_of_sixteen_cards_has_the_fastest_layouts_that_fit() {
    has_the_fastest([8, 16], 0, "mb=1,8,64");
}

/// Of the counts that are asked for, the one at a place has a tensor parallel group of all its cards that the script refuses.
fn has_the_fastest(counts: [u32; 2], at: usize, values: &str) {
    let (cards, batches) = (counts[at], values.split(',').count());
    let scene = Scene::new(&LAYOUTS.replace("REFUSED", &cards.to_string()));
    let gpus = counts.map(|count| count.to_string()).join(",");
    let flags = ["plan", "--gpu", "a10g", "--gpus", &gpus, "--layout", "--tp {tp} --mb {mb}", "--values", values];
    let (output, plans) = scene.ask(&flags, &[]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let plan = &plans[at];
    let fastest: Vec<&Value> = plan["fastest"].as_array().unwrap().iter().collect();
    let rates: Vec<f64> = fastest.iter().map(|tried| of(tried, "/samples_per_second")).collect();
    assert!(rates.len() >= 2 && rates.windows(2).all(|two| two[0] >= two[1]), "{rates:?}");
    for tried in &fastest {
        let layout = &tried["layout"];
        assert_eq!(of(layout, "/tp") * of(layout, "/dp"), f64::from(cards));
        assert!(of(tried, "/peak_on_device") < 24.0 * f64::from(1 << 30) && of(tried, "/exposed") > 0.0, "{tried}");
    }
    // What goes through the job is that of all ranks with batches of their own.
    let first = fastest[0];
    let samples = of(&first["layout"], "/dp") * of(&first["layout"], "/mb") * 1024.0;
    assert!((of(first, "/samples_per_second") * of(first, "/step_seconds") / samples - 1.0).abs() < 1e-6, "{first}");
    let others = plan["others"].as_array().unwrap();
    let outcomes = |outcome: &str| others.iter().filter(|tried| tried["outcome"] == outcome).collect::<Vec<_>>();
    assert!(outcomes("failed").iter().all(|tried| tried["why"].as_str().unwrap().contains("refused")), "{others:?}");
    assert_eq!(outcomes("failed").len(), batches, "{others:?}");
    // 64 Ki rows of 64 Ki floats are 16 GiB, twice.
    assert!(!outcomes("does_not_fit").is_empty(), "{others:?}");
    assert_eq!(fastest.len() + others.len(), batches * (cards.ilog2() as usize + 1));
    assert!(text.contains("Do not fit:") && text.contains("refused") && text.contains("cards  its fastest"), "{text}");
}
