"""It fails for another reason than memory."""

import torch

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
    if step == 1:
        raise ValueError("no such file: checkpoint-1")
