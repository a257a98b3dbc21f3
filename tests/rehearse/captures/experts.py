"""A mixture of experts, each of which takes the tokens that a router gives it."""

import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, width=1024, experts=8):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(experts))

    def forward(self, x):
        chosen, result = self.router(x).argmax(-1), torch.zeros_like(x)
        for at, expert in enumerate(self.experts):
            mine = (chosen == at).nonzero()[:, 0]
            result[mine] = expert(x[mine])
        return x + result


model = nn.Sequential(Experts(), Experts()).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(3):
    model(torch.randn(8192, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
