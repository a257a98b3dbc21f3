"""A small diffusion UNet with group norms, attention and skips, fp32, an average of its weights."""

import copy

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, before, after, attends=False):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(8, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1))
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()
        self.attention = nn.MultiheadAttention(after, 4, batch_first=True) if attends else None

    def forward(self, x):
        x = self.skip(x) + self.second(self.first(x))
        if self.attention:
            flat = x.flatten(2).transpose(1, 2)
            x = x + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).unflatten(2, x.shape[2:])
        return x


class UNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        w = (width, width * 2, width * 4)
        self.begin, self.end = nn.Conv2d(3, w[0], 3, padding=1), nn.Conv2d(w[0], 3, 3, padding=1)
        self.down = nn.ModuleList([Block(w[0], w[0]), Block(w[0], w[1]), Block(w[1], w[2], True)])
        self.up = nn.ModuleList([Block(w[2] + w[2], w[1], True), Block(w[1] + w[1], w[0]), Block(w[0] + w[0], w[0])])

    def forward(self, x):
        x, skips = self.begin(x), []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), skips.pop()], 1))
        return self.end(x)


model = UNet().cuda()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(30):
    images = torch.randn(32, 3, 64, 64, device="cuda")
    noise = torch.randn_like(images)
    F.mse_loss(model(images + noise), noise).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for a, p in zip(average.parameters(), model.parameters()):
            a.lerp_(p, 0.001)
