"""A language model whose logits live until the next step has made others."""

import torch
from torch import nn

VOCABULARY = 128256
model = nn.Sequential(nn.Embedding(VOCABULARY, 512), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, VOCABULARY, bias=False)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    tokens = torch.randint(VOCABULARY, (4, 1024), device="cuda")
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits.view(-1, VOCABULARY), tokens.view(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
