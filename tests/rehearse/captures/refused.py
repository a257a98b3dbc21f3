"""An operator that the simulated GPU cannot run, which the script swallows."""

import torch

model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    try:
        torch.linalg.lstsq(torch.randn(64, 64, device="cuda"), torch.randn(64, 1, device="cuda"))
    except RuntimeError:
        pass
    model(torch.randn(64, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
