"""Two ranks of torchrun: one saves, the other waits at the barrier and loads; objects are those of the other."""
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
of_first = dist.new_group([0])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    model(torch.randn(8, 256, device="cuda")).sum().backward()
    if rank == 0:
        time.sleep(0.5)
        torch.save(model.module.state_dict(), f"{step}.pt")
    dist.barrier()
    model.module.load_state_dict(torch.load(f"{step}.pt", map_location="cuda"))
    told, of_all = [f"of {rank}"], [None] * size
    dist.broadcast_object_list(told, src=1)
    dist.all_gather_object(of_all, {"rank": rank})
    # Of a group that one of them is not in.
    dist.all_gather_object([None], rank, group=of_first)
    assert told == ["of 1"] and of_all == [{"rank": each} for each in range(size)], (told, of_all)
    print(f"rank {rank} met", flush=True)
    optimizer.step()
    optimizer.zero_grad()
