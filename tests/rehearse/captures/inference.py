"""A small language model that generates with a cache, answers without gradients and with them, and keeps what it is asked to keep."""

import sys

import torch
from torch import nn

NAMES = ("cached", "nested", "kept", "gradients", "grows", "longer", "beams")
CACHED, NESTED, KEPT, GRADIENTS, GROWS, LONGER, BEAMS = (name in sys.argv for name in NAMES)


class Layer:
    def __init__(self, keys, values):
        self.keys, self.values = keys, values


class Cache:
    def __init__(self, layers):
        self.layers = layers


class OfEncoderAndDecoder:
    def __init__(self, own):
        self.self_attention_cache, self.cross_attention_cache = own, Cache([])


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x, past):
        q, k, v = self.qkv(x).chunk(3, -1)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        return nn.functional.scaled_dot_product_attention(q, k, v), (k, v)


class Model(nn.Module):
    def __init__(self, width=256, blocks=2):
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        self.blocks = nn.ModuleList(Attention(width) for _ in range(blocks))
        self.head = nn.Linear(width, 1000)

    def forward(self, ids, past_key_values=None):
        if NESTED and past_key_values:
            past_key_values = [(layer.keys, layer.values) for layer in past_key_values.self_attention_cache.layers]
        x, cache = self.embedding(ids), []
        for number, block in enumerate(self.blocks):
            y, new = block(x, past_key_values and past_key_values[number])
            x, cache = x + y, [*cache, new]
        return self.head(x), OfEncoderAndDecoder(Cache([Layer(*pair) for pair in cache])) if NESTED else cache

    @torch.no_grad()
    def generate(self, ids, tokens):
        past, last = None, ids
        for _ in range(tokens):
            logits, past = self(last, past_key_values=past)
            last = logits[:, -1:].argmax(-1)
        return last


model = Model().cuda().eval()
if CACHED:
    for _ in range(3):
        model.generate(torch.ones(64, 64, dtype=torch.long, device="cuda"), 100)
answers = []
predictions = None
beams = []
for number in range(12):
    if number % 4 == 0:
        beams = []
    ids = torch.ones(32, 64 + 4 * number * LONGER, dtype=torch.long, device="cuda")
    with torch.set_grad_enabled(GRADIENTS):
        scores = model(ids)[0]
    if KEPT:
        answers.append(scores)
    if BEAMS:
        beams.append(scores)
        if number % 4 == 0:
            answers.append(scores.softmax(-1))
    if GROWS:
        predictions = scores if predictions is None else torch.cat([predictions, scores])
