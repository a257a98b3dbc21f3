"""Convolutions with a bias, in channels first and last."""

import torch
from torch import nn

first, last = (nn.Conv2d(64, 64, 3, padding=1).cuda().half() for _ in range(2))
last = last.to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
x = torch.randn(64, 64, 56, 56, device="cuda", dtype=torch.half, requires_grad=True)
y = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
while True:
    a = first(x)
    b = last(y)
    (a.square().sum() + b.square().sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
