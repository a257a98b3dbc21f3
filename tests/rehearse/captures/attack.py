"""An attack on a model: backward passes and no optimizer step, and two forward passes a round that nothing goes back through."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


def towards(loss, delta):
    if "backward" not in sys.argv:
        return torch.autograd.grad(loss, delta)[0]
    # On the way to an image it stops at all weights.
    loss.backward()
    return delta.grad


def attack(x, y):
    delta = torch.zeros_like(x)
    for _ in range(4):
        delta.requires_grad_(True)
        delta = (delta + 0.01 * towards(F.cross_entropy(model(x + delta), y), delta).sign()).clamp(-0.1, 0.1).detach()
    return x + delta


blocks = [nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(8)]
model = nn.Sequential(*blocks, nn.Linear(2048, 10)).cuda().eval()
if "frozen" in sys.argv:
    model.requires_grad_(False)
images = torch.utils.data.TensorDataset(torch.randn(12288, 2048), torch.randint(10, (12288,)))
for x, y in torch.utils.data.DataLoader(images, 4096):
    x, y = x.cuda(), y.cuda()
    clean = model(x)
    right = (model(attack(x, y)).argmax(1) == y).sum()
