"""The rows of image_models.csv run again: the largest batch of a training step that fits an RTX 3090, found as timm's benchmark finds it
(README.md names it), with timm's models as they were in 2022. Needs timm.
"""

import csv
import math
from pathlib import Path

import torch

DEVICE, GPU = "cuda", "NVIDIA GeForce RTX 3090"
LARGEST = 512
# What a process held outside the allocator before PyTorch 1.13 (pull request 86509) loaded kernels when they are first used: 1,644 MiB on an RTX 3090
# with a tensor of 158 MiB (pytorch/pytorch#49877, PyTorch 1.7.1 with CUDA 11).
CONTEXT = (1644 - 158) << 20


def rows():
    with open(Path(__file__).with_name("image_models.csv"), newline="") as file:
        return list(csv.DictReader(file))


def smaller(batch):
    """The next that is tried: 512, 384, 256, 192, 128, ..."""
    power = 2 ** math.floor(math.log2(batch - 1))
    half = max(power // 2, 1)
    return power + (batch - power - 1) // half * half


def model_of(row):
    import timm

    # Attention had no kernel of its own then.
    timm.layers.set_fused_attn(False)
    with torch.device(DEVICE):
        model = timm.create_model(row["model"])
    return model.to(memory_format=layout(row)).train()


def layout(row):
    return {"nhwc": torch.channels_last, "nchw": torch.contiguous_format}[row["layout"]]


def steps(model, row, batch, count=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True, foreach=False)
    images = torch.randn(batch, 3, int(row["pixels"]), int(row["pixels"]), device=DEVICE).contiguous(memory_format=layout(row))
    for _ in range(count):
        # PyTorch of that time kept gradients, as zeros.
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast(DEVICE, torch.float16):
            output = model(images)
            targets = torch.randint(output.shape[1], (batch,), device=DEVICE)
            torch.nn.functional.cross_entropy(output, targets).backward()
        optimizer.step()


def largest_batch(row):
    torch.backends.cudnn.benchmark = True
    torch.cuda.set_per_process_memory_fraction(1 - CONTEXT / torch.cuda.get_device_properties(0).total_memory)
    model = model_of(row)
    batch = LARGEST
    while batch > 1:
        try:
            steps(model, row, batch)
            return batch
        except torch.OutOfMemoryError:
            pass
        model.zero_grad()
        torch.cuda.empty_cache()
        batch = smaller(batch)
    return 0
