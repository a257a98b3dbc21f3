"""Which pixels decide a class: gradients of images, and by the way of all weights."""

import torch
from torch import nn

layers = [layer for before, after in [(3, 64), (64, 128), (128, 256)] for layer in (nn.Conv2d(before, after, 3, 2, 1), nn.ReLU())]
model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 28 * 28, 1000)).cuda().eval()
for batch in range(3):
    images = torch.randn(64, 3, 224, 224, device="cuda", requires_grad=True)
    model(images).amax(-1).sum().backward()
    important = images.grad.abs().amax(1)
