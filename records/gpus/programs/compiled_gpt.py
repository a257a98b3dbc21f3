"""A compiled Transformer in bf16 autocast."""

import torch
from torch import nn

layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
model = nn.Sequential(nn.Embedding(32000, 768), nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), nn.Linear(768, 32000)).cuda()
step_model = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(30):
    ids = torch.randint(32000, (8, 512), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = nn.functional.cross_entropy(step_model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
