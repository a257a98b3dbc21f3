"""Checkpointed blocks, and an average of the weights."""

import copy

import torch
from torch.utils.checkpoint import checkpoint

blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)) for _ in range(6)).cuda()
averages = copy.deepcopy(blocks).requires_grad_(False)
optimizer = torch.optim.AdamW(blocks.parameters(), fused=True)
for step in range(3):
    x = torch.randn(4096, 1024, device="cuda", requires_grad=True)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    x.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    for average, weight in zip(averages.parameters(), blocks.parameters()):
        average.lerp_(weight.detach(), 0.01)
