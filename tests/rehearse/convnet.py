"""A small network in the way most scripts are written. The tests write the snippets of --what-if over the lines between the marks."""

import argparse

import torch
from torch import nn

arguments = argparse.ArgumentParser()
arguments.add_argument("--batch-size", type=int, default=16)
arguments.add_argument("--grad-accum", type=int, default=1)
arguments = arguments.parse_args()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.activation = nn.ReLU()
        self.mix = nn.Conv2d(width, width, 1)

    def forward(self, x):
        return x + self.mix(self.activation(self.norm(self.convolution(x))))


class Network(nn.Module):
    def __init__(self, width=64, depth=9):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, 1000)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


model = Network().cuda()
criterion = nn.CrossEntropyLoss()
# model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
# loop
for _ in range(5):
    for _ in range(arguments.grad_accum):
        inputs = torch.randn(arguments.batch_size, 3, 64, 64).cuda()
        targets = torch.randint(1000, (arguments.batch_size,)).cuda()
        # batch
        output = model(inputs)
        loss = criterion(output, targets)
        loss.backward()
    # step
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    # end
