"""Compiled blocks."""

import torch

model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)) for _ in range(2)]).cuda()
model = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    model(torch.randn(4096, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
