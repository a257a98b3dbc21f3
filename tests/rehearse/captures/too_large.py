"""It does not fit."""

import torch

model = torch.nn.Sequential(*[torch.nn.Linear(8192, 8192) for _ in range(8)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    model(torch.randn(1024, 8192, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
