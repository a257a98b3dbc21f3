"""An optimizer whose step evaluates the model twice."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()


class Twice(torch.optim.Adam):
    def step(self, closure):
        closure()
        return super().step(closure)


optimizer, x = Twice(model.parameters()), torch.randn(8192, 1024, device="cuda")


def closure():
    optimizer.zero_grad()
    loss = model(x).square().sum()
    loss.backward()
    return loss


for _ in range(3):
    optimizer.step(closure=closure)
