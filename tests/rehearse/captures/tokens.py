"""A decoder that answers eight texts of 512 tokens with 16 more."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, past):
        q, k, v = (each.unflatten(-1, (16, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(x))), (k, v)


class Decoder(nn.Module):
    def __init__(self, width=2048, blocks=8):
        super().__init__()
        self.words = nn.Embedding(32000, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 32000)

    def forward(self, tokens, past_key_values=None):
        x, cache = self.words(tokens), []
        for number, block in enumerate(self.blocks):
            x, new = block(x, past_key_values and past_key_values[number])
            cache.append(new)
        return self.head(x), cache

    @torch.inference_mode()
    def generate(self, tokens, many):
        past = None
        for _ in range(many):
            logits, past = self(tokens, past_key_values=past)
            tokens = logits[:, -1:].argmax(-1)


with torch.device("cuda"):
    model = Decoder().to(torch.bfloat16).eval()
model.generate(torch.ones(8, 512, dtype=torch.long, device="cuda"), 16)
