"""CLIP ViT-B/32 of transformers trained by contrast, TF32 allowed."""

import torch
from transformers import CLIPConfig, CLIPModel

torch.set_float32_matmul_precision("high")
model = CLIPModel(CLIPConfig()).cuda()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
for step in range(20):
    ids, images = torch.randint(49000, (256, 77), device="cuda"), torch.randn(256, 3, 224, 224, device="cuda")
    loss = model(input_ids=ids, pixel_values=images, return_loss=True).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
