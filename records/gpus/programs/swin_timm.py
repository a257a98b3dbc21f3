"""timm's Swin-T in bf16 autocast, with a moving average of its weights."""

import timm
import torch
from timm.utils import ModelEmaV3

model = timm.create_model("swin_tiny_patch4_window7_224", drop_path_rate=0.2).cuda()
average = ModelEmaV3(model, decay=0.9998)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
for step in range(20):
    images, labels = torch.randn(128, 3, 224, 224, device="cuda"), torch.randint(1000, (128,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update(model)
