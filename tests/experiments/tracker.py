"""Training steps of tests/reference/make/memory.py on the simulated GPU, for tracker.rs: reads cases as JSON, and writes what each phase holds.

    tracker.py LIBRARY < CASES

LIBRARY is the lab's recorder of allocations.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / path) for path in ("experiments/python", "tests/reference/make", "records/real_gpus")]
import memory  # noqa: E402
import meter  # noqa: E402
import models  # noqa: E402
import replay  # noqa: E402
import torch  # noqa: E402
from presets import train  # noqa: E402


def build(name, length):
    """torchvision's layers without torchvision."""
    if name.startswith("gpt"):
        return memory.Gpt(*map(int, name.split("-")[1].split("x")), length)
    model = train.ResNet50(length) if name == "resnet50" else models.named(name)
    for norm in model.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            norm.num_batches_tracked = torch.tensor(0)
    return model


def rounded(bytes):
    return -(-bytes // memory.BLOCK) * memory.BLOCK


def without_products(events, scores):
    """Of each event whether it counts: CUDA's softmax makes the product of gradient and result beside its own result in the backward pass, both as large
    as the scores, and frees it before anything else is allocated; the CPU's makes none."""
    counts = [True] * len(events)
    for at, (result, product, gone) in enumerate(zip(events, events[1:], events[2:])):
        made = [event[0] for event in (result, product, gone)] == [True, True, False]
        if made and product[1] == gone[1] and result[2] == product[2] == scores:
            counts[at + 1] = counts[at + 2] = False
    return counts


def followed(case):
    """Of each phase: bytes at its end and at its peak, without softmax's products and with each tensor rounded up to blocks; then what the allocator says
    at its end, and what it left at the end of blocks that it did not split."""
    model, batch, length = case["model"], case["batch"], case["length"]
    heads = int(model.split("x")[1]) // models.HEAD_WIDTH if model.startswith("gpt") else 0
    live = in_blocks = 0
    base = torch.cuda.memory_allocated()
    with meter.recorded(0) as taken:

        def ended(iteration, phase):
            nonlocal live, in_blocks
            events, peaks = taken(), [live, live, in_blocks]
            known = without_products(events, 4 * batch * heads * length**2) if phase == "backward" else [True] * len(events)
            alone = live
            for (allocated, _, bytes), counts in zip(events, known):
                sign = 1 if allocated else -1
                live, alone, in_blocks = live + sign * bytes, alone + sign * bytes * counts, in_blocks + sign * rounded(bytes)
                peaks = [max(peak, now) for peak, now in zip(peaks, (live, alone, in_blocks))]
            held = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"] if block["requested_size"]]
            return {
                "iteration": iteration,
                "phase": phase,
                "live": live,
                "peak": peaks[1],
                "product": peaks[0] - peaks[1],
                "blocks": in_blocks,
                "blocks_peak": peaks[2],
                "allocated": torch.cuda.memory_allocated() - base,
                "unsplit": sum(block["size"] - rounded(block["requested_size"]) for block in held if block["state"] == "active_allocated"),
            }

        return memory.train(*(case[name] for name in memory.CASE), "cuda", ended, lambda *_: None)


meter.open_library(sys.argv[1])
replay.open_simulated_gpu()
memory.build = build
# Both threads multiply, so that cuBLAS's workspaces are there before anything is counted.
x = torch.ones(32, 32, device="cuda", requires_grad=True)
torch.nn.functional.linear(x, x, x[0]).sum().backward()
del x
print(json.dumps([followed(case) for case in json.load(sys.stdin)]))
