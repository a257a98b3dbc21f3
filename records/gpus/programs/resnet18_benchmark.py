"""ResNet-18 with cudnn.benchmark, two sizes of images in turn."""

import torch
import torchvision

torch.backends.cudnn.benchmark = True
model = torchvision.models.resnet18().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    side = 224 if step % 2 else 192
    loss = torch.nn.functional.cross_entropy(model(torch.randn(128, 3, side, side, device="cuda")), torch.randint(1000, (128,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
