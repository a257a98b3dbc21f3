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


def loss_of(how, head, hidden, targets, vocabulary):
    """Mean cross-entropy of hidden states `[tokens, width]`, whose logits the head gives."""
    tokens, width = hidden.shape
    if how == "plain":
        return entropy(head(hidden), targets) / tokens
    if how == "no-upcast":
        return F.cross_entropy(head(hidden), targets)
    chunk = chunk_of(how, tokens, width, vocabulary)
    parts, logits = hidden.split(chunk), head
    if how == "chunked":
        parts, logits = [head(part) for part in parts], lambda part: part
    recomputed = lambda part, targets: entropy(logits(part), targets)
    again = {"use_reentrant": False, "preserve_rng_state": False}
    return torch.stack([checkpoint(recomputed, *pair, **again) for pair in zip(parts, targets.split(chunk))]).sum() / tokens


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
        loss = probe.forward(lambda: loss_of(self.how, lambda x: F.linear(x, weights), hidden, self.targets, self.vocabulary))
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
            return loss_of(self.how, self.head, self.model(self.inputs), self.targets, self.head.out_features)

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
