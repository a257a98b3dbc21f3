
import os, sys, torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(256, 1024)
        self.down = nn.Linear(1024, 256)
    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)).square())  # the widest line

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.ModuleList(Block() for _ in range(2))
        self.register_buffer('seen', torch.zeros((), dtype=torch.long))
    def forward(self, x):
        self.seen += x.size(0)
        for block in self.h:
            x = block(x)
        return x.square().mean()

model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
compiled = torch.compile(model, fullgraph=True)
step = torch.compile(optimizer.step)
for _ in range(3):
    loss = compiled(torch.randn(64, 128, 256, device='cuda'))
    loss.backward()
    step()
    optimizer.zero_grad()
model.seen.item()
print('peak', torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
from torch._dynamo.utils import counters
print('graphs', counters['stats']['unique_graphs'], 'kept', counters['aot_autograd']['autograd_cache_hit'])
