"""Weights in buffers, a CUDA graph that is replayed by itself, a module that is frozen, an input that is made for one pass."""

import sys

import torch
from torch import nn


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.zeros(2048, 2048, dtype=torch.int8))

    def forward(self, x):
        return x @ self.weight.half()


def batch(rows):
    return torch.randn(rows, 2048, device="cuda", dtype=torch.half)


model = nn.Sequential(Whole(), Whole()).cuda()
with torch.no_grad():
    if sys.argv[1] == "graph":
        x, graph = batch(1024), torch.cuda.CUDAGraph()
        model(x)
        with torch.cuda.graph(graph):
            model(x)
        for _ in range(20):
            graph.replay()
    else:
        convolutions = nn.Sequential(nn.Conv2d(3, 64, 7), nn.Conv2d(64, 128, 1), nn.Conv2d(128, 64, 3)).cuda().eval()
        images = torch.randn(2, 3, 64, 64, device="cuda")
        frozen = torch.jit.freeze(torch.jit.trace(convolutions, images))
        for _ in range(4):
            frozen(images)
            y = model(batch(16384))
