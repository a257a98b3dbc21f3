"""timm's ViT-L/16 over a validation set in bf16 autocast, accuracy on the GPU."""

import timm
import torch

model = timm.create_model("vit_large_patch16_224").eval().cuda()
right = torch.zeros((), device="cuda")
with torch.no_grad():
    for batch in range(12):
        images = torch.randn(256, 3, 224, 224).cuda(non_blocking=True)
        labels = torch.randint(1000, (256,), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            scores = model(images)
        right += (scores.argmax(1) == labels).sum()
print(right.item())
