"""Writes tests/reference/memory.json: what PyTorch's own tracker says of training steps of torchvision's ResNet-50, byte by byte.

    .venv/bin/python tests/reference/make/memory.py

tests/experiments/tracker.rs runs the same steps on vramlab's simulated GPU and compares; so it does those of small models that are drawn at random. The
tracker is torch.distributed._tools.mem_tracker.MemTracker over fake tensors: nothing is computed, and no GPU is needed. Its tensors say
that they are on the CPU, because without a GPU autograd runs no backward pass on `cuda`; shapes, and so bytes, are the same. What it
rounds on CUDA, to 512 bytes for each storage, is written beside it.
"""

import json
import random
import sys
from pathlib import Path

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import _PYTORCH_MIN_ALLOCATE as BLOCK
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType, _WeakRefInfo

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "experiments/python"))
import models  # noqa: E402

OUT = Path(__file__).resolve().parents[1]
ITERATIONS = 2
# Small models that are drawn at random.
DRAWN = 48

CASE = ["model", "batch", "length", "optimizer", "implementation"]
SIZE = ("resnet50", 4, 224)
OPTIMIZERS = {
    "momentum": lambda parameters, **how: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **how),
    "adam": lambda parameters, **how: torch.optim.Adam(parameters, lr=1e-3, **how),
}
IMPLEMENTATIONS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
# The tracker's names for what bytes are for, and ours.
CATEGORIES = {
    _MemRefType.PARAM: "parameters",
    _MemRefType.BUFFER: "buffers",
    _MemRefType.GRAD: "gradients",
    _MemRefType.OPT: "optimizer_state",
    _MemRefType.ACT: "activations",
    _MemRefType.OTH: "data",
    _MemRefType.TEMP: "temporaries",
}


class Tracker(MemTracker):
    """PyTorch's tracker, read and set back at the end of each phase.

    Where two gradients meet, autograd adds one to the other in place; but not in any dispatch mode, and the tracker is one. Bytes of such a
    sum are therefore in its peaks and in no real run's: `peak_in_place` is the peak without them.
    """

    def __init__(self):
        super().__init__()
        self.peak_in_place = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(func, types, args, kwargs)
        live = self.live()
        if func is torch.ops.aten.add.Tensor and self._mod_tracker.is_bw:
            live["temporaries"] -= self._WINFO[result.untyped_storage()][0].mem_consumed
        if sum(live.values()) > sum(self.peak_in_place.values()):
            self.peak_in_place = live
        return result

    def live(self):
        """What lives now, by category."""
        (now,) = self.get_tracker_snapshot().values() or [dict.fromkeys(_MemRefType, 0)]
        return {ours: now[theirs] for theirs, ours in CATEGORIES.items()}

    def ended(self, iteration, phase):
        """What lives at a phase's end by category, and its peaks; sets these back, as the tracker does when it is entered."""
        (most,) = self.get_tracker_snapshot("peak").values()
        seen = {
            "iteration": iteration,
            "phase": phase,
            "live": without_zeros(self.live()),
            "peak": most["Total"],
            "peak_in_place": without_zeros(self.peak_in_place),
        }
        self._peak_mem_snap = self.get_tracker_snapshot()
        self._peak_mem = {device: snapshot["Total"] for device, snapshot in self._peak_mem_snap.items()}
        self.peak_in_place = self.live()
        return seen


class Transformer(models.train.PreNorm):
    """The block with its attention written out: each result is a tensor of its own."""

    def __init__(self, width, mask):
        super().__init__(width, True, "tanh", 1e-5, 0.0, models.HEAD_WIDTH)
        self.mask = mask

    def attend(self, x):
        qkv = self.qkv(self.attention_norm(x)).chunk(3, -1)
        q, k, v = (t.view(*t.shape[:2], self.heads.heads, -1).transpose(1, 2) for t in qkv)
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(self.mask, float("-inf"))
        scores = scores.softmax(-1)
        return self.projection((scores @ v).transpose(1, 2).reshape(x.shape))


class Gpt(models.Gpt):
    """A GPT of such blocks, which share one mask."""

    def __init__(self, layers, width, sequence):
        super().__init__(0, width, sequence)
        self.register_buffer("mask", torch.ones(sequence, sequence, dtype=torch.bool).triu(1))
        self.block = nn.Sequential(*(Transformer(width, self.mask) for _ in range(layers)))


def build(name, length):
    """A model of torchvision, or one of any size: `resnet-BLOCKSxCHANNELS-bn` of torchvision's blocks, `gpt-LAYERSxWIDTH` as vramlab's."""
    import torchvision

    if hasattr(torchvision.models, name):
        return getattr(torchvision.models, name)()
    blocks, channels = map(int, name.split("-")[1].split("x"))
    if name.startswith("gpt"):
        return Gpt(blocks, channels, length)
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        *[torchvision.models.resnet.BasicBlock(channels, channels) for _ in range(blocks)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 10),
    )


def without_zeros(categories):
    return {name: value for name, value in categories.items() if value}


def train(model_name, batch, length, optimizer_name, implementation, device, ended, track):
    """Two training steps, each in the phases that vramlab knows; `length` is an image's side or a text's tokens."""
    with torch.device(device):
        model = build(model_name, length)
    if model_name.startswith("gpt"):
        inputs, targets = (torch.zeros(batch, length, dtype=torch.int64, device=device) for _ in range(2))
    else:
        inputs = torch.empty(batch, 3, length, length, device=device)
        targets = torch.zeros(batch, dtype=torch.int64, device=device)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), **IMPLEMENTATIONS[implementation])
    track(model, inputs, targets)
    phases = [ended(0, "load")]
    for iteration in range(1, ITERATIONS + 1):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets.reshape(-1))
        phases.append(ended(iteration, "forward"))
        loss.backward()
        del loss
        phases.append(ended(iteration, "backward"))
        optimizer.step()
        phases.append(ended(iteration, "optimizer"))
    return phases


def tracked(*case):
    with FakeTensorMode(), Tracker() as tracker:

        def track(*what):
            tracker.track_external(*what)
            tracker.peak_in_place = tracker.live()

        def ended(iteration, phase):
            if phase == "optimizer":
                # The tracker wants to be told of modules that will run again.
                tracker.reset_mod_stats()
            return tracker.ended(iteration, phase)

        return train(*case, "cpu", ended, track)


def tracked_both_ways(*case):
    """The tracker's bytes as tensors have them, and rounded to blocks as it rounds those of CUDA tensors."""
    exact = tracked(*case)
    consumed = _WeakRefInfo._calculate_mem_consumed
    _WeakRefInfo._calculate_mem_consumed = lambda info: -(-info.size * info.element_size // BLOCK) * BLOCK
    rounded = tracked(*case)
    _WeakRefInfo._calculate_mem_consumed = consumed
    for phase, in_blocks in zip(exact, rounded):
        phase["rounded"] = {
            "live": sum(in_blocks["live"].values()),
            "peak": in_blocks["peak"],
            "peak_in_place": sum(in_blocks["peak_in_place"].values()),
        }
    return exact


def drawn(count):
    """Cases of small models, drawn at random, without Adam's loop, whose steps take longest."""
    draw = random.Random(0)
    for _ in range(count):
        optimizer = draw.choice(list(OPTIMIZERS))
        implementation = draw.choice([name for name in IMPLEMENTATIONS if (optimizer, name) != ("adam", "loop")])
        if draw.random() < 0.5:
            model, lengths = f"resnet-{draw.randint(1, 6)}x{draw.randint(1, 40)}-bn", (8, 40)
        else:
            model, lengths = f"gpt-{draw.randint(1, 4)}x{models.HEAD_WIDTH * draw.randint(1, 4)}", (2, 100)
        yield model, draw.randint(1, 9), draw.randint(*lengths), optimizer, implementation


def in_short(case):
    """Bytes at each phase's end and peak, without categories, and how many tensors are trained."""
    phases = tracked(*case)
    with torch.device("meta"):
        trained = len(list(build(*case[:3:2]).parameters()))
    return {"trained": trained} | {name: [sum(phase[name].values()) for phase in phases] for name in ["live", "peak_in_place"]}


def layers(name):
    """Names and shapes of a model's parameters and buffers."""
    import torchvision

    with torch.device("meta"):
        return [[key, list(value.shape)] for key, value in getattr(torchvision.models, name)().state_dict().items()]


def named(case):
    return dict(zip(CASE, case))


def main():
    import torchvision

    cases = [(*SIZE, optimizer, implementation) for optimizer in OPTIMIZERS for implementation in IMPLEMENTATIONS]
    lists = {
        "cases": [named(case) | {"phases": tracked_both_ways(*case)} for case in cases],
        "drawn": [named(case) | in_short(case) for case in drawn(DRAWN)],
    }
    head = {"torch": torch.__version__.split("+")[0], "torchvision": torchvision.__version__.split("+")[0]}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    lines.append('"models": {\n  ' + f"{json.dumps(SIZE[0])}: {json.dumps(layers(SIZE[0]))}" + "\n }")
    for name, items in lists.items():
        lines.append(f'"{name}": [\n  ' + ",\n  ".join(json.dumps(item) for item in items) + "\n ]")
    path = OUT / "memory.json"
    path.write_text("{\n " + ",\n ".join(lines) + "\n}\n")
    print(path)


if __name__ == "__main__":
    main()
