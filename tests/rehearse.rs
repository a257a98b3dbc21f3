//! `vramlab rehearse` as its users run it: on Python scripts, with the PyTorch that the lab itself was built with.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const VRAMLAB: &str = env!("CARGO_BIN_EXE_vramlab");

/// The Python of the virtual environment that scripts/setup made, or another that has PyTorch.
fn python() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/python");
    if own.exists() { own } else { PathBuf::from("python3") }
}

struct Rehearsed {
    output: Output,
    json: Value,
    cache: tempfile::TempDir,
}

impl Rehearsed {
    fn bytes(&self, field: &str) -> i64 {
        self.json[field].as_i64().unwrap_or_else(|| panic!("{field} in {}", self.error()))
    }

    fn error(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    fn category(&self, name: &str) -> i64 {
        let held = self.json["processes"][0]["peak"]["categories"].as_array().unwrap();
        held.iter().find(|held| held["name"] == name).map_or(0, |held| held["bytes"].as_i64().unwrap())
    }
}

/// A script in a folder of its own, rehearsed with these flags.
fn rehearse(flags: &[&str], script: &str) -> Rehearsed {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("train.py");
    std::fs::write(&file, script).unwrap();
    command(flags, &[python().to_str().unwrap(), file.to_str().unwrap()])
}

fn command(flags: &[&str], words: &[&str]) -> Rehearsed {
    let cache = tempfile::tempdir().unwrap();
    let json = cache.path().join("answer.json");
    let output = Command::new(VRAMLAB)
        .args(["rehearse", "--json", json.to_str().unwrap()])
        .args(flags)
        .arg("--")
        .args(words)
        .env("VRAMLAB_CACHE", cache.path())
        .output()
        .unwrap();
    let json = std::fs::read_to_string(&json).map_or(Value::Null, |text| serde_json::from_str(&text).unwrap());
    Rehearsed { output, json, cache }
}

/// Two linear layers of 1024 x 4096 and back, with AdamW.
const TRAIN: &str = "
import torch
from torch import nn
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100):
    x = torch.randn(256, 1024).cuda()
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print('step', step, 'loss', loss.item(), flush=True)
    if step == BREAK: STOP
print('peak', torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
";

fn train(stop: &str) -> String {
    TRAIN.replace("BREAK", if stop.is_empty() { "-1" } else { "1" }).replace("STOP", if stop.is_empty() { "pass" } else { stop })
}

const PARAMETERS: i64 = (1024 * 4096 + 4096 + 4096 * 1024 + 1024) * 4;

#[test]
fn a_script_is_stopped_after_its_steps_and_answered() {
    let seen = rehearse(&["--gpu", "rtx-4090"], &train(""));
    assert!(seen.output.status.success(), "{}", seen.error());
    assert_eq!(seen.json["verdict"], "fits");
    assert_eq!(seen.json["steps"], 3);
    assert!(seen.said().contains("step 1 loss") && !seen.said().contains("step 3 loss"), "{}", seen.said());
    assert!(seen.error().contains("FITS rtx-4090") && seen.error().contains("train.py:"), "{}", seen.error());
    assert_eq!(seen.category("parameters"), PARAMETERS);
    assert_eq!(seen.category("optimizer state"), 2 * PARAMETERS);
    assert!(seen.category("workspaces") >= 8_519_680, "{}", seen.json["processes"][0]["peak"]["categories"]);
    assert_eq!(seen.bytes("headroom"), seen.json["gpu"]["memory"].as_i64().unwrap() - seen.bytes("peak_on_device"));
    // Nothing of it is left but what is kept for the next one.
    let left =
        std::fs::read_dir(seen.cache.path()).unwrap().flatten().filter(|e| e.file_name().to_string_lossy().starts_with("session"));
    assert_eq!(left.count(), 0);
}

#[test]
fn the_meters_are_pytorchs_own() {
    let seen = rehearse(&["--steps", "all"], &TRAIN.replace("range(100)", "range(2)").replace("if step == BREAK: STOP", ""));
    let peaks = format!("peak {} {}", seen.bytes("peak_allocated"), seen.bytes("peak_reserved"));
    assert!(seen.said().contains(&peaks), "{peaks}, and PyTorch: {}", seen.said());
}

#[test]
fn a_script_that_is_killed_or_hangs_or_fails_is_answered_as_far_as_it_came() {
    for (end, flags) in [
        ("import os; os.kill(os.getpid(), 9)", &[][..]),
        ("import os; os._exit(5)", &[]),
        ("raise ValueError('no')", &[]),
        ("import time; time.sleep(1000)", &["--timeout", "40"]),
    ] {
        let seen = rehearse(flags, &train(end));
        assert_eq!(seen.output.status.code(), Some(1), "{end}: {}", seen.error());
        assert_eq!(seen.json["verdict"], "script_failed", "{end}");
        assert_eq!(seen.json["steps"], 2, "{end}");
        assert!(seen.bytes("peak_allocated") > 4 * PARAMETERS, "{end}");
    }
}

#[test]
fn memory_that_runs_out_is_the_scripts_exception_and_the_answer() {
    let script = "
import torch
kept = [torch.empty(1 << 28, device='cuda') for _ in range(4)]
";
    let seen = rehearse(&["--gpu", "3GiB"], script);
    assert_eq!(seen.output.status.code(), Some(3), "{}", seen.error());
    assert!(seen.error().contains("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB"), "{}", seen.error());
    assert_eq!(seen.bytes("needed_memory") - seen.json["gpu"]["context"].as_i64().unwrap(), 4 << 30);
    let caught = rehearse(
        &["--gpu", "3GiB"],
        &script
            .replace("kept", "try:\n  kept")
            .replace("range(4)]", "range(4)]\nexcept torch.OutOfMemoryError:\n  print('caught')"),
    );
    assert!(caught.output.status.success() && caught.said().contains("caught"), "{}", caught.error());
}

#[test]
fn integers_are_real_and_floating_point_is_imagined() {
    let seen = rehearse(
        &[],
        "
import torch
ids = torch.tensor([[1, 2, 3, 0, 0], [4, 5, 0, 0, 0]]).cuda()
mask = ids != 0
assert mask.sum().item() == 5 and ids[mask].tolist() == [1, 2, 3, 4, 5] and mask.nonzero().shape == (5, 2)
lengths = mask.sum(-1)
assert torch.repeat_interleave(torch.arange(2, device='cuda'), lengths).tolist() == [0, 0, 0, 1, 1]
x = torch.empty(3, dtype=torch.long, device='cuda'); x[0] = 5; x[1:] = torch.tensor([6, 7]).cuda(); x += 1
assert x.cpu().tolist() == [6, 7, 8] and x.prod().item() == 336
w = torch.randn(512, 512, device='cuda') @ torch.randn(512, 512, device='cuda')
assert w.sum().item() == 0 and torch.isfinite(w).all() and not torch.isnan(w).any() and torch.allclose(w, w + 1)
assert w[w > 0].shape == (512 * 512,) and w.argmax().item() == 0
assert torch.bincount(w.topk(2).indices.flatten(), minlength=512).max() == 2
",
    );
    assert!(seen.output.status.success(), "{}", seen.error());
    let imagined = seen.json["processes"][0]["imagined"].as_array().unwrap();
    assert!(imagined.iter().any(|value| value["operator"] == "nonzero" && value["line"]["line"] == 12), "{imagined:?}");
    assert!(imagined.iter().all(|value| value["line"]["line"].as_i64().unwrap() > 9), "{imagined:?}");
}

#[test]
fn one_rank_of_many_allocates_what_it_would() {
    let script = "
import os, torch, torch.distributed as dist
from torch import nn
dist.init_process_group('nccl')
assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (1, 4, 'nccl')
model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024)).cuda()
if WRAP == 'ddp':
    model = nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.fsdp import fully_shard
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.randn(8, 1024, device='cuda')).sum().backward()
    optimizer.step()
";
    let bytes: i64 = 2 * (1024 * 1024 + 1024) * 4;
    for (wrap, state) in [("ddp", 2 * bytes), ("fsdp", 2 * bytes / 4)] {
        let seen = rehearse(&["--world-size", "4", "--rank", "1"], &format!("WRAP = '{wrap}'{script}"));
        assert!(seen.output.status.success(), "{}", seen.error());
        let found = seen.category("optimizer state");
        assert!((state..state + 4096).contains(&found), "{wrap}: {found} and {state}");
        assert_eq!(seen.json["processes"][0]["rank"], 1);
    }
}

#[test]
fn a_command_that_is_no_rehearsal_is_told_why_in_one_line() {
    let refuses = |flags: &[&str], words: &[&str], why: &str| {
        let seen = command(flags, words);
        assert_eq!(seen.output.status.code(), Some(2), "{words:?}: {}", seen.error());
        let last = seen.error().trim().lines().last().unwrap_or_default().to_string();
        assert!(last.starts_with("vramlab: ") && last.contains(why), "{words:?}: {}", seen.error());
    };
    let python = python();
    let python = python.to_str().unwrap();
    refuses(&[], &[], "no command");
    refuses(&[], &["no-such-program"], "spelled right");
    refuses(&[], &["true"], "started no Python");
    refuses(&[], &[python, "-I", "-c", "import torch"], "started no Python");
    refuses(&[], &[python, "-c", "print(1)"], "never imported torch");
    refuses(&[], &[python, "-c", "import torch"], "never used the GPU");
    refuses(&["--gpu", "rtx-1"], &["true"], "rtx-4090");
    refuses(&["--steps", "0"], &["true"], "--steps");
    refuses(&["--world-size", "2", "--rank", "2"], &["true"], "0 to 1");
}

#[test]
fn a_large_model_is_left_untouched_on_the_host() {
    let script = "
import resource, torch
model = torch.nn.Linear(16384, 16384).to(torch.bfloat16).cuda()
model(torch.randn(8, 16384, device='cuda', dtype=torch.bfloat16)).sum().backward()
print('resident', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
";
    let seen = rehearse(&["--no-init"], script);
    assert!(seen.output.status.success(), "{}", seen.error());
    let resident = seen.said().split_whitespace().last().unwrap().parse::<i64>().unwrap();
    assert!(resident < 1 << 20, "{resident} KiB, and the weight alone is 1 GiB");
    assert!(seen.bytes("peak_allocated") > 2 * 16384 * 16384 * 2);
}

#[test]
fn a_script_gets_pytorchs_own_snapshots() {
    let script = "
import torch
x = torch.empty(1 << 25, device='cuda')
assert [s['total_size'] for s in torch.cuda.memory._snapshot()['segments']] == [1 << 27]
torch.cuda.memory._record_memory_history()
y = torch.empty(1 << 24, device='cuda')
made = [e for e in torch.cuda.memory._snapshot()['device_traces'][0] if e['action'] == 'alloc']
assert len(made) == 1 and made[0]['size'] == 1 << 26 and made[0]['frames'][0]['filename'].endswith('train.py'), made
torch.cuda.memory._record_memory_history(enabled=None)
z = torch.empty(1 << 24, device='cuda')
";
    let seen = rehearse(&[], script);
    assert!(seen.output.status.success(), "{}", seen.error());
    let lines = seen.json["processes"][0]["peak"]["lines"].as_array().unwrap();
    assert_eq!(lines.len(), 3, "each of the three has its line, whoever records: {lines:?}");
}
