//! Jobs of many cards: whose time is whose, what ranks give each other, machines and their cards, ranks that are equal.

use crate::scene::{Scene, error};

fn step_of(answer: &serde_json::Value) -> f64 {
    answer["time"]["device_seconds"].as_f64().unwrap()
}

#[test]
fn cards_wait_for_what_is_copied_to_them() {
    // Halves on two cards, one after the other; and the whole on the second one, whose number is nobody's count.
    let script = |first: u32, second: u32| {
        format!(
            "
import torch
halves = [torch.nn.Linear(4096, 4096, bias=False, device=f'cuda:{{card}}', dtype=torch.bfloat16) for card in ({first}, {second})]
optimizer = torch.optim.SGD([p for half in halves for p in half.parameters()], 0.1)
for _ in range(4):
    x = halves[0](torch.randn(16384, 4096, device='cuda:{first}', dtype=torch.bfloat16))
    halves[1](x.to('cuda:{second}')).float().square().mean().backward(); optimizer.step(); optimizer.zero_grad()
"
        )
    };
    let run = |first, second| {
        let (output, answer) = Scene::new(&script(first, second)).run(&["--gpu", "h100", "--gpus", "2"]);
        assert_eq!(output.status.code(), Some(0), "{}", error(&output));
        answer
    };
    let (one, other, both) = (run(0, 0), run(1, 1), run(0, 1));
    let [on_first, on_second, on_both] = [&one, &other, &both].map(|answer| answer["time"]["step_seconds"].as_f64().unwrap());
    assert!((on_first / on_second - 1.0).abs() < 0.02, "{on_first} {on_second}");
    assert!((0.99..1.15).contains(&(on_both / on_first)), "{on_both} {on_first}");
    for answer in [&one, &other, &both] {
        assert_eq!(answer["time"]["bound_by"], "compute");
    }
    assert!(step_of(&both) >= step_of(&one) * 0.99);
}

#[test]
fn ranks_that_are_there_give_each_other_whole_numbers_and_groups_end() {
    let scene = Scene::new(
        "
import os, torch, torch.distributed as dist
dist.init_process_group('nccl')
rank = dist.get_rank(); torch.cuda.set_device(int(os.environ['LOCAL_RANK'])); other = 1 - rank
here = dict(dtype=torch.int64, device='cuda')
if rank == 0:
    x = torch.randn(8, 1024, 512, device='cuda')
    dist.send(torch.tensor(x.shape, **here), 1); dist.send(x, 1)
else:
    shape = torch.zeros(3, **here); dist.recv(shape, 0)
    assert shape.tolist() == [8, 1024, 512], shape
    y = torch.empty(*shape.tolist(), device='cuda'); dist.recv(y, 0)
# Both ask first, and send after.
got = torch.zeros(2, **here)
for request in dist.batch_isend_irecv([dist.P2POp(dist.irecv, got, other), dist.P2POp(dist.isend, torch.tensor([rank, 7], **here), other)]): request.wait()
assert got.tolist() == [other, 7], got
given = torch.tensor([10 * rank, 10 * rank + 1], **here); got = torch.empty_like(given)
dist.all_to_all_single(got, given)
assert got.tolist() == [rank, 10 + rank], got
lists = [torch.zeros(1, **here) for _ in range(2)]
dist.all_to_all(lists, list(given.split(1)))
assert [each.item() for each in lists] == [rank, 10 + rank], lists
of_two = dist.new_group([0, 1]); dist.all_reduce(got, group=of_two)
assert got.tolist() == [1, 21], got
dist.destroy_process_group(of_two); dist.destroy_process_group()
",
    );
    let mut command = crate::scene::vramlab();
    command.args(["rehearse", "--gpu", "h100", "--gpus", "2", "--"]).arg(common::python()).args(["-m", "torch.distributed.run"]);
    let output = command.args(["--nproc-per-node", "2"]).arg(scene.path("train.py")).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
}

#[test]
fn equal_ranks_run_once() {
    let scene = Scene::new(
        "
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group('nccl'); torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
print(torch.cuda.device_count(), os.environ['LOCAL_WORLD_SIZE'], os.environ['LOCAL_RANK'], os.environ['GROUP_RANK'], flush=True)
net = DistributedDataParallel(torch.nn.Linear(1024, 1024).cuda()); optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    net(torch.randn(64, 1024, device='cuda')).sum().backward(); optimizer.step(); optimizer.zero_grad()
",
    );
    for (flags, printed) in [
        (&["--gpu", "h100", "--rank", "13"][..], "8 8 5 1"),
        (&["--gpu", "h100", "--rank", "13", "--nodes", "4"], "4 4 1 3"),
        (&["--gpu", "g5.12xlarge", "--rank", "3"], "4 4 3 0"),
    ] {
        let (output, answer) = scene.run(&[flags, &["--world-size", "16"]].concat());
        let said = error(&output);
        assert!(String::from_utf8_lossy(&output.stdout).contains(printed), "{printed}: {said}");
        // Of the whole job: 16 ranks with 64 rows each.
        let time = &answer["time"];
        let rows = time["samples_per_second"].as_f64().unwrap() * time["step_seconds"].as_f64().unwrap();
        assert!((rows - 1024.0).abs() < 1.0, "{rows}: {said}");
    }
    let (out, kept) = (scene.path("out"), scene.path("kept.cap"));
    let files = ["--out", out.to_str().unwrap(), "--keep", kept.to_str().unwrap()];
    let (output, answer) = scene.run(&[&["--gpu", "h100", "--world-size", "16", "--rank", "all"][..], &files].concat());
    let said = error(&output);
    assert_eq!((output.status.code(), answer.as_array().map(Vec::len)), (Some(0), Some(2)), "{said}");
    assert_eq!(answer[0]["time"]["step_seconds"], answer[1]["time"]["step_seconds"], "{said}");
    assert!(said.contains("Ranks 0 and 15 are equal") && out.join("rehearsal.json").is_file() && kept.is_file(), "{said}");
}

#[test]
fn a_fake_process_group_is_a_rank_of_nccls() {
    let (output, answer) = Scene::new(
        "
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group('fake', rank=3, world_size=8, store=FakeStore())
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda()); optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    net(torch.randn(64, 64, device='cuda')).sum().backward(); optimizer.step(); optimizer.zero_grad()
",
    )
    .run(&["--gpu", "h100"]);
    let notes = answer["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note["note"].as_str().unwrap().starts_with("rank 3 of 8: ")), "{}", error(&output));
    assert_eq!(answer["nccl"]["communicators"], 1, "{}", error(&output));
    let bytes = |end: &str| answer["nccl"][end].as_i64().unwrap();
    assert!(bytes("most") <= 2 * bytes("least"), "{}", answer["nccl"]);
}
