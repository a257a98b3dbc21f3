"""DETR-like detection: a ResNet-50 of torchvision with frozen batch norm and a transformer on its features, fp32."""

import torch
import torchvision

backbone = torchvision.models.resnet50(norm_layer=torchvision.ops.FrozenBatchNorm2d)


class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(*list(backbone.children())[:-2])
        self.narrow = torch.nn.Conv2d(2048, 256, 1)
        self.transformer = torch.nn.Transformer(256, 8, 6, 6, 2048, batch_first=True)
        self.queries = torch.nn.Parameter(torch.randn(100, 256))
        self.label, self.box = torch.nn.Linear(256, 92), torch.nn.Linear(256, 4)

    def forward(self, images):
        features = self.narrow(self.body(images)).flatten(2).transpose(1, 2)
        out = self.transformer(features, self.queries.expand(len(images), -1, -1))
        return self.label(out), self.box(out).sigmoid()


model = Detector().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(20):
    labels, boxes = model(torch.randn(4, 3, 800, 1066, device="cuda"))
    loss = torch.nn.functional.cross_entropy(labels.flatten(0, 1), torch.randint(92, (400,), device="cuda")) + boxes.sub(0.5).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
