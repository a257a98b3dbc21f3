"""A training that shares its card with others, and takes no more than half of it."""

import torch
from torch import nn

torch.cuda.set_per_process_memory_fraction(0.5)
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(6)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(3):
    model(torch.randn(16384, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
