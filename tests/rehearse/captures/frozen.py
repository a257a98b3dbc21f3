"""Adapters of rank 8 on a model whose own weights are frozen."""

import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self, width, rank=8):
        super().__init__()
        self.whole = nn.Linear(width, width, dtype=torch.bfloat16).requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False, dtype=torch.bfloat16), nn.Linear(rank, width, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        return x + torch.relu(self.whole(x) + self.up(self.down(x)))


model = nn.Sequential(*[Adapted(4096) for _ in range(24)]).cuda()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
for step in range(3):
    model(torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
