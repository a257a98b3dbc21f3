"""An evaluation that forgot no_grad: a ConvNeXt-B of torchvision in fp32, whose predictions are kept on the GPU."""

import torch
import torchvision

model = torchvision.models.convnext_base().eval().cuda()
predictions = []
for batch in range(10):
    images = torch.randn(32, 3, 224, 224, device="cuda")
    predictions.append(model(images).softmax(1).max(1).values.detach())
print(torch.cat(predictions).mean().item())
