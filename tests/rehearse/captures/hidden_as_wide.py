"""A cross-entropy over 1,000 classes of as many rows as a hidden layer has: that one's results are no logits. And an evaluation in fp32 beside a training
in 16 bits."""

import torch
from torch import nn

model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.GELU())], nn.Linear(2048, 1000)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(10):
    x, y = torch.randn(16384, 2048, device="cuda"), torch.randint(0, 1000, (16384,), device="cuda")
    model.eval()
    with torch.no_grad():
        model(x)
    model.train()
    with torch.autocast("cuda", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
