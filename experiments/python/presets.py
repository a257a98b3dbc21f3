"""Models for references whose subject is a whole training step: those of `vramlab rehearse --model`, a small one whose steps the CPU computes, and the
lab's own of any size."""

import re

import models
import torch
from models import train

loss_of = train.loss_of
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


def gradients(model):
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
