
import torch, torch.distributed as dist
dist.init_process_group('nccl')
rank = dist.get_rank()
model = torch.nn.Linear(1024, 32768 if rank == dist.get_world_size() - 1 else 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.randn(8, 1024, device='cuda')).sum().backward()
    optimizer.step()
