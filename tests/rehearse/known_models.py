"""The lab's models of `vramlab predict` in Python, layer by layer and in the same order, and their training step.

    known_models.py MODEL BATCH [--optimizer adamw] [--steps 2] [--fake]

A tensor of MARK bytes comes and goes between loading and training. Prints the median of the steps after the first: seconds by the clock, and
of processors, all threads together; `--fake` takes them on the CPU under FakeTensorMode, which is how PyTorch itself runs a script without
computing.
"""

import argparse
import contextlib
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

MARK = 12345


class Attention(nn.Module):
    def __init__(self, heads, causal, dropout):
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout

    def forward(self, queries, keys, values):
        n, sequence, width = queries.shape
        q, k, v = (t.view(n, sequence, self.heads, width // self.heads).transpose(1, 2) for t in (queries, keys, values))
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=self.causal)
        return attended.transpose(1, 2).reshape(n, sequence, width)


class PreNorm(nn.Module):
    """The block of GPT and ViT."""

    def __init__(self, width, causal, gelu, epsilon, dropout):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, epsilon)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width, epsilon)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.gelu, self.dropout = Attention(width // 64, causal, dropout), gelu, dropout

    def attend(self, x):
        q, k, v = self.qkv(self.attention_norm(x)).chunk(3, -1)
        return self.projection(self.heads(q, k, v))

    def forward(self, x):
        x = x + dropped(self.attend(x), self.dropout)
        hidden = F.gelu(self.up(self.mlp_norm(x)), approximate=self.gelu)
        branch = dropped(self.down(hidden), self.dropout)
        return x + branch


def dropped(x, probability):
    return F.dropout(x, probability) if probability > 0 else x


class Gpt2(nn.Module):
    def __init__(self, layers=12, width=768, vocabulary=50257, positions=1024, dropout=0.1):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.block = nn.Sequential(*(PreNorm(width, True, "tanh", 1e-5, dropout) for _ in range(layers)))
        self.norm, self.dropout = nn.LayerNorm(width), dropout

    def forward(self, x):
        positions = self.positions.weight[: x.shape[1]]
        x = dropped(self.tokens(x) + positions, self.dropout)
        logits = F.linear(self.norm(self.block(x)), self.tokens.weight)
        return logits.reshape(-1, logits.shape[-1])

    def batch(self, n):
        shape = (n, self.positions.num_embeddings)
        return torch.randint(self.tokens.num_embeddings, shape), torch.randint(self.tokens.num_embeddings, shape)


class PostNorm(nn.Module):
    """BERT's block."""

    def __init__(self, width, dropout):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.projection, self.heads = nn.Linear(width, width), Attention(width // 64, False, dropout)
        self.attention_norm = nn.LayerNorm(width, 1e-12)
        self.up, self.down, self.dropout = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), dropout
        self.mlp_norm = nn.LayerNorm(width, 1e-12)

    def attend(self, x):
        query, key, value = self.query(x), self.key(x), self.value(x)
        return self.projection(self.heads(query, key, value))

    def forward(self, x):
        x = self.attention_norm(dropped(self.attend(x), self.dropout) + x)
        return self.mlp_norm(dropped(self.down(F.gelu(self.up(x))), self.dropout) + x)


class Bert(nn.Module):
    def __init__(self, layers=12, width=768, vocabulary=30522, positions=512, dropout=0.1):
        super().__init__()
        self.tokens, self.positions, self.types = nn.Embedding(vocabulary, width), nn.Embedding(positions, width), nn.Embedding(2, width)
        self.register_buffer("type_ids", torch.zeros(1, positions, dtype=torch.long))
        self.norm, self.dropout = nn.LayerNorm(width, 1e-12), dropout
        self.block = nn.Sequential(*(PostNorm(width, dropout) for _ in range(layers)))
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, 2)

    def embed(self, x):
        types = self.types(self.type_ids[:, : x.shape[1]].expand_as(x))
        tokens = self.tokens(x)
        total = tokens + types
        # In the order in which Rust's addition drops them.
        del types, tokens
        total = total + self.positions.weight[: x.shape[1]]
        return dropped(self.norm(total), self.dropout)

    def forward(self, x):
        pooled = self.pooler(self.block(self.embed(x)).select(1, 0)).tanh()
        return self.classifier(dropped(pooled, self.dropout))

    def batch(self, n):
        return torch.randint(self.tokens.num_embeddings, (n, self.positions.num_embeddings)), torch.randint(2, (n,))


class Vit(nn.Module):
    def __init__(self, layers=24, width=1024, image=224):
        super().__init__()
        # A module's own parameters come before those of its parts.
        self.image, self.patches, self.bias = image, nn.Parameter(torch.zeros(width, 3, 16, 16)), nn.Parameter(torch.zeros(width))
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, (image // 16) ** 2 + 1, width))
        self.block = nn.Sequential(*(PreNorm(width, False, "none", 1e-6, 0.0) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width, 1e-6), nn.Linear(width, 1000)

    def embed(self, x):
        patches = F.conv2d(x, self.patches, self.bias, 16).flatten(2, 3).transpose(1, 2)
        token = self.token.expand(x.shape[0], -1, -1)
        return torch.cat([token, patches], 1) + self.positions

    def forward(self, x):
        return self.head(self.norm(self.block(self.embed(x))).select(1, 0))

    def batch(self, n):
        return torch.randn(n, 3, self.image, self.image), torch.randint(1000, (n,))


class Convolution(nn.Module):
    """Without bias, and batch norm without its counter of batches."""

    def __init__(self, inputs, outputs, kernel, stride=1):
        super().__init__()
        self.stride, self.kernel = stride, nn.Parameter(torch.zeros(outputs, inputs, kernel, kernel))
        self.weight, self.bias = nn.Parameter(torch.ones(outputs)), nn.Parameter(torch.zeros(outputs))
        self.register_buffer("mean", torch.zeros(outputs))
        self.register_buffer("variance", torch.ones(outputs))

    def forward(self, x):
        x = F.conv2d(x, self.kernel, None, self.stride, self.kernel.shape[2] // 2)
        return F.batch_norm(x, self.mean, self.variance, self.weight, self.bias, True)


class Bottleneck(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        outputs = 4 * channels
        self.first, self.second = Convolution(inputs, channels, 1), Convolution(channels, channels, 3, stride)
        self.third = Convolution(channels, outputs, 1)
        self.downsample = Convolution(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else None

    def forward(self, x):
        branch = self.first(x)
        branch = self.second(branch.relu_())
        branch = self.third(branch.relu_())
        branch += x if self.downsample is None else self.downsample(x)
        return branch.relu_()


class ResNet50(nn.Module):
    def __init__(self, image=224):
        super().__init__()
        self.image, self.stem = image, Convolution(3, 64, 7, 2)
        blocks, inputs = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            channels = 64 << stage
            for i in range(count):
                blocks.append(Bottleneck(inputs, channels, 2 if stage > 0 and i == 0 else 1))
                inputs = 4 * channels
        self.block, self.head = nn.Sequential(*blocks), nn.Linear(inputs, 1000)

    def pooled(self, x):
        x = self.stem(x).relu_()
        return F.max_pool2d(x, 3, 2, 1)

    def forward(self, x):
        return self.head(self.block(self.pooled(x)).mean((2, 3)))

    def batch(self, n):
        return torch.randn(n, 3, self.image, self.image), torch.randint(1000, (n,))


MODELS = {"gpt2": Gpt2, "bert-base": Bert, "vit-l16": Vit, "resnet50": ResNet50}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 1e-3, foreach=False),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-5, foreach=False),
    "adamw-foreach": lambda parameters: torch.optim.AdamW(parameters, 1e-5),
}


def train(model, batch, steps, optimizer, device):
    # Not around the steps: an optimizer's counters are on the host.
    with torch.device(device):
        model = MODELS[model]()
        inputs, targets = model.batch(batch)
        mark = torch.empty(MARK, dtype=torch.uint8)
        del mark
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    times = []
    for step in range(steps):
        times.append(now())
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets.reshape(-1))
        loss.backward()
        del loss
        optimizer.step()
    return times


def now():
    return time.perf_counter(), time.process_time()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("model", choices=MODELS)
    arguments.add_argument("batch", type=int)
    arguments.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw-foreach")
    arguments.add_argument("--steps", type=int, default=2)
    arguments.add_argument("--fake", action="store_true")
    arguments = arguments.parse_args()
    if arguments.fake:
        from torch._subclasses.fake_tensor import FakeTensorMode

        without_computing = FakeTensorMode()
    else:
        without_computing = contextlib.nullcontext()
    with without_computing:
        times = train(arguments.model, arguments.batch, arguments.steps, arguments.optimizer, "cpu" if arguments.fake else "cuda")
    if arguments.steps > 2:
        steps = [[end - begin for begin, end in zip(*pair)] for pair in zip(times[1:], times[2:])]
        print("seconds of a step", *(statistics.median(of) for of in zip(*steps)))


if __name__ == "__main__":
    main()
