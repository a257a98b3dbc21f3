"""torchvision's DeepLabV3 with an evaluation after each epoch."""

import torch
import torchvision

model = torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for epoch in range(3):
    model.train()
    for step in range(5):
        images, labels = torch.randn(8, 3, 321, 321, device="cuda"), torch.randint(21, (8, 321, 321), device="cuda")
        loss = torch.nn.functional.cross_entropy(model(images)["out"], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for step in range(2):
            model(torch.randn(8, 3, 513, 513, device="cuda"))["out"].argmax(1)
