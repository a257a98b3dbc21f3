"""Two ranks of torchrun: one saves, the other waits at the barrier and loads; objects and whole numbers are those of the other."""
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
    dist.broadcast_object_list(object_list=told, src=1)
    dist.all_gather_object(object_list=of_all, obj={"rank": rank})
    dist.scatter_object_list(scatter_object_output_list=(own := [None]), scatter_object_input_list=["a", "b"] if rank else None, src=1)
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(obj=own[0], object_gather_list=gathered, dst=0)
    assert own == ["ab"[rank]] and gathered in (["a", "b"], None), (own, gathered)
    # Of a group that one of them is not in.
    dist.all_gather_object([None], rank, group=of_first)
    assert told == ["of 1"] and of_all == [{"rank": each} for each in range(size)], (told, of_all)
    print(f"rank {rank} met", flush=True)

    # As DeepSpeed compares the lengths of lists with those of rank 0, and samplers agree on a number of batches.
    own = torch.tensor([10 + rank, 20, -rank], dtype=torch.int32, device="cuda")
    for operation, result in [("SUM", [21, 40, -1]), ("MIN", [10, 20, -1]), ("MAX", [11, 20, 0])]:
        dist.all_reduce(reduced := own.clone(), op=getattr(dist.ReduceOp, operation))
        assert reduced.tolist() == result, (operation, reduced.tolist())
    dist.broadcast(of_other := own[1:].clone(), src=1)
    assert of_other.tolist() == [20, -1], of_other.tolist()
    dist.all_gather(parts := [torch.zeros_like(own) for _ in range(size)], own)
    dist.all_gather_into_tensor(whole := torch.zeros(3 * size, dtype=torch.int32, device="cuda"), own)
    assert torch.cat(parts).tolist() == whole.tolist() == [10, 20, 0, 11, 20, -1], (parts, whole.tolist())
    dist.broadcast(on_host := torch.tensor(rank), src=1)
    # Numbers that nobody computed stay each rank's own, and nobody waits for them for ever.
    dist.broadcast(torch.randn(8, device="cuda").argmax(), src=0)
    assert on_host.item() == 1 and model.module.weight.isfinite().all()
    optimizer.step()
    optimizer.zero_grad()
