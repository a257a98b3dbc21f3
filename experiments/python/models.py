"""The lab's models in plain PyTorch: the same layers under the same names, so that a state of one fits the other (src/models)."""

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 10
# Pixels along the side of an image.
SIDE = 32
# Of a GPT.
VOCABULARY, HEAD_WIDTH = 256, 32
# Of channels that GroupNorm normalises together.
GROUPS = 4


def named(name, sequence=64):
    """The model of a name: `mlp-DEPTHxWIDTH`, `gpt-LAYERSxWIDTH`, `resnet-BLOCKSxCHANNELS-gn` or `-bn`."""
    kind, size, *norm = name.split("-")
    depth, width = map(int, size.split("x"))
    if kind == "gpt":
        return Gpt(depth, width, sequence)
    return Mlp(depth, width) if kind == "mlp" else ResNet(depth, width, *norm)


class Layer(nn.Linear):
    def forward(self, x):
        return F.gelu(super().forward(x))


class Mlp(nn.Module):
    """Layers of one width with GELU, and a linear classifier."""

    def __init__(self, depth, width):
        super().__init__()
        self.block = nn.Sequential(*(Layer(width, width) for _ in range(depth)))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.head(self.block(x))

    def batch(self, n):
        return torch.randn(n, self.head.in_features), torch.randint(CLASSES, (n,))


class Transformer(nn.Module):
    """A pre-norm block with causal attention by PyTorch's fused kernel."""

    def __init__(self, width):
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attend(self, x):
        n, sequence, width = x.shape
        heads = [t.view(n, sequence, self.heads, -1).transpose(1, 2) for t in self.qkv(self.attention_norm(x)).chunk(3, -1)]
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.projection(attended.transpose(1, 2).reshape(n, sequence, width))

    def forward(self, x):
        x = x + self.attend(x)
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Token and position embeddings, transformer blocks, and an untied linear head."""

    def __init__(self, layers, width, sequence):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(sequence, width)
        self.block = nn.Sequential(*(Transformer(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, x):
        x = self.tokens(x) + self.positions.weight[: x.shape[1]]
        logits = self.head(self.norm(self.block(x)))
        return logits.reshape(-1, logits.shape[-1])

    def batch(self, n):
        shape = (n, self.positions.num_embeddings)
        return torch.randint(VOCABULARY, shape), torch.randint(VOCABULARY, shape)


class Convolution(nn.Conv2d):
    """A 3x3 convolution without bias, and its normalisation."""

    def __init__(self, inputs, outputs, norm):
        super().__init__(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(GROUPS, outputs) if norm == "gn" else nn.BatchNorm2d(outputs)

    def forward(self, x):
        return self.norm(super().forward(x))


class Residual(nn.Module):
    def __init__(self, channels, norm):
        super().__init__()
        self.first = Convolution(channels, channels, norm)
        self.second = Convolution(channels, channels, norm)

    def forward(self, x):
        branch = self.second(F.relu_(self.first(x)))
        branch += x
        return F.relu_(branch)


class ResNet(nn.Module):
    """A 3x3 stem, blocks of two 3x3 convolutions with a skip, global pooling, and a classifier."""

    def __init__(self, blocks, channels, norm="gn"):
        super().__init__()
        self.stem = Convolution(3, channels, norm)
        self.block = nn.Sequential(*(Residual(channels, norm) for _ in range(blocks)))
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, x):
        return self.head(self.block(F.relu_(self.stem(x))).mean((2, 3)))

    def batch(self, n):
        return torch.randn(n, 3, SIDE, SIDE), torch.randint(CLASSES, (n,))


def start(name, state):
    """The model of a name with the parameters and buffers of a state, which may hold more."""
    model = named(name)
    own = model.state_dict()
    missing = own.keys() - state.keys()
    if missing:
        raise KeyError(f"the lab's start lacks {sorted(missing)}")
    model.load_state_dict({name: state[name] for name in own})
    return model


def parameters(model):
    """The parameters in the order of their names, as the lab compares them."""
    return [parameter for _, parameter in sorted(model.named_parameters())]


def loss(logits, targets):
    return F.cross_entropy(logits, targets.reshape(-1))
