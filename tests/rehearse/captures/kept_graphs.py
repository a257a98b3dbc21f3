"""Inference that keeps its outputs, and with them what a backward pass would need."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()) for _ in range(12)]).cuda().eval()
outputs = []
for _ in range(12):
    outputs.append(model(torch.randn(4096, 2048, device="cuda")))
