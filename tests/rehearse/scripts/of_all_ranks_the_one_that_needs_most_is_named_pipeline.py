
import torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
dist.init_process_group('nccl')
rank, size = dist.get_rank(), dist.get_world_size()
stage = PipelineStage(torch.nn.Linear(1024, 1024).cuda(), rank, size, torch.device('cuda'))
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.SGD(stage.submod.parameters(), 0.1)
data = torch.randn(4, 1024, device='cuda')
for _ in range(2):
    schedule.step(*([data] if rank == 0 else []), **({'target': data} if rank == size - 1 else {}))
    optimizer.step()
