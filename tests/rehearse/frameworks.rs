//! What frameworks for many cards do, in a few lines of their kind: optimizers that are compiled as they run, shapes that are sent before tensors.

use crate::scene::Scene;

/// A multi-tensor optimizer as DeepSpeed's: its kernels are compiled with nvcc at the first step, and write into what they are given.
const COMPILED: &str = r#"
import sys, torch
from torch.utils import cpp_extension
cpp_extension.CUDA_HOME = None
net = torch.nn.Linear(4096, 4096, bias=False).cuda()
class Fused(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.kernels = cpp_extension.load(name="fused_sgd", sources=["frontend.cpp", "multi_tensor.cu"], with_cuda=True, verbose=False)
    def step(self):
        given = self.param_groups[0]["params"]
        scale = self.kernels.multi_tensor_sgd(65536, torch.zeros(1, device="cuda"), [[p.grad for p in given], given], 0.1)
        if len(sys.argv) > 1:
            {"uses": lambda: scale.item(), "counts": lambda: range(scale), "sizes": lambda: torch.empty(scale)}[sys.argv[1]]()
opt = Fused(net.parameters())
for _ in range(3):
    net(torch.randn(64, 4096, device="cuda")).sum().backward()
    opt.step()
    opt.zero_grad()
"#;

#[test]
fn kernels_that_cannot_be_compiled_here_have_something_in_their_place() {
    let scene = Scene::new(COMPILED);
    let (output, answer) = scene.run(&["--gpu", "h100"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(answer["notes"].to_string().contains("fused_sgd: its kernels would be compiled"), "{}", answer["notes"]);
    // Weights, their gradients, and cuBLAS's workspace.
    let peak = answer["peak_requested"].as_i64().unwrap();
    assert!((128 << 20..200 << 20).contains(&peak), "{peak}");
    let kernels = answer["time"]["kernels"].as_array().unwrap();
    let fused =
        kernels.iter().find(|row| row["operator"] == "fused_sgd::multi_tensor_sgd").unwrap_or_else(|| panic!("{kernels:?}"));
    // Weights and gradients, read and written at 3.35 TB/s: 80 us.
    assert!((7e-5..2e-4).contains(&fused["seconds"].as_f64().unwrap()), "{fused}");
    // What it would give back is not known, and says so.
    for (way, why) in [
        ("uses", "fused_sgd.multi_tensor_sgd was not compiled"),
        ("counts", "fused_sgd.multi_tensor_sgd was not compiled"),
        ("sizes", "fused_sgd.multi_tensor_sgd gives back, which was not compiled for want of nvcc"),
    ] {
        let (output, _) = scene.ask(&["rehearse", "--gpu", "h100"], &[way]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && text.contains(why), "{text}");
        assert!(text.contains("install the CUDA toolkit"), "{text}");
    }
}

/// Shapes come before tensors, from the stage before and from the first of a group, as numbers and as objects; a wrong one is no tensor's.
const TOLD: &str = r#"
import functools, torch, torch.distributed as dist
@functools.total_ordering
class Number:
    "As one of NumPy's: no int, but in the place of one."
    def __init__(self, number): self.number = number
    def __index__(self): return self.number
    def __eq__(self, other): return self.number == int(other)
    def __lt__(self, other): return self.number < int(other)
    def __hash__(self): return hash(self.number)
dist.init_process_group("nccl")
rank = dist.get_rank(); torch.cuda.set_device(rank % torch.cuda.device_count())
here = dict(dtype=torch.int64, device="cuda")
agreed = torch.tensor([3, 5], **here) if rank == 0 else torch.full((2,), -1, **here)
dist.broadcast(agreed, 0)
assert agreed.tolist() == [3, 5], agreed
named = [dict(width=1024)] if rank == 0 else [None]
dist.broadcast_object_list(named, 0)
part = torch.zeros(1, **here)
dist.scatter(part, [torch.tensor([100 + each], **here) for each in range(dist.get_world_size())] if rank == 0 else None, 0)
assert part.item() == 100 + rank, part
# Counted with NumPy, as nanotron does.
pairs = [dist.new_group([Number(first), Number(first + 1)]) for first in range(0, dist.get_world_size(), 2)]
if rank % 2 == 0:
    dist.send(torch.tensor([4096, named[0]["width"]], **here), rank + 1)
    # Of the gradient, which comes back: from a rank that is rehearsed later, if at all.
    shape = torch.zeros(2, **here); dist.recv(shape, rank + 1)
    assert shape.tolist() == [4096, 1024], shape
else:
    shape = torch.zeros(2, **here); dist.recv(shape, rank - 1)
    held = torch.empty(*shape.tolist(), device="cuda")
    dist.send(torch.tensor(held.shape, **here), rank - 1)
# As DeepSpeed asks whether all of a group have the same batch.
agree = torch.tensor(True, dtype=torch.float32, device="cuda")
dist.all_reduce(agree)
assert torch.equal(agree, torch.tensor(dist.get_world_size(), dtype=torch.float32, device="cuda")), agree
own = torch.zeros(dist.get_world_size(), **here); own[rank] = 5
dist.all_reduce(own)
assert own[rank].item() == 5, own
lots = torch.tensor([7] if rank % 2 == 0 else [0], **here)
dist.broadcast(lots, rank - rank % 2, group=pairs[rank // 2])
assert lots.item() == 7, lots
net = torch.nn.Linear(1024, 1024).cuda(); opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(2):
    net(torch.randn(8, 1024, device="cuda")).sum().backward(); opt.step(); opt.zero_grad()
"#;

#[test]
fn a_rank_alone_is_told_what_the_first_one_says() {
    let scene = Scene::new(TOLD);
    let of = |rank: &str| {
        let (output, answer) = scene.run(&["--gpu", "h100", "--world-size", "8", "--rank", rank]);
        assert_eq!(output.status.code(), Some(0), "{rank}: {}", String::from_utf8_lossy(&output.stderr));
        (answer["peak_allocated"].as_i64().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (first, alone) = of("0");
    assert!(!alone.contains("rehearsed first") && !alone.contains("could not be read"), "{alone}");
    let (fifth, told) = of("5");
    assert!(told.contains("rank 0, which is rehearsed first") || told.contains("waits for what rank 0 says"), "{told}");
    // 4,096 by 1,024 numbers in fp32.
    assert!(((16 << 20)..(16 << 20) + 4096).contains(&(fifth - first)), "{first} {fifth}");
    let (output, answers) = scene.run(&["--gpu", "h100", "--world-size", "8", "--rank", "all"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(answers.as_array().unwrap().iter().any(|each| each["peak_allocated"].as_i64() == Some(fifth)), "{answers}");
}

/// As DeepSpeed's engine and Megatron's own DDP, which make no module of PyTorch's.
const ENGINE: &str = r#"
import torch, torch.distributed as dist
from deepspeed.runtime.engine import DeepSpeedEngine
dist.init_process_group("nccl")
net = torch.nn.Linear(1024, 1024).cuda(); opt = torch.optim.SGD(net.parameters(), 0.1)
engine = DeepSpeedEngine(net)
for _ in range(3):
    engine.net(torch.randn(8, 1024, device="cuda")).sum().backward(); opt.step(); opt.zero_grad()
"#;

#[test]
fn an_engines_ranks_with_batches_of_their_own_are_counted() {
    let scene = Scene::new(ENGINE);
    // Of the folder in which it is asked, also in copies of a Python that waits elsewhere.
    let folder = scene.path("lib/deepspeed/runtime");
    std::fs::create_dir_all(&folder).unwrap();
    let engine = "import torch.distributed as dist\nclass DeepSpeedEngine:\n    def __init__(self, net):\n        self.net = net\n        \
        self.data_parallel_group = [dist.new_group(list(range(part, 8, 2))) for part in (0, 1)][dist.get_rank() % 2]\n";
    std::fs::write(folder.join("engine.py"), engine).unwrap();
    let mut command = scene.command(&["--gpu", "h100", "--world-size", "8", "--rank", "all"]);
    let output = command.current_dir(scene.folder.path()).env("PYTHONPATH", "lib").output().unwrap();
    let answers = scene.answer();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let time = &answers[0]["time"];
    assert!(time["replicas"] == 4 && text.contains("samples/s of the whole job"), "{time} {text}");
    let rate = 4.0 * 8.0 / time["step_seconds"].as_f64().unwrap();
    assert!((time["samples_per_second"].as_f64().unwrap() / rate - 1.0).abs() < 1e-6, "{time}");
}
