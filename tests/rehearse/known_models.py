"""A preset's training step, for comparisons: with a mark in the trace between loading and training, by the clock, or under FakeTensorMode.

    known_models.py MODEL BATCH [--optimizer adamw] [--steps 2] [--fake]

A tensor of MARK bytes comes and goes between loading and training. Prints the median of the steps after the first: seconds by the clock, and
of processors, all threads together; `--fake` takes them on the CPU under FakeTensorMode, which is how PyTorch itself runs a script without
computing.
"""

import argparse
import contextlib
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src/rehearse/python/presets"))
import train as presets  # noqa: E402

MARK = 12345


def now():
    return time.perf_counter(), time.process_time()


arguments = argparse.ArgumentParser()
arguments.add_argument("model", choices=presets.MODELS)
arguments.add_argument("batch", type=int)
arguments.add_argument("--optimizer", choices=presets.OPTIMIZERS, default="adamw")
arguments.add_argument("--steps", type=int, default=2)
arguments.add_argument("--fake", action="store_true")
arguments = arguments.parse_args()
without_computing = contextlib.nullcontext()
if arguments.fake:
    from torch._subclasses.fake_tensor import FakeTensorMode

    without_computing = FakeTensorMode()
with without_computing:
    # Not around the steps: an optimizer's counters are on the host.
    with torch.device("cpu" if arguments.fake else "cuda"):
        model = presets.MODELS[arguments.model]()
        batch = model.batch(arguments.batch)
        mark = torch.empty(MARK, dtype=torch.uint8)
        del mark
    optimizer = presets.OPTIMIZERS[arguments.optimizer](model.parameters())
    times = []
    for _ in range(arguments.steps):
        times.append(now())
        presets.step(model, optimizer, batch)
if arguments.steps > 2:
    steps = [[end - begin for begin, end in zip(*pair)] for pair in zip(times[1:], times[2:])]
    print("seconds of a step", *(statistics.median(of) for of in zip(*steps)))
