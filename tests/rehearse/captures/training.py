"""A language model in bf16: what most people train."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (8, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, width=512, words=8192):
        super().__init__()
        self.words, self.blocks, self.head = nn.Embedding(words, width), nn.ModuleList(Block(width) for _ in range(4)), nn.Linear(width, words)

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(3):
    x = torch.randint(8192, (8, 513), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
