"""The models that `vramlab rehearse --model NAME` trains: published ones in plain PyTorch, with the techniques of the guides as flags.

Layers, and the order in which they allocate, are those of the lab's own models (src/models), but for Llama and the UNet, which only stand here.
"""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


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

    def __init__(self, width, causal, gelu, epsilon, dropout, head=64):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, epsilon)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width, epsilon)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.gelu, self.dropout = Attention(width // head, causal, dropout), gelu, dropout

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
    def __init__(self, layers=12, width=768, vocabulary=50257, positions=1024, dropout=0.1, head=64):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.block = nn.Sequential(*(PreNorm(width, True, "tanh", 1e-5, dropout, head) for _ in range(layers)))
        self.norm, self.dropout = nn.LayerNorm(width), dropout
        # Without a weight of its own: the head is tied to the embedding.
        self.head = nn.Linear(width, vocabulary, bias=False, device="meta")
        self.head.weight = self.tokens.weight

    def forward(self, x):
        positions = self.positions.weight[: x.shape[1]]
        x = dropped(self.tokens(x) + positions, self.dropout)
        logits = self.head(self.norm(self.block(x)))
        return logits.reshape(-1, logits.shape[-1])

    def batch(self, n, length=None):
        shape = (n, length or self.positions.num_embeddings)
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

    def batch(self, n, length=None):
        return torch.randint(self.tokens.num_embeddings, (n, length or self.positions.num_embeddings)), torch.randint(2, (n,))


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


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, groups, hidden):
        super().__init__()
        self.heads, self.groups = heads, groups
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        size = width // heads
        self.query, self.projection = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = nn.Linear(width, groups * size, bias=False), nn.Linear(width, groups * size, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def rotated(self, x):
        """Rotary position embedding; the angles are those of Llama 3, without its scaling for long contexts."""
        sequence, size = x.shape[-2:]
        rates = 500000.0 ** (-torch.arange(0, size, 2, device=x.device) / size)
        angles = torch.outer(torch.arange(sequence, device=x.device), rates).repeat(1, 2)
        first, second = x.chunk(2, -1)
        return x * angles.cos().to(x.dtype) + torch.cat([-second, first], -1) * angles.sin().to(x.dtype)

    def attend(self, x):
        n, sequence, width = x.shape
        split = lambda t, heads: t.view(n, sequence, heads, width // self.heads).transpose(1, 2)
        x = self.attention_norm(x)
        q, k = self.rotated(split(self.query(x), self.heads)), self.rotated(split(self.key(x), self.groups))
        # Not enable_gqa, which only some of PyTorch's kernels take.
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, split(self.value(x), self.groups)))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(attended.transpose(1, 2).reshape(n, sequence, width))

    def forward(self, x):
        x = x + self.attend(x)
        hidden = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(hidden)) * self.up(hidden))


class Llama(nn.Module):
    """Llama 3.2 1B by its published configuration, the head tied to the embedding."""

    def __init__(self, layers=16, width=2048, heads=32, groups=8, hidden=8192, vocabulary=128256):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(vocabulary, width), nn.RMSNorm(width, 1e-5)
        self.block = nn.Sequential(*(LlamaBlock(width, heads, groups, hidden) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        logits = self.head(self.norm(self.block(self.tokens(x))))
        return logits.reshape(-1, logits.shape[-1])

    def batch(self, n, length=None):
        shape = (n, length or 2048)
        return torch.randint(self.tokens.num_embeddings, shape), torch.randint(self.tokens.num_embeddings, shape)


class Convolution(nn.Module):
    """Without bias, and batch norm without its counter of batches, which libtorch's models do not have."""

    def __init__(self, inputs, outputs, kernel, stride=1):
        super().__init__()
        self.stride, self.kernel = stride, nn.Parameter(torch.zeros(outputs, inputs, kernel, kernel))
        self.norm = nn.BatchNorm2d(outputs)
        self.norm.num_batches_tracked = None

    def forward(self, x):
        return self.norm(F.conv2d(x, self.kernel, None, self.stride, self.kernel.shape[2] // 2))


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


class ResidualBlock(nn.Module):
    """Two convolutions, between which the time of the diffusion is added."""

    def __init__(self, inputs, outputs, time):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time, outputs))
        self.second = nn.Sequential(nn.GroupNorm(32, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1))
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, time):
        return self.shortcut(x) + self.second(self.first(x) + self.time(time)[..., None, None])


class CrossAttention(nn.Module):
    def __init__(self, width, context, heads=8):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(inputs, width, bias=False) for inputs in (width, context, context))
        self.projection, self.heads = nn.Linear(width, width), heads

    def forward(self, x, context):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.query(x), self.key(context), self.value(context)))
        return self.projection(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class SpatialTransformer(nn.Module):
    """Pixels attend to one another, then to the text."""

    def __init__(self, width, context):
        super().__init__()
        self.norm = nn.GroupNorm(32, width, 1e-6)
        self.enter, self.leave = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.pixels, self.text = CrossAttention(width, width), CrossAttention(width, context)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, image, text):
        x = self.enter(self.norm(image)).flatten(2).transpose(1, 2)
        normed = self.norms[0](x)
        x = x + self.pixels(normed, normed)
        x = x + self.text(self.norms[1](x), text)
        hidden, gate = self.up(self.norms[2](x)).chunk(2, -1)
        x = x + self.down(hidden * F.gelu(gate))
        return image + self.leave(x.transpose(1, 2).unflatten(2, image.shape[2:]))


class UnetBlock(nn.Module):
    """A block on the way down, which keeps its result, or on the way up, which takes one that was kept."""

    def __init__(self, residual, transformer=None, scale=None, keeps=False, takes=False):
        super().__init__()
        self.residual, self.transformer, self.scale, self.keeps, self.takes = residual, transformer, scale, keeps, takes

    def forward(self, state):
        x, time, text, *kept = state
        if self.takes:
            x = torch.cat([x, kept.pop()], 1)
        if self.residual is not None:
            x = self.residual(x, time)
        if self.transformer is not None:
            x = self.transformer(x, text)
        if self.scale is not None:
            x = self.scale(x)
        return (x, time, text, *kept, *([x] if self.keeps else []))


class Unet(nn.Module):
    """The UNet of Stable Diffusion 1 by its published configuration (v1-inference.yaml of CompVis/stable-diffusion): 859,520,964 parameters.

    A sample is an image's latents of an eighth of its side, a time of the diffusion and a text of 77 tokens, and the noise in it is learned.
    """

    def __init__(self, image=512, width=320, multiples=(1, 2, 4, 4), context=768):
        super().__init__()
        self.side, self.width, self.context, time = image // 8, width, context, 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.stem, x, kept, blocks, levels = nn.Conv2d(4, width, 3, padding=1), width, [width], [], list(enumerate(multiples))
        deepest = len(multiples) - 1

        def transformer(level):
            return SpatialTransformer(width * multiples[level], context) if level < deepest else None

        for level, multiple in levels:
            for _ in range(2):
                blocks.append(UnetBlock(ResidualBlock(x, width * multiple, time), transformer(level), keeps=True))
                x = width * multiple
                kept.append(x)
            if level < deepest:
                blocks.append(UnetBlock(None, scale=nn.Conv2d(x, x, 3, 2, 1), keeps=True))
                kept.append(x)
        blocks += [UnetBlock(ResidualBlock(x, x, time), SpatialTransformer(x, context)), UnetBlock(ResidualBlock(x, x, time))]
        for level, multiple in reversed(levels):
            for i in range(3):
                residual, x = ResidualBlock(x + kept.pop(), width * multiple, time), width * multiple
                rises = i == 2 and level > 0
                scale = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(x, x, 3, padding=1)) if rises else None
                blocks.append(UnetBlock(residual, transformer(level), scale, takes=True))
        self.block = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.GroupNorm(32, x), nn.SiLU(), nn.Conv2d(x, 4, 3, padding=1))

    def forward(self, latents, times, text):
        rates = 10000.0 ** (-torch.arange(self.width // 2, device=times.device) / (self.width // 2))
        angles = torch.outer(times, rates)
        time = self.time(torch.cat([angles.cos(), angles.sin()], 1).to(latents.dtype))
        x = self.stem(latents)
        return self.head(self.block((x, time, text, x))[0])

    def batch(self, n):
        latents = (n, 4, self.side, self.side)
        return torch.randn(latents), torch.randint(1000, (n,)), torch.randn(n, 77, self.context), torch.randn(latents)


MODELS = {
    "gpt2": Gpt2,
    "gpt2-medium": lambda **more: Gpt2(24, 1024, **more),
    "gpt2-large": lambda **more: Gpt2(36, 1280, **more),
    "gpt2-xl": lambda **more: Gpt2(48, 1600, **more),
    "bert-base": Bert,
    "bert-large": lambda **more: Bert(24, 1024, **more),
    "llama-1b": Llama,
    "vit-l16": Vit,
    "resnet50": ResNet50,
    "sd-unet": Unet,
}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 1e-3, foreach=False),
    "adam": lambda parameters: torch.optim.Adam(parameters, 1e-5),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-5),
    "adamw-loop": lambda parameters: torch.optim.AdamW(parameters, 1e-5, foreach=False),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, 1e-5, fused=True),
}
SEGMENTS = {"none": lambda blocks: 0, "every-block": lambda blocks: 1, "sqrt": lambda blocks: math.ceil(math.sqrt(blocks))}


class Segments(nn.Sequential):
    """Blocks of which so many at once are computed again in the backward pass."""

    def __init__(self, blocks, length):
        super().__init__(*blocks)
        self.length = length

    def forward(self, x):
        blocks = list(self)
        for first in range(0, len(blocks), self.length):
            x = checkpoint(nn.Sequential(*blocks[first : first + self.length]), x, use_reentrant=False)
        return x


def loss_of(model, batch):
    *x, y = batch
    return F.mse_loss(model(*x).float(), y) if y.is_floating_point() else F.cross_entropy(model(*x), y.reshape(-1))


def step(model, optimizer, batch, accumulate=1, bf16=False):
    optimizer.zero_grad()
    for micro in zip(*(tensor.chunk(accumulate) for tensor in batch)):
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            loss = loss_of(model, micro)
        if accumulate > 1:
            loss = loss / accumulate
        loss.backward()
        del loss
    optimizer.step()


def main():
    flags = argparse.ArgumentParser(prog="vramlab rehearse --model NAME --batch N --", description="trains a model of the lab's")
    flags.add_argument("--model", choices=MODELS, required=True, help=argparse.SUPPRESS)
    flags.add_argument("--batch", type=int, default=1, help=argparse.SUPPRESS)
    flags.add_argument("--accumulate", type=int, default=1, help="micro-batches of --batch samples that a step accumulates")
    flags.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    flags.add_argument("--bf16", action="store_true", help="train under autocast")
    flags.add_argument("--checkpoint", choices=SEGMENTS, default="none", help="what is computed again in the backward pass")
    flags.add_argument("--seq", type=int, help="tokens of a sample, of models that read text")
    flags.add_argument("--image", type=int, help="pixels along the side of an image, of models that see")
    modes = ["default", "reduce-overhead"]
    flags.add_argument("--compile", nargs="?", choices=modes, const=modes[0], help="compile the model; in which mode of torch.compile")
    flags.add_argument("--memory-budget", type=float, help="with --compile: which share of its activations the compiled model keeps")
    given = flags.parse_args()
    reads = given.model.startswith(("gpt", "bert", "llama"))
    if (given.image if reads else given.seq) is not None:
        flags.error(f"{given.model} {'reads text: --seq' if reads else 'sees images: --image'} is its flag")
    if given.model == "sd-unet" and given.image is not None and given.image % 64:
        flags.error(f"--image {given.image}: {given.model} takes multiples of 64")
    with torch.device("cuda"):
        model = MODELS[given.model](**({"image": given.image} if given.image else {}))
        positions = getattr(model, "positions", None)
        if given.seq and positions is not None and given.seq > positions.num_embeddings:
            flags.error(f"--seq {given.seq}: {given.model} has {positions.num_embeddings} positions")
        batch = model.batch(given.batch * given.accumulate, *([given.seq] if reads else []))
    length = SEGMENTS[given.checkpoint](len(model.block))
    if length:
        model.block = Segments(model.block, length)
    optimizer = OPTIMIZERS[given.optimizer](model.parameters())
    if given.memory_budget is not None:
        from torch._functorch import config

        config.activation_memory_budget = given.memory_budget
    if given.compile:
        model.compile(mode=given.compile)
    # Rehearsals end a script after the steps that they want to see.
    for _ in range(20):
        step(model, optimizer, batch, given.accumulate, given.bf16)


if __name__ == "__main__":
    main()
