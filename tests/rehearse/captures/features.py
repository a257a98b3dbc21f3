"""Features of a backbone that nobody set to evaluation, and that no backward pass goes back through."""

import torch
from torch import nn

backbone = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.GELU())]).cuda()
head = nn.Linear(1024, 10).cuda()
optimizer = torch.optim.Adam(head.parameters())
features = torch.cat([backbone(torch.randn(8192, 1024, device="cuda")) for _ in range(4)]).detach()
for batch in features.split(2048):
    loss = head(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
