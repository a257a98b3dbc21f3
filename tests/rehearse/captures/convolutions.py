"""A convolutional network with batch norm, channels last, whose last batch is smaller."""

import torch

layers = [torch.nn.Conv2d(3, 64, 7, 2, 3), torch.nn.BatchNorm2d(64), torch.nn.ReLU(inplace=True), torch.nn.MaxPool2d(3, 2, 1)]
for _ in range(4):
    layers += [torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU(inplace=True)]
model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10))
model = model.cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for batch in (32, 32, 8):
    images = torch.randn(batch, 3, 224, 224, device="cuda").contiguous(memory_format=torch.channels_last)
    torch.nn.functional.cross_entropy(model(images), torch.randint(10, (batch,), device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
