"""A training script for the report's recipes: three published models in plain PyTorch, with the techniques as flags.

`vramlab rehearse --gpu 24GiB -- python peers/pytorch/recipe.py --model gpt2-medium --micro-batch 8 --accumulate 8 --bf16`
"""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Transformer(nn.Module):
    """The pre-norm block of GPT-2 and ViT."""

    def __init__(self, width, causal, gelu, drop):
        super().__init__()
        self.heads, self.causal, self.gelu, self.drop = width // 64, causal, gelu, drop
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, sequence, width = x.shape
        heads = [t.view(n, sequence, self.heads, -1).transpose(1, 2) for t in self.qkv(self.attention_norm(x)).chunk(3, -1)]
        attended = F.scaled_dot_product_attention(*heads, is_causal=self.causal, dropout_p=self.drop)
        attended = self.projection(attended.transpose(1, 2).reshape(n, sequence, width))
        x = x + F.dropout(attended, self.drop)
        return x + F.dropout(self.down(F.gelu(self.up(self.mlp_norm(x)), approximate=self.gelu)), self.drop)


class Gpt2(nn.Module):
    def __init__(self, layers, width, drop=0.1):
        super().__init__()
        self.tokens, self.positions, self.drop = nn.Embedding(50257, width), nn.Embedding(1024, width), drop
        self.blocks = nn.ModuleList(Transformer(width, True, "tanh", drop) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def stem(self, x):
        return F.dropout(self.tokens(x) + self.positions.weight[: x.shape[1]], self.drop)

    def head(self, x):
        return F.linear(self.norm(x), self.tokens.weight).flatten(0, 1)

    @staticmethod
    def batch(n):
        tokens = torch.randint(50257, (n, 1024), device="cuda")
        return tokens, tokens.flatten()


class Vit(nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, 197, width))
        self.blocks = nn.ModuleList(Transformer(width, False, "none", 0.0) for _ in range(layers))
        self.norm, self.classifier = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 1000)

    def stem(self, x):
        patches = self.patches(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.positions

    def head(self, x):
        return self.classifier(self.norm(x)[:, 0])

    @staticmethod
    def batch(n):
        return torch.randn(n, 3, 224, 224, device="cuda"), torch.randint(1000, (n,), device="cuda")


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.reduce, self.reduce_norm = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.middle, self.middle_norm = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.expand, self.expand_norm = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.skip = None
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        branch = F.relu_(self.reduce_norm(self.reduce(x)))
        branch = F.relu_(self.middle_norm(self.middle(branch)))
        branch = self.expand_norm(self.expand(branch))
        branch += x if self.skip is None else self.skip(x)
        return F.relu_(branch)


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.blocks, inputs = nn.ModuleList(), 64
        for stage, count in enumerate([3, 4, 6, 3]):
            for n in range(count):
                self.blocks.append(Bottleneck(inputs, 64 << stage, 2 if stage > 0 and n == 0 else 1))
                inputs = 256 << stage
        self.classifier = nn.Linear(2048, 1000)

    def stem(self, x):
        return F.max_pool2d(F.relu_(self.norm(self.convolution(x))), 3, 2, 1)

    def head(self, x):
        return self.classifier(x.mean((2, 3)))

    batch = staticmethod(Vit.batch)


MODELS = {"gpt2-medium": lambda: Gpt2(24, 1024), "vit-l16": lambda: Vit(24, 1024), "resnet50": ResNet50}


def run(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def forward(model, x, policy):
    x = model.stem(x)
    size = {"none": 0, "every-block": 1, "sqrt": math.ceil(math.sqrt(len(model.blocks)))}[policy]
    if size == 0:
        return model.head(run(model.blocks, x))
    for first in range(0, len(model.blocks), size):
        x = checkpoint(run, model.blocks[first : first + size], x, use_reentrant=False)
    return model.head(x)


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--model", choices=MODELS, required=True)
    flags.add_argument("--micro-batch", type=int, required=True)
    flags.add_argument("--accumulate", type=int, default=1)
    flags.add_argument("--bf16", action="store_true")
    flags.add_argument("--checkpoint", choices=["none", "sqrt", "every-block"], default="none")
    flags.add_argument("--steps", type=int, default=3)
    given = flags.parse_args()
    model = MODELS[given.model]().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(given.steps):
        for _ in range(given.accumulate):
            x, y = model.batch(given.micro_batch)
            with torch.autocast("cuda", torch.bfloat16, enabled=given.bf16):
                loss = F.cross_entropy(forward(model, x, given.checkpoint), y) / given.accumulate
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
