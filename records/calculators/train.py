"""GPT-2 124M of transformers from its configuration, trained in fp32 with AdamW on 8 texts of 1,024 tokens."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config()).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(10):
    tokens = torch.randint(50257, (8, 1024), device="cuda")
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
