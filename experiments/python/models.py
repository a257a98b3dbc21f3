"""The lab's models in plain PyTorch: the same layers under the same names, so that a state of one fits the other (src/models)."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src/rehearse/python/presets"))
import train  # noqa: E402

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


class Gpt(train.Gpt2):
    """With heads of another width, and an untied linear head."""

    def __init__(self, layers, width, sequence):
        super().__init__(layers, width, VOCABULARY, sequence, dropout=0.0, head=HEAD_WIDTH)
        self.head = nn.Linear(width, VOCABULARY)


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
