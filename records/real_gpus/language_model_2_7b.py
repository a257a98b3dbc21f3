"""Passes of the language model of 2.7 billion parameters whose events are events/2.7b_*.csv.gz, written anew after what was recorded (README.md
names it). Functions hold on to what they held there, as in language_model.py.
"""

import math

import torch
from language_model import record, snapshot

DEVICE = "cuda"
VOCABULARY, BATCH, WIDTH, INNER, LAYERS, HEADS = 10000, 4, 2560, 10240, 32, 32


def linear(x, weight):
    """oi,...i->...o as PyTorch 2.6 laid it out in memory; later ones exchange the two, so that it is contiguous (pull request 161755)."""
    return torch.einsum("oi,...i->o...", weight, x).movedim(0, -1)


def norm(x, gain):
    kind = x.dtype
    root = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    root = torch.sqrt(root**2 / WIDTH + 1e-5)
    normed = x / root
    result = torch.einsum("d,...d->...d", gain, normed)
    return result.to(kind)


def rotated(x, tables, positions):
    cos = tables[0][positions].unsqueeze(1)
    sin = tables[1][positions].unsqueeze(1)
    result = torch.empty_like(x)
    result[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    result[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return result


def softmax(x):
    largest = torch.max(x, dim=-1, keepdim=True)[0]
    exponents = torch.exp(x - largest)
    total = torch.sum(exponents, dim=-1, keepdim=True)
    return exponents / total


def attention(q, k, v, mask):
    scores = torch.einsum("...qd,...kd->...qk", q, k)
    scores = scores / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(mask == False, -1e9)  # noqa: E712
    weights = softmax(scores)
    return torch.einsum("...qk,...kd->...qd", weights, v)


def self_attention(x, tables, q_weight, k_weight, v_weight, out_weight):
    q_flat, k_flat, v_flat = linear(x, q_weight), linear(x, k_weight), linear(x, v_weight)
    q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q_flat, k_flat, v_flat))
    length = x.shape[1]
    positions = torch.arange(length, device=DEVICE).unsqueeze(0).expand(BATCH, -1)
    q = rotated(q, tables, positions)
    k = rotated(k, tables, positions)
    mask = torch.triu(torch.ones(length, length, device=DEVICE), diagonal=1).to(torch.bool)
    mask = ~mask
    mask = mask.expand(BATCH, HEADS, -1, -1)
    result = attention(q, k, v, mask)
    result = result.transpose(1, 2).flatten(2)
    result = linear(result, out_weight)
    return result


def feed_forward(x, gate, down, up):
    gated = linear(x, gate)
    raised = linear(x, up)
    silu = torch.sigmoid(gated) * gated
    return linear(silu * raised, down)


def block(x, tables, first_norm, q, k, v, out, second_norm, *feed):
    h = norm(x, first_norm)
    h = self_attention(h, tables, q, k, v, out)
    x = x + h
    h = norm(x, second_norm)
    h = feed_forward(h, *feed)
    x = x + h
    return x


def parameters(vocabulary, width, inner, layers):
    """In the order in which the optimizer goes through them, and how many a layer has."""
    square, gain = (width, width), (width,)
    layer = [gain, square, square, square, square, gain, (inner, width), (width, inner), (inner, width)]
    shapes = [(vocabulary, width), *layer * layers, gain, (vocabulary, width)]
    return [torch.empty(shape, device=DEVICE, requires_grad=True) for shape in shapes], len(layer)


def model(tokens, weights, per_layer, tables):
    embedding, *layers, last_norm, head = weights
    x = embedding[tokens]
    for first in range(0, len(layers), per_layer):
        x = block(x, tables, *layers[first : first + per_layer])
    x = norm(x, last_norm)
    x = linear(x, head)
    return x


def cross_entropy(logits, targets):
    logits, targets = logits.flatten(0, 1), targets.flatten()
    largest = torch.max(logits, dim=-1, keepdim=True)[0]
    logits = logits - largest
    exponents = torch.exp(logits)
    total = torch.sum(exponents, dim=-1)
    chosen = logits[torch.arange(len(targets)), targets]
    losses = torch.log(total) - chosen
    return losses.mean()


class KeptAdamW(torch.optim.Optimizer):
    """Makes its moments at its first step, and one or two temporaries for each parameter."""

    def __init__(self, weights, temporaries):
        super().__init__(weights, dict(rate=1e-4, decay=0.01, betas=(0.9, 0.95)))
        self.temporaries = temporaries

    def step(self):
        for group in self.param_groups:
            rate, (first, second) = group["rate"], group["betas"]
            for p in group["params"]:
                grad = p.grad.data
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                    state["v"] = torch.zeros_like(p)
                state["m"].mul_(first).add_(grad, alpha=1 - first)
                state["v"].mul_(second).addcmul_(grad, grad, value=1 - second)
                root = state["v"].sqrt
                denominator = root().add_(1e-8) if self.temporaries == 1 else root() + 1e-8
                p.data.addcdiv_(state["m"], denominator, value=-rate)
                p.data.add_(p.data, alpha=-rate * group["decay"])


def earlier(length, backward):
    """A product: the process had run other passes, forward ones before the first step, and shorter ones before the longer. Each thread that
    had multiplied holds its workspace of cuBLAS."""
    if length > 128 or backward:
        x = torch.empty(8, 8, device=DEVICE, requires_grad=True)
        y = x @ x
        if length > 128 and backward:
            y.sum().backward()


def recorded(length, kind=None, steps=False):
    weights, per_layer = parameters(VOCABULARY, WIDTH, INNER, LAYERS)
    tables = torch.empty(2, length, WIDTH // HEADS // 2, device=DEVICE)
    optimizer = KeptAdamW(weights, temporaries=2)
    tokens = torch.randint(0, VOCABULARY, (BATCH, length)).to(DEVICE)
    earlier(length, backward=steps)
    with torch.autocast(device_type=DEVICE, dtype=kind, enabled=kind is not None):
        record()
        logits = model(tokens, weights, per_layer, tables)
        if steps:
            loss = cross_entropy(logits, tokens)
            loss.backward()
            optimizer.step()
    return snapshot()


def forward(length):
    return recorded(length)


def autocast(length):
    """The forward pass, in bfloat16."""
    return recorded(length, torch.bfloat16)


def training(length):
    return recorded(length, steps=True)
