"""Trains a small model that needs nothing but PyTorch, and prints the peaks of its allocator. Run by versions.py under rehearsal.

small_models.py mlp|convnet|gpt
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    """ResNet's bottleneck."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        n, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(n, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(n, length, width))
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary=32000, width=512, layers=6, length=512):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 8) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def mlp():
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    return model, optimizer, lambda: (torch.randn(512, 1024), torch.randint(10, (512,))), False


def convnet():
    stages = [Residual(inputs, width, stride) for inputs, width, stride in ((64, 64, 1), (256, 128, 2), (512, 256, 2), (1024, 512, 2))]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)]
    model = nn.Sequential(*stem, *stages, *head).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, lambda: (torch.randn(32, 3, 224, 224), torch.randint(1000, (32,))), False


def gpt():
    model = Gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    return model, optimizer, lambda: (torch.randint(32000, (8, 512)), torch.randint(32000, (8, 512))), True


def main():
    model, optimizer, batch, autocast = {"mlp": mlp, "convnet": convnet, "gpt": gpt}[sys.argv[1]]()
    for _ in range(3):
        x, y = (tensor.pin_memory().cuda(non_blocking=True) for tensor in batch())
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            logits = model(x)
        loss = F.cross_entropy(logits.float().flatten(0, -2), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    print("peaks", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())


if __name__ == "__main__":
    main()
