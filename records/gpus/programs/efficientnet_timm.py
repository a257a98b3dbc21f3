"""timm's efficientnet_b0, channels last, bf16 autocast: depthwise convolutions."""

import timm
import torch

model = timm.create_model("efficientnet_b0").cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(30):
    images = torch.randn(128, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    with torch.autocast("cuda", torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(images), torch.randint(1000, (128,), device="cuda"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
