"""A list of losses with their graphs."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(5):
    loss = model(torch.randn(2048, 1024, device="cuda")).square().mean()
    loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss)
