
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4096, 8192), nn.GELU(), nn.Linear(8192, 8191)).cuda().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4096, 4096, device='cuda', dtype=torch.bfloat16)
while True:
    loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
