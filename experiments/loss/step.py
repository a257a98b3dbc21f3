"""The loss over a large vocabulary: whole, in chunks, or with logits that are never whole, for experiments/loss."""

import lab
import presets
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

# Chunks of a chunked loss: as many as torchtune's CEWithChunkedOutputLoss makes by default.
CHUNKS = 8
# Tokens of a fused head's chunk at least: with fewer each product would only read the head's weights.
LEAST = 256
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def chunk_of(how, tokens, width, vocabulary):
    """Tokens of a chunk. A fused head's are as many as give logits of the size of the hidden states, rounded up to a power of two: the rule of
    Liger-Kernel's fused_linear_cross_entropy."""
    if how == "chunked":
        return -(-tokens // CHUNKS)
    return max(LEAST, 1 << (-(-tokens // -(-vocabulary // width)) - 1).bit_length())


def entropy(logits, targets):
    """Sum over tokens, in fp32."""
    return F.cross_entropy(logits.float(), targets, reduction="sum")


class Fused(torch.autograd.Function):
    """Sum of the cross-entropy of `F.linear(hidden, weights, bias)`, some tokens at a time. The backward pass computes the logits of each chunk again, and
    adds up the head's gradients in place."""

    @staticmethod
    def forward(context, hidden, weights, bias, targets, chunk):
        kind = torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled(hidden.device.type) else hidden.dtype
        context.save_for_backward(hidden, weights, bias, targets)
        context.chunk, context.kind = chunk, kind
        head = weights.to(kind), None if bias is None else bias.to(kind)
        parts = zip(hidden.to(kind).split(chunk), targets.split(chunk))
        return sum(entropy(F.linear(rows, *head), classes) for rows, classes in parts)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context, gradient):
        hidden, weights, bias, targets = context.saved_tensors
        kind, chunk = context.kind, context.chunk
        head, shift = weights.to(kind), None if bias is None else bias.to(kind)
        to_hidden, to_weights, to_bias = torch.empty_like(hidden), torch.zeros_like(weights), None if bias is None else torch.zeros_like(bias)
        for rows, classes, into in zip(hidden.to(kind).split(chunk), targets.split(chunk), to_hidden.split(chunk)):
            logits = F.linear(rows, head, shift).softmax(-1, dtype=torch.float32)
            logits[torch.arange(len(rows), device=rows.device), classes] -= 1
            logits = logits.mul_(gradient).to(kind)
            into.copy_(logits @ head)
            if kind == weights.dtype:
                to_weights.addmm_(logits.T, rows)
            else:
                to_weights += logits.T @ rows
            if bias is not None:
                to_bias += logits.sum(0)
        return to_hidden, to_weights, to_bias, None, None


def loss_of(how, head, hidden, targets):
    """Mean cross-entropy of hidden states `[tokens, width]`, whose logits a head gives: weights `[vocabulary, width]` and a bias or none."""
    tokens, width = hidden.shape
    if how == "plain":
        return entropy(F.linear(hidden, *head), targets) / tokens
    if how == "no-upcast":
        return F.cross_entropy(F.linear(hidden, *head), targets)
    chunk = chunk_of(how, tokens, width, len(head[0]))
    if how == "fused":
        return Fused.apply(hidden, *head, targets, chunk) / tokens
    parts = [F.linear(part, *head) for part in hidden.split(chunk)]
    again = {"use_reentrant": False, "preserve_rng_state": False}
    return torch.stack([checkpoint(entropy, *pair, **again) for pair in zip(parts, targets.split(chunk))]).sum() / tokens


class Head:
    """A head without bias alone, and its loss."""

    def __init__(self, cell, bench):
        width, self.vocabulary, tokens = map(cell.number, ("width", "vocabulary", "tokens"))
        options, self.how = {"device": bench.device, "dtype": TYPES[cell["dtype"]]}, cell["how"]
        self.weights = torch.empty(self.vocabulary, width, **options).normal_(0.0, 0.02)
        self.hidden = torch.randn(tokens, width, **options)
        self.targets = torch.randint(self.vocabulary, (tokens,), device=bench.device)

    def run(self, probe):
        # Leaves of this step: their gradients go with them.
        self.given = hidden, weights = [tensor.detach().requires_grad_() for tensor in (self.hidden, self.weights)]
        rest = probe.at_rest()
        loss = probe.forward(lambda: loss_of(self.how, (weights, None), hidden, self.targets))
        loss.backward()
        probe.figure("per_logit", "B", (probe.peak() - rest) / (len(self.targets) * self.vocabulary))
        self.loss = loss.detach()

    def outcome(self):
        return {"gradient": [tensor.grad for tensor in self.given], "loss": [self.loss]}


class Whole:
    """A training step under bf16 autocast."""

    def __init__(self, cell, bench):
        self.model, (self.inputs, targets) = presets.prepared(cell, bench.device, drops=False)
        self.how, self.targets, self.parameters = cell["how"], targets.reshape(-1), list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, 1e-4)
        # What the model gives are then its last hidden states.
        self.head, self.model.head = self.model.head, torch.nn.Identity()

    def forward(self):
        with torch.autocast(self.inputs.device.type, torch.bfloat16):
            return loss_of(self.how, (self.head.weight, self.head.bias), self.model(self.inputs), self.targets)

    def run(self, probe):
        self.optimizer.zero_grad()
        loss = probe.forward(self.forward)
        loss.backward()
        self.gradients = [parameter.grad for parameter in self.parameters]
        self.optimizer.step()
        self.loss = loss.detach()

    def outcome(self):
        return {"gradient": self.gradients, "loss": [self.loss]}


def prepare(cell, bench):
    return (Head if "vocabulary" in cell else Whole)(cell, bench)


if __name__ == "__main__":
    lab.main(prepare)
