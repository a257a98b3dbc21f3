"""A model of the lab's in training, as the lab trains it, in plain PyTorch: what --what-if makes of it is held against the lab's recorder."""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "experiments" / "python"))
import models  # noqa: E402
import torch.nn.functional as F  # noqa: E402

SEQUENCE, SIDE = 64, 32


class Transformer(models.Transformer):
    """With each result held as long as the lab's own block holds it, which shows where nothing is kept for a backward pass."""

    def attend(self, x):
        n, sequence, width = x.shape
        normed = self.attention_norm(x)
        qkv = self.qkv(normed)
        del normed
        heads = [t.view(n, sequence, self.heads, -1).transpose(1, 2) for t in qkv.chunk(3, -1)]
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        joined = attended.transpose(1, 2).reshape(n, sequence, width)
        del attended, heads
        projected = self.projection(joined)
        del joined, qkv
        return projected

    def forward(self, x):
        x = x + self.attend(x)
        normed = self.mlp_norm(x)
        up = self.up(normed)
        hidden = F.gelu(up, approximate="tanh")
        del up, normed
        branch = self.down(hidden)
        y = x + branch
        del branch, x, hidden
        return y


class Gpt(models.Gpt):
    """With its embeddings in the lab's order, which is that of their backward passes."""

    def forward(self, x):
        positions = self.positions.weight[: x.shape[1]]
        x = self.tokens(x) + positions
        for block in self.block:
            x = block(x)
        return self.head(self.norm(x)).reshape(-1, models.VOCABULARY)


class Segment(torch.autograd.Function):
    """Blocks as the lab checkpoints them: a function that runs them again in its backward pass.

    There what a block keeps is freed after its operation's backward pass; of PyTorch's own checkpoints once it is handed to the operation,
    and so before a bias's gradient is summed, for instance.
    """

    @staticmethod
    def forward(context, anchor, x, blocks):
        context.blocks = blocks
        context.dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        context.save_for_backward(x)
        return run(blocks, x)

    @staticmethod
    def backward(context, gradient):
        (saved,) = context.saved_tensors
        x = saved.detach().requires_grad_(saved.requires_grad)
        # The caller's tensor lives on, what it held goes with the pass.
        held = [gradient.detach()]
        gradient.data = gradient.new_empty(0)
        with torch.enable_grad(), torch.autocast("cuda", context.dtype, enabled=context.dtype is not None):
            begin = Begin.apply(run(context.blocks, x), held)
        begin.backward()
        return None, x.grad, None


class Begin(torch.autograd.Function):
    """Where a backward pass begins with a gradient that nobody else holds."""

    @staticmethod
    def forward(context, output, held):
        context.held = held
        return torch.zeros(())

    @staticmethod
    def backward(context, _):
        return context.held.pop(), None


def run(blocks, x):
    for block in blocks:
        x = block(x)
    return x


class Segments(torch.nn.ModuleList):
    """In place of a model's blocks."""

    def __init__(self, blocks, length):
        super().__init__([torch.nn.ModuleList(blocks)])
        self.length = length

    def __iter__(self):
        return iter([self])

    def __call__(self, x):
        anchor = torch.empty(0, device="cpu", requires_grad=True)
        blocks = list(self[0])
        for first in range(0, len(blocks), self.length):
            x = Segment.apply(anchor, x, blocks[first : first + self.length])
        return x


arguments = argparse.ArgumentParser()
arguments.add_argument("--model", required=True)
arguments.add_argument("--batch", type=int, required=True)
arguments.add_argument("--accumulate", type=int, default=1)
arguments.add_argument("--segment", type=int, help="blocks that the lab's way of checkpointing runs again together")
arguments.add_argument("--bf16", action="store_true")
arguments = arguments.parse_args()

models.Transformer, models.Gpt = Transformer, Gpt
with torch.device("cuda"):
    model = models.named(arguments.model, SEQUENCE)
    if arguments.segment:
        model.block = Segments(model.block, arguments.segment)
    samples = arguments.batch * arguments.accumulate
    if arguments.model.startswith("gpt"):
        inputs, targets = (torch.randint(models.VOCABULARY, (samples, SEQUENCE)) for _ in range(2))
    else:
        inputs = torch.randn(samples, 3, SIDE, SIDE)
        targets = torch.randint(models.CLASSES, (samples,))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
while True:
    optimizer.zero_grad()
    for first in range(0, samples, arguments.batch):
        micro = [tensor.narrow(0, first, arguments.batch) for tensor in (inputs, targets)]
        with torch.autocast("cuda", torch.bfloat16, enabled=arguments.bf16):
            loss = models.loss(model(micro[0]), micro[1])
        if arguments.accumulate > 1:
            loss = loss / arguments.accumulate
        loss.backward()
        del loss
    optimizer.step()
