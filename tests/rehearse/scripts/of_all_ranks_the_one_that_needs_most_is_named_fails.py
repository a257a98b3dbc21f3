
import torch, torch.distributed as dist
dist.init_process_group('nccl')
torch.ones(1 << 20 if dist.get_rank() else 1 << 24, device='cuda')
assert dist.get_rank() == 0
