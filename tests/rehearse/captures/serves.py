"""A server of its own: a pool for keys and values of what is free, and then requests without an end."""

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, HEADS, HEAD, WIDTH, WORDS, BLOCK = 4, 8, 64, 512, 8192, 16


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * HEADS * HEAD, bias=False), nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x, keys, values, at):
        rows = len(x)
        q, k, v = (part.reshape(rows, -1, HEADS, HEAD) for part in self.qkv(x).chunk(3, -1))
        keys.view(-1, HEADS, HEAD)[at], values.view(-1, HEADS, HEAD)[at] = k.flatten(0, 1), v.flatten(0, 1)
        k, v = (pool.view(-1, HEADS, HEAD)[: int(at[-1]) + 1].transpose(0, 1)[None] for pool in (keys, values))
        x = x + self.out(F.scaled_dot_product_attention(q.transpose(1, 2), k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layers, self.head = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Layer() for _ in range(LAYERS)), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens, pool, at):
        x = self.words(tokens)
        for layer, (keys, values) in zip(self.layers, pool):
            x = layer(x, keys, values, at)
        return self.head(x[:, -1:]).argmax(-1)


with torch.inference_mode():
    model = Model().to("cuda", torch.bfloat16).eval()
    free, _ = torch.cuda.mem_get_info()
    blocks = int(0.9 * free) // (2 * LAYERS * BLOCK * HEADS * HEAD * 2)
    pool = torch.empty(LAYERS, 2, blocks, BLOCK, HEADS, HEAD, dtype=torch.bfloat16, device="cuda")
    while True:
        token = model(torch.zeros(1, 512, dtype=torch.long, device="cuda"), pool, torch.arange(512, device="cuda"))
        for place in range(512, 544):
            token = model(token, pool, torch.arange(place, place + 1, device="cuda"))
