"""A training that evaluates, and writes a checkpoint, after more steps than a rehearsal makes."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def evaluate():
    model.eval()
    with torch.no_grad():
        for _ in range(4):
            model(torch.randn(65536, 1024, device="cuda"))
    model.train()


for step in range(1, 1000):
    model(torch.randn(4096, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 100 == 0:
        evaluate()
        torch.save(model.state_dict(), "model.pt")
