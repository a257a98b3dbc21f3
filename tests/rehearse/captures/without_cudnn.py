"""Convolutions with cuDNN turned off, as a workaround for an error of long ago."""

import torch
from torch import nn

torch.backends.cudnn.enabled = False
model = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), nn.Conv2d(128, 128, 3, 1, 1), nn.Flatten(), nn.Linear(128 * 28 * 28, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(3):
    images, labels = torch.randn(64, 3, 112, 112, device="cuda"), torch.randint(10, (64,), device="cuda")
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
