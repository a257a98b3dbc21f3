
import torch
from torch import nn
model = nn.Sequential(*(nn.Linear(8192, 8192, bias=False, device='cuda') for _ in range(4))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(1, 8192, device='cuda')).sum().backward()
optimizer.step()
