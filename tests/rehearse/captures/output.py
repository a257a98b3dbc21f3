"""A variable that keeps what a model gave: the loss needs it or not, and it is in the peak or the peak comes after."""

import sys

import torch

net = torch.nn.Linear(2048, 8192).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(4096, 2048, device="cuda")
    y = net(x)
    (y.exp() if "unneeded" in sys.argv else y.square()).mean().backward()
    if "later" in sys.argv:
        z = torch.empty(1 << 28, device="cuda")
        del z
    optimizer.step()
    optimizer.zero_grad()
