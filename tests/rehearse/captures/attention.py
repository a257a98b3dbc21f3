"""Attention that is written out, with a mask and dropout, as in many lessons."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width=512, heads=8):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(1024, 1024)).view(1, 1, 1024, 1024))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask == 0, float("-inf"))
        weights = F.dropout(F.softmax(scores, dim=-1), 0.1)
        return x + self.out((weights @ v).transpose(1, 2).flatten(2))


model = nn.Sequential(*[Attention() for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    x = torch.randn(8, 1024, 512, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
