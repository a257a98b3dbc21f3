"""A value that nobody computed decides how much is taken."""

import torch

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    y = model(torch.randn(512, 1024, device="cuda"))
    loss = y.square().mean()
    if loss.item() > 2:
        loss = loss + model(y.repeat(64, 1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
