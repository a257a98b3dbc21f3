
import torch
from torch import nn
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100):
    x = torch.randn(256, 1024).cuda()
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print('step', step, 'loss', loss.item(), flush=True)
    if step == BREAK: STOP
print('peak', torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
