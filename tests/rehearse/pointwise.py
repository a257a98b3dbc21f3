"""A network for whose convolutions cuDNN chooses a workspace with a batch of 8 where it needs none with 4."""

import argparse

import torch
from torch import nn

arguments = argparse.ArgumentParser()
arguments.add_argument("--batch-size", type=int)
batch_size = arguments.parse_args().batch_size

blocks = [nn.Sequential(nn.Conv2d(256, 128, 1), nn.ReLU(), nn.Conv2d(128, 256, 1), nn.ReLU()) for _ in range(3)]
model = nn.Sequential(nn.Conv2d(3, 256, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    output = model(torch.randn(batch_size, 3, 56, 56).cuda())
    nn.functional.cross_entropy(output, torch.randint(10, (batch_size,)).cuda()).backward()
    optimizer.step()
    optimizer.zero_grad()
