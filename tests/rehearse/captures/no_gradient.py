"""Memory runs out in the forward pass of the first step."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(1 << 16, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
