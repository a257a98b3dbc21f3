"""One training step of the language model whose events are events/large_256_training.csv.gz, written anew after what was recorded (README.md
names it). Functions hold on to what they held there, as in language_model.py.
"""

import math

import torch
from language_model import record, snapshot
from language_model_2_7b import KeptAdamW, linear, parameters

DEVICE = "cuda"
VOCABULARY, BATCH, WIDTH, INNER, LAYERS, HEADS = 10000, 4, 1280, 5120, 36, 20


def norm(x, gain):
    mean = (x**2).mean(-1, keepdim=True)
    root = torch.sqrt(mean + 1e-5)
    return (x / root) * gain


def rotation_tables(width, length):
    places = torch.arange(0, width, 2, device=DEVICE, dtype=torch.float32)
    exponents = places / width
    frequencies = 1.0 / (10000**exponents)
    positions = torch.arange(length, device=DEVICE, dtype=torch.float32)
    angles = torch.einsum("p,f->pf", positions, frequencies)
    return torch.cos(angles), torch.sin(angles)


def rotated(x, cos_table, sin_table, positions):
    cos = cos_table[positions].unsqueeze(1)
    sin = sin_table[positions].unsqueeze(1)
    first, second = x[..., 0::2], x[..., 1::2]
    turned_first = first * cos - second * sin
    turned_second = first * sin + second * cos
    result = torch.empty_like(x)
    result[..., 0::2] = turned_first
    result[..., 1::2] = turned_second
    return result


def softmax(x):
    largest = torch.max(x, dim=-1, keepdim=True).values
    shifted = x - largest
    exponents = torch.exp(shifted)
    total = torch.sum(exponents, dim=-1, keepdim=True)
    return exponents / total


def attention(q, k, v, mask):
    scores = torch.einsum("...qd,...kd->...qk", q, k)
    masked = torch.where(mask, scores, -torch.inf)
    weights = softmax(masked / math.sqrt(q.shape[-1]))
    return torch.einsum("...qk,...kd->...qd", weights, v)


def self_attention(x, weights):
    q, k, v = (linear(x, weight) for weight in weights[:3])
    by_head = lambda t: t.unflatten(-1, (HEADS, -1)).transpose(-3, -2)
    q_heads, k_heads, v_heads = by_head(q), by_head(k), by_head(v)
    length = x.shape[-2]
    positions = torch.arange(length, device=DEVICE).expand(BATCH, -1)
    cos, sin = rotation_tables(WIDTH // HEADS, length)
    q_turned = rotated(q_heads, cos, sin, positions)
    k_turned = rotated(k_heads, cos, sin, positions)
    mask = torch.tril(torch.ones((length, length), device=DEVICE, dtype=torch.bool))
    mixed = attention(q_turned, k_turned, v_heads, mask)
    joined = mixed.transpose(-3, -2).flatten(-2)
    return linear(joined, weights[3])


def feed_forward(x, gate, down, up):
    gated = linear(x, gate)
    raised = linear(x, up)
    silu = gated * torch.sigmoid(gated)
    product = silu * raised
    return linear(product, down)


def block(x, first_norm, q, k, v, out, second_norm, *feed):
    x = x + self_attention(norm(x, first_norm), (q, k, v, out))
    x = x + feed_forward(norm(x, second_norm), *feed)
    return x


def forward(tokens, weights, per_layer):
    embedding, *layers, last_norm, head = weights
    x = embedding[tokens]
    for first in range(0, len(layers), per_layer):
        x = block(x, *layers[first : first + per_layer])
    x = norm(x, last_norm)
    return linear(x, head)


def training(length):
    """The second step: the first makes the moments. A step's logits and loss live until the next step's."""
    weights, per_layer = parameters(VOCABULARY, WIDTH, INNER, LAYERS)
    optimizer = KeptAdamW(weights, temporaries=1)
    tokens = torch.randint(0, VOCABULARY, (BATCH, length), device=DEVICE)
    for step in range(2):
        if step == 1:
            record()
        logits = forward(tokens, weights, per_layer)
        loss = logits.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return snapshot()
