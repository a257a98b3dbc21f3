"""Memory runs out, and it goes on with half of the batch until that fits."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(1024, 8192), torch.nn.ReLU(), torch.nn.Linear(8192, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = 1 << 18
while True:
    try:
        for step in range(3):
            model(torch.randn(batch, 1024, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        break
    except torch.OutOfMemoryError:
        optimizer.zero_grad()
        batch //= 2
