
import os, torch, torch.distributed as dist
from torch import nn
if WRAP == 'ddp':
    dist.init_process_group('nccl')
else:
    # It makes the default group itself.
    dist.device_mesh.init_device_mesh('cuda', (4,))
assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (1, 4, 'nccl')
model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024)).cuda()
if WRAP == 'ddp':
    model = nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.fsdp import fully_shard
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.randn(8, 1024, device='cuda')).sum().backward()
    optimizer.step()
