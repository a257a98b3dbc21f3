"""Steps that tell what a predicted time is worth, on a GPU: variants of one script, since their ratios matter most.

    python records/times/clock.py step CASE [FILE]     takes steps; FILE gets the seconds of one
    python records/times/clock.py compare FOLDER       sets CASE-predicted.json (of `vramlab rehearse --json`) beside CASE-clock.json

A case is a model and what is changed of it: twice the batch, half of it, checkpoints, fp32, AdamW's loop over parameters, channels_last.
"""

import json
import pathlib
import statistics
import sys
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

CASES = ("gpt-plain", "gpt-batch", "gpt-half", "gpt-checkpoint", "gpt-fp32", "gpt-loop", "convnet-plain", "convnet-half", "convnet-fp32", "convnet-last")
WARM_UP, ROUNDS, STEPS = 10, 5, 10


def gpt(change):
    batch = {"batch": 16, "half": 4}.get(change, 8)
    layer = lambda: nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    words, head = nn.Embedding(50304, 1024).cuda(), nn.Linear(1024, 50304, bias=False).cuda()
    layers = nn.ModuleList(layer() for _ in range(12)).cuda()
    ids = torch.randint(50304, (batch, 1024), device="cuda")
    mask = nn.Transformer.generate_square_subsequent_mask(1024, device="cuda")

    def loss():
        with torch.autocast("cuda", torch.bfloat16, enabled=change != "fp32"):
            x = words(ids)
            for one in layers:
                call = lambda x, one=one: one(x, src_mask=mask, is_causal=True)
                x = checkpoint(call, x, use_reentrant=False) if change == "checkpoint" else call(x)
            return nn.functional.cross_entropy(head(x).flatten(0, 1), ids.flatten())

    return [*words.parameters(), *layers.parameters(), *head.parameters()], loss


def convnet(change):
    widths = (64, 128, 256, 512)
    blocks = [block for before, width in zip((64, *widths), widths)
              for block in (nn.Conv2d(before, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(3, 64, 7, stride=2, padding=3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).cuda()
    batch = 128 if change == "half" else 256
    images, labels = torch.randn(batch, 3, 224, 224, device="cuda"), torch.randint(1000, (batch,), device="cuda")
    if change == "last":
        model, images = model.to(memory_format=torch.channels_last), images.contiguous(memory_format=torch.channels_last)

    def loss():
        with torch.autocast("cuda", torch.bfloat16, enabled=change != "fp32"):
            return nn.functional.cross_entropy(model(images), labels)

    return list(model.parameters()), loss


def steps(case, file):
    model, change = case.split("-")
    parameters, loss_of = {"gpt": gpt, "convnet": convnet}[model](change)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, foreach=False if change == "loop" else None)

    def step():
        loss_of().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARM_UP):
        step()
    seconds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - began) / STEPS)
    if file:
        about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rounds": seconds}
        pathlib.Path(file).write_text(json.dumps({"step_seconds": statistics.median(seconds), **about}))


def compare(folder):
    read = lambda name: json.loads(path.read_text()) if (path := pathlib.Path(folder) / name).exists() else None
    print("case,predicted,low,high,measured,measured/predicted,inside,ratio predicted,ratio measured")
    plain = {}
    for case in CASES:
        predicted, clock = (read(f"{case}-predicted.json") or {}).get("time"), read(f"{case}-clock.json")
        if not predicted:
            print(case, *["-"] * 8, sep=",")
            continue
        own = predicted["step_seconds"], clock["step_seconds"] if clock else None
        # Each against the first of its model.
        first = plain.setdefault(case.split("-")[0], own)
        bounds = [f"{predicted[name]:.4g}" for name in ("step_seconds", "low_seconds", "high_seconds")]
        measured = [f"{own[1]:.4g}", f"{own[1] / own[0]:.3f}", predicted["low_seconds"] <= own[1] <= predicted["high_seconds"]] if clock else ["-"] * 3
        print(case, *bounds, *measured, f"{own[0] / first[0]:.3f}", f"{own[1] / first[1]:.3f}" if clock and first[1] else "-", sep=",")


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "step":
        steps(words[0], words[1] if len(words) > 1 else None)
    else:
        compare(words[0])
