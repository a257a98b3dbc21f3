"""torchvision's Faster R-CNN, whose proposals and boxes are as many as the values give."""

import torch
import torchvision

model = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=91).cuda()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-4, momentum=0.9)
for step in range(12):
    images = [torch.rand(3, 600, 800, device="cuda") for _ in range(4)]
    corners = torch.rand(4, 7, 2, device="cuda") * 400
    targets = [{"boxes": torch.cat([corner, corner + 100], 1), "labels": torch.randint(1, 91, (7,), device="cuda")} for corner in corners]
    loss = sum(model(images, targets).values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
