"""A mixture of experts: how many tokens an expert gets, the values decide."""

import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, width=1024, count=8):
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(count))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, place].unsqueeze(1))
        return x + out


model = nn.Sequential(*[Experts() for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(20):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(torch.randn(8192, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
