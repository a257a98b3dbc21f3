"""Blocks of linear layers or of convolutions, under an optimizer."""

import contextlib
import sys

import torch
from torch import nn

kind, optimizer, precision = sys.argv[1:]
images = kind == "images"


def layer():
    return nn.Conv2d(64, 64, 3, padding=1) if images else nn.Linear(2048, 2048)


model = nn.Sequential(*[nn.Sequential(layer(), nn.ReLU()) for _ in range(4)]).cuda()
optimizer = getattr(torch.optim, optimizer)(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    x = torch.randn((32, 64, 128, 128) if images else (64, 2048), device="cuda")
    with torch.autocast("cuda", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext():
        loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
