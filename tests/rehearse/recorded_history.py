"""Records the allocator's history as people do on a GPU, and says what PyTorch's own meters show."""

import sys

import torch

before = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
freed = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
torch.cuda.memory._record_memory_history(max_entries=100000)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)] * 2).cuda()
optimizer, kept = torch.optim.AdamW(model.parameters()), []
del freed
for i in range(6):
    model(torch.randn(4096 + 512 * i, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(torch.zeros(5 << 20, device="cuda"))
if sys.argv[1:]:
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
torch.cuda.memory._dump_snapshot("snapshot.pickle")
print("meters", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
