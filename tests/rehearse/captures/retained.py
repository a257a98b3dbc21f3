"""Backward passes that keep their graphs, which nobody goes back through again."""

import torch
from torch import nn

model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.GELU())]).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(10):
    x = torch.randn(8192, 1024, device="cuda")
    output = model(x)
    loss = (output - x).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
