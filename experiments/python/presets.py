"""Models for references whose subject is a whole training step: those of `vramlab rehearse --model`, a small one whose steps the CPU computes, and the
lab's own of any size."""

import re
import sys
from pathlib import Path

import models
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src/rehearse/python/presets"))
import train  # noqa: E402

SMALL = {"small-gpt": lambda: train.Gpt2(4, 128, vocabulary=512, positions=64, dropout=0.0)}


def prepared(cell, device, drops=True):
    """A model and a batch, and how it trains: those of a billion parameters in bfloat16 without a copy in fp32, or they would not fit."""
    name = cell["model"]
    never = {} if drops or not name.startswith(("gpt2", "bert")) else {"dropout": 0.0}
    with torch.device(device):
        is_sized = re.match(r"(mlp|gpt|resnet)-\d", name)
        model = models.named(name) if is_sized else (SMALL | train.MODELS)[name](**never)
        batch = model.batch(cell.number("batch"))
    if name == "llama-1b":
        model.to(torch.bfloat16)
    return model, batch


def loss_of(model, batch):
    *inputs, targets = batch
    output = model(*inputs)
    if targets.is_floating_point():
        return torch.nn.functional.mse_loss(output, targets)
    return torch.nn.functional.cross_entropy(output, targets.reshape(-1))


def gradients(model):
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
