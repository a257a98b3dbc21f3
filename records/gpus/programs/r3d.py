"""torchvision's R3D-18: convolutions of three dimensions."""

import torch
import torchvision

model = torchvision.models.video.r3d_18().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(20):
    loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 3, 16, 112, 112, device="cuda")), torch.randint(400, (8,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
