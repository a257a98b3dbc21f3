//! Several processes on one card, and memory that is not PyTorch's.

use super::ways_in::{own, text};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const GIB: i64 = 1 << 30;

fn vramlab(folder: &Path) -> Command {
    let mut command = crate::scene::vramlab();
    command.current_dir(folder).args(["rehearse", "--gpu", "rtx-4090"]);
    command
}

#[test]
fn what_is_free_is_free_for_all_and_all_that_is_taken_counts() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("answer.json");
    let output = vramlab(folder.path())
        .args(["--gpus", "2", "--json", json.to_str().unwrap(), "--"])
        .args([common::python(), own("sharing.py")])
        .output()
        .unwrap();
    let (said, error) = (text(&output.stdout), text(&output.stderr));
    assert!(said.contains("all works"), "{said}{error}");
    let answer: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let context = answer["gpu"]["context"].as_i64().unwrap();
    let card = answer["cards"].as_array().unwrap().iter().find(|card| card["card"] == 0).unwrap();
    // The two trials at one time beside the one that started them: its 2 GiB, 1 GiB of cudaMalloc and 2 GiB that it gave back again.
    let peaks = card["if_peaks_coincide"].as_i64().unwrap();
    let (least, most) = (16 * GIB + 5 * GIB + 3 * context, 16 * GIB + 5 * GIB + 3 * context + GIB / 4);
    assert!((least..most).contains(&peaks), "{peaks} {card}");
    let peak = card["peak"].as_i64().unwrap();
    assert!((least - 2 * GIB..most - 2 * GIB).contains(&peak) && answer["peak_on_device"] == peak, "{peak} {card}");
    assert!(
        error.contains("GPU 0 is shared")
            && error.contains("Beside that 1.00 GiB of managed memory moves to the card")
            && answer["managed"] == GIB,
        "{error}"
    );
    let line =
        std::fs::read_to_string(own("sharing.py")).unwrap().lines().position(|line| line.ends_with("# by the runtime")).unwrap()
            + 1;
    assert!(error.contains("taken outside of PyTorch's allocator by ") && error.contains(&format!("sharing.py:{line}")), "{error}");
    // The other card was another process's alone.
    let other = answer["cards"].as_array().unwrap().iter().find(|card| card["card"] == 1).unwrap();
    assert_eq!((other["processes"].as_array().unwrap().len(), other["processes"][0]["device"].as_i64()), (1, Some(0)), "{other}");
}

#[test]
fn two_that_fit_alone_do_not_fit_together() {
    let folder = tempfile::tempdir().unwrap();
    let output = vramlab(folder.path()).arg("--").args([common::python(), own("sharing.py")]).arg("two").output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(
        error.contains("DOES NOT FIT rtx-4090") && error.contains("needs 31.") && error.contains("It would fit rtx-5090 ("),
        "{error}"
    );
}

/// The one that runs out has nothing itself.
#[test]
fn ranks_on_one_gpu_hear_of_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = vramlab(folder.path());
    let output = command.args(["--gpus", "2", "--"]).args([common::python(), own("sharing.py")]).arg("ranks").output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    for part in [
        "All 2 ranks use GPU 0 alone, of 2: torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"])) before",
        "Out of memory while loading, allocating 15.0 GiB",
        "peak allocated   15.0 GiB",
        "which has most\n      15.0 GiB",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(!error.contains("It would fit"), "{error}");
}

/// Also with settings of the allocator that tell nobody what it does.
#[test]
fn other_streams_keep_memory_as_long_as_the_gpu_is_behind() {
    let script = "
import os, torch
os.environ['PYTORCH_NO_CUDA_MEMORY_CACHING'] = '1'
side, block = torch.cuda.Stream(), 64 << 20
for _ in range(4):
    with torch.cuda.stream(side):
        x = torch.empty(block, dtype=torch.uint8, device='cuda')
    x.record_stream(torch.cuda.current_stream())
    del x
assert torch.cuda.memory_reserved() == 4 * block, torch.cuda.memory_reserved()
torch.cuda.synchronize()
with torch.cuda.stream(side):
    x = [torch.empty(block, dtype=torch.uint8, device='cuda') for _ in range(4)]
assert torch.cuda.memory_reserved() == 4 * block, torch.cuda.memory_reserved()
print('all works')
";
    let folder = tempfile::tempdir().unwrap();
    let mut command = vramlab(folder.path());
    command.env("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync").args(["--lag", "1000", "--"]);
    let output = command.arg(common::python()).args(["-c", script]).output().unwrap();
    let (said, error) = (text(&output.stdout), text(&output.stderr));
    assert!(said.contains("all works") && error.contains("\nFITS"), "{said}{error}");
    for note in
        ["4 blocks were given back while another stream might use them", "backend:cudaMallocAsync is rehearsed", "with the cache"]
    {
        assert!(error.contains(note), "{note} in {error}");
    }
    // Where it is free at the very next allocation: the first line says so; and of a stream of its own nothing.
    let reused = "
import torch
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    for _ in range(6):
        x = torch.empty(1 << 30, dtype=torch.uint8, device='cuda')
        x.record_stream(torch.cuda.default_stream() if SHARED else stream)
        del x
";
    for (shared, gpu, verdict) in [("True", "rtx-4090", "\nFITS"), ("True", "4GiB", "\nBARELY FITS"), ("False", "4GiB", "\nFITS")] {
        let mut command = crate::scene::vramlab();
        command.args(["rehearse", "--gpu", gpu, "--"]).arg(common::python()).args(["-c", &reused.replace("SHARED", shared)]);
        let error = text(&command.output().unwrap().stderr);
        let said = error.contains("Other streams may hold 5.00 GiB of each step longer than here (--lag 1000).");
        assert!(error.contains(verdict) && said == (shared == "True"), "{shared} {gpu}: {error}");
    }
}

#[test]
fn a_machine_has_the_gpus_that_were_asked_for_and_nccls_buffers_are_named() {
    let script = "
import os, torch, torch.distributed as dist
dist.init_process_group('nccl')
dist.all_reduce(torch.ones(1 << 10, device='cuda'))
groups = [dist.new_group([0, 1, 2, 3]) for _ in range(2)]
dist.all_reduce(torch.ones(1 << 10, device='cuda'), group=groups[0])
try:
    torch.empty(1, device=f'cuda:{torch.cuda.device_count()}')
except RuntimeError as error:
    print(torch.cuda.device_count(), str(error).splitlines()[0])
";
    let folder = tempfile::tempdir().unwrap();
    let mut command = vramlab(folder.path());
    command.env("LOCAL_WORLD_SIZE", "4").args(["--gpus", "2", "--world-size", "4", "--rank", "1", "--"]);
    let output = command.arg(common::python()).args(["-c", script]).output().unwrap();
    let (said, error) = (text(&output.stdout), text(&output.stderr));
    assert!(said.contains("2 ") && said.contains("invalid device ordinal"), "{said}{error}");
    // Of three groups two have moved something. Over PCIe: from 2 channels to 4.
    assert!(error.contains("48.0 MiB to 96.0 MiB more for 2 communicators"), "{said}{error}");
}
