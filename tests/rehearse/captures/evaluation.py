"""Evaluation without no_grad, whose graphs nobody needs."""

import torch

model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(3):
    model.train()
    model(torch.randn(1024, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    for batch in range(4):
        logits = model(torch.randn(8192, 1024, device="cuda"))
        print(logits.mean().item())
