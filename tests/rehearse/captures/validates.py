"""A validation that keeps its graphs, after each epoch of two steps."""

import torch

model = torch.nn.Sequential(*[layer for _ in range(4) for layer in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def validate():
    model.eval()
    losses = [model(torch.randn(4096, 1024, device="cuda")).square().mean().item() for _ in range(3)]
    model.train()
    return sum(losses)


for epoch in range(3):
    for _ in range(2):
        model(torch.randn(1024, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(epoch, validate())
