"""torchvision's ResNet-50, channels last, fp16 with a GradScaler."""

import torch
import torchvision

model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scaler = torch.amp.GradScaler()
for step in range(30):
    images = torch.randn(128, 3, 224, 224, device="cuda").contiguous(memory_format=torch.channels_last)
    with torch.autocast("cuda", torch.float16):
        loss = torch.nn.functional.cross_entropy(model(images), torch.randint(1000, (128,), device="cuda"))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
