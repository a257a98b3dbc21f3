"""One step of the language model whose events are events/*.csv.gz, written anew after what was recorded (README.md names it). Which tensor
lives until when is Python's business, so that functions hold on to what they held there.
"""

import math

import torch
from torch import nn

DEVICE = "cuda"
VOCABULARY, WARM_UP = 10000, 5
SIZES = {"medium": (4, 1024, 4096, 24, 16), "small": (32, 768, 3072, 12, 12)}
BATCH, WIDTH, INNER, LAYERS, HEADS = SIZES["medium"]


def become(size):
    global BATCH, WIDTH, INNER, LAYERS, HEADS
    BATCH, WIDTH, INNER, LAYERS, HEADS = SIZES[size]


def softmax(x):
    shifted = x - torch.max(x, dim=-1, keepdim=True)[0]
    exponents = torch.exp(shifted)
    return exponents / torch.sum(exponents, dim=-1, keepdim=True)


def log_softmax(x):
    largest = torch.max(x, dim=-1, keepdim=True)[0]
    x = x - largest
    return x - torch.log(torch.sum(torch.exp(x), dim=-1, keepdim=True))


def cross_entropy(logits, targets):
    negative = -log_softmax(logits)
    return torch.mean(torch.gather(negative, -1, targets.unsqueeze(-1)))


class Linear(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outer, inner))

    def forward(self, x):
        return torch.einsum("...i,oi->...o", x, self.weight)


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(VOCABULARY, WIDTH))

    def forward(self, tokens):
        return self.weight[tokens, :]


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        kind = x.dtype
        x = x.to(torch.float32)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * scale
        return (self.weight * x).to(kind)


class Rotation(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        angles = torch.outer(torch.arange(length).float(), 10000.0 ** -(torch.arange(0, width, 2) / width))
        self.register_buffer("table", torch.stack((torch.cos(angles), torch.sin(angles))), persistent=False)

    def forward(self, x):
        first, second = x.unflatten(-1, (-1, 2)).movedim(-1, 0).unbind(0)
        cos, sin = self.table[:, : x.size(-2), :].unbind(0)
        turned_first = cos * first - sin * second
        turned_second = sin * first + cos * second
        result = torch.concat((turned_first, turned_second), dim=-1)
        return result


def attention(q, k, v, mask):
    scores = torch.einsum("...qd,...kd->...qk", q, k) / math.sqrt(k.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    weights = softmax(scores)
    return torch.einsum("...qk,...kd->...qd", weights, v)


class SelfAttention(nn.Module):
    def __init__(self, rotation):
        super().__init__()
        self.q, self.k, self.v, self.out = (Linear(WIDTH, WIDTH) for _ in range(4))
        self.rotation = rotation

    def forward(self, x):
        length = x.size(1)
        q = self.q(x)
        k = self.k(x)
        v = self.v(x)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
        q = self.rotation(q)
        k = self.rotation(k)
        places = torch.arange(length, device=x.device)
        queries = places.unsqueeze(1)
        keys = places.unsqueeze(0)
        mask = queries >= keys
        mask = mask[None, ...]
        mixed = attention(q, k, v, mask)
        mixed = mixed.transpose(1, 2).reshape(x.shape[0], length, WIDTH).contiguous()
        output = self.out(mixed)
        return output


def silu(x):
    return x * torch.sigmoid(x)


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.down, self.up = Linear(WIDTH, INNER), Linear(INNER, WIDTH), Linear(WIDTH, INNER)

    def forward(self, x):
        return self.down(silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, rotation):
        super().__init__()
        self.attention, self.feed_forward = SelfAttention(rotation), FeedForward()
        self.first_norm, self.second_norm = Norm(), Norm()

    def forward(self, x):
        attended = self.attention(self.first_norm(x))
        middle = x + attended
        fed = self.feed_forward(self.second_norm(middle))
        output = middle + fed
        return output


class LanguageModel(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.embedding = Embedding()
        rotation = Rotation(length, WIDTH // HEADS)
        self.layers = nn.ModuleList([Block(rotation) for _ in range(LAYERS)])
        self.norm = Norm()
        self.head = Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        embedded = self.embedding(x)
        x = embedded
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        logits = self.head(x)
        return logits


class AdamW(torch.optim.Optimizer):
    """Makes its moments anew at each step, and makes zeros for those that are there."""

    def __init__(self, parameters):
        super().__init__(parameters, dict(rate=1e-3, decay=0.01, betas=(0.9, 0.999)))

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad.data
                state = self.state[p]
                rate, (first, second) = group["rate"], group["betas"]
                t = state.get("t", 1)
                corrected = rate * (math.sqrt(1 - second**t) / (1 - first**t))
                p.data -= rate * group["decay"] * p.data
                m_before = state.get("m", torch.zeros_like(grad))
                v_before = state.get("v", torch.zeros_like(grad))
                m = first * m_before + ((1 - first) * grad)
                v = second * v_before + ((1 - second) * torch.square(grad))
                p.data -= corrected * m / (torch.sqrt(v) + 1e-8)
                state["m"] = m
                state["v"] = v
                state["t"] = t + 1


def tokens(steps, length):
    return torch.randint(low=0, high=VOCABULARY, size=(steps, BATCH, length), dtype=torch.long, device=DEVICE)


def record():
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, context=None)


def autocast(length):
    return torch.autocast(device_type=DEVICE, dtype=torch.bfloat16, enabled=length > 128)


def gradients(length):
    """In fp32, and without an optimizer: gradients are added to those of before, and the last step's logits and loss are there."""
    with torch.device(DEVICE):
        model = LanguageModel(length)
    inputs, targets = tokens(1, length)[0], tokens(1, length)[0]
    for i in range(WARM_UP + 1):
        if i == WARM_UP:
            record()
        output = model(inputs)
        loss = cross_entropy(output, targets)
        loss.backward()
    return snapshot()


def inference(length):
    with torch.device(DEVICE):
        model = LanguageModel(length)
    warm, inputs = tokens(WARM_UP, length), tokens(1, length)
    model.eval()
    with torch.inference_mode():
        for i in range(WARM_UP):
            with autocast(length):
                model(warm[i])
        record()
        with autocast(length):
            model(inputs[0])
        return snapshot()


def training(length):
    with torch.device(DEVICE):
        model = LanguageModel(length)
    optimizer = AdamW(model.parameters())
    warm, inputs = tokens(WARM_UP, length), tokens(1, length)
    warm_targets, targets = tokens(WARM_UP, length), tokens(1, length)
    model.train()
    for i in range(WARM_UP):
        with autocast(length):
            output = model(warm[i])
            loss = cross_entropy(output, warm_targets[i])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    del output, loss
    optimizer.zero_grad(set_to_none=True)
    record()
    with autocast(length):
        output = model(inputs[0])
        loss = cross_entropy(output, targets[0])
    loss.backward()
    optimizer.step()
    return snapshot()


def snapshot():
    """Allocations and frees in order, each with the number of its block and its bytes; -1 for a block from before."""
    blocks, events = {}, []
    made = 0
    for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
        if entry["action"] == "alloc":
            blocks[entry["addr"]] = made
            events.append(("alloc", made, entry["size"]))
            made += 1
        elif entry["action"] == "free_completed":
            events.append(("free", blocks.pop(entry["addr"], -1), entry["size"]))
    torch.cuda.memory._record_memory_history(enabled=None)
    return events
