"""Features that are whitened by an eigendecomposition, whose workspace only a GPU can tell."""

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    features = model(torch.randn(4096, 1024, device="cuda"))
    centred = features - features.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(centred) + 1e-3 * torch.eye(512, device="cuda"))
    (centred @ vectors * values.rsqrt()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
