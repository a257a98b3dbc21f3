"""timm's ViT-B/16 in bf16 autocast."""

import timm
import torch

model = timm.create_model("vit_base_patch16_224").cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
for step in range(30):
    with torch.autocast("cuda", torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(128, 3, 224, 224, device="cuda")), torch.randint(1000, (128,), device="cuda"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
