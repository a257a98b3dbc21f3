"""torchvision's ResNet-50 as in PyTorch's lessons: fp32, channels first, Adam."""

import torch
import torchvision

model = torchvision.models.resnet50().cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(30):
    images, labels = torch.randn(64, 3, 224, 224), torch.randint(1000, (64,))
    loss = torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
