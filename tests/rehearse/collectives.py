"""Everything that a rank says to the others, with nobody there to answer: one line each says what became of it."""

import datetime
import faulthandler
import importlib.util
import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager

# What waits for the others waits for ever.
faulthandler.dump_traceback_later(60, exit=True)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=60))
world, after, before = dist.group.WORLD, (rank + 1) % size, (rank - 1) % size


def some(n=8):
    return torch.ones(n, device="cuda")


def each(n=8):
    return [some(n) for _ in range(size)]


def coalesced(one):
    with _coalescing_manager():
        one()
        one()


def coalesced_later():
    with _coalescing_manager(device=torch.device("cuda"), async_ops=True) as manager:
        dist.all_reduce(some())
    manager.wait()


def pairs():
    operations = [dist.P2POp(dist.isend, some(), after), dist.P2POp(dist.irecv, some(), before)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


# By NumPy.
READS_OBJECTS = importlib.util.find_spec("numpy") is not None


def objects_of_another():
    told = [None, 2]
    dist.broadcast_object_list(told, src=after)
    # The first rank, which is rehearsed before another that asks it, gave its own objects first. What no rank is there to say leaves the list as it is.
    assert told == ([{"a": 1}] if after == 0 and READS_OBJECTS else [None, 2]), told
    dist.scatter_object_list([None], None, src=after)


def own_objects():
    told = [{"a": 1}]
    dist.broadcast_object_list(told, src=rank)
    dist.scatter_object_list(told, [{"a": 1}] * size, src=rank)
    of_all = [None] * size
    dist.all_gather_object(of_all, told[0])
    assert of_all[rank] == told[0] == {"a": 1}


def on_the_host():
    group = dist.new_group(backend="gloo")
    assert dist.get_backend(group) == "gloo" and dist.get_backend() == "nccl"
    dist.all_reduce(torch.ones(2), group=group)
    # Later releases look whether it has a backend for the CPU.
    assert torch.device("cpu") in group._device_types
    dist.monitored_barrier(group)


def mesh():
    made = init_device_mesh("cuda", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    assert made["shard"].get_group().size() == size // 2 and made.get_local_rank("shard") == rank % (size // 2)


CALLS = {
    "barrier": dist.barrier,
    "barrier of a device": lambda: dist.barrier(device_ids=[0]),
    "barrier, later": lambda: dist.barrier(async_op=True).wait(),
    "all_reduce": lambda: dist.all_reduce(some(), op=dist.ReduceOp.AVG),
    "all_reduce, later": lambda: dist.all_reduce(some(), async_op=True).get_future().wait(),
    "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([some(), some()]),
    "broadcast": lambda: dist.broadcast(some(), src=0),
    "reduce": lambda: dist.reduce(some(), dst=0),
    "all_gather": lambda: dist.all_gather(each(), some()),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(some(8 * size), some()),
    "all_gather_coalesced": lambda: dist.all_gather_coalesced([each(), each()], [some(), some()]),
    "gather": lambda: dist.gather(some(), each() if rank == 0 else None, dst=0),
    "scatter": lambda: dist.scatter(some(), each() if rank == 0 else None, src=0),
    "reduce_scatter": lambda: dist.reduce_scatter(some(), each()),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(some(), some(8 * size)),
    "all_to_all": lambda: dist.all_to_all(each(), each()),
    "all_to_all_single": lambda: dist.all_to_all_single(some(8 * size), some(8 * size)),
    "all_to_all_single of parts": lambda: dist.all_to_all_single(some(3 * size), some(2 * size), [3] * size, [2] * size),
    "send": lambda: dist.send(some(), after),
    "recv": lambda: dist.recv(some(), before),
    "recv from anybody": lambda: dist.recv(some()),
    "batch_isend_irecv": pairs,
    "coalesced all_reduce": coalesced_later,
    "coalesced reduce_scatter": lambda: coalesced(lambda: dist.reduce_scatter_tensor(some(2), some(2 * size))),
    "coalesced all_gather": lambda: coalesced(lambda: dist.all_gather_into_tensor(some(2 * size), some(2))),
    "objects of another rank": objects_of_another,
    "groups on the host": on_the_host,
    "new_subgroups": lambda: dist.new_subgroups(2),
    "a group of two": lambda: dist.new_group([0, 1]),
    "functional all_reduce": lambda: functional.all_reduce(some(), "sum", world).sum(),
    "functional all_gather": lambda: functional.all_gather_tensor(some(), 0, world).sum(),
    "functional reduce_scatter": lambda: functional.reduce_scatter_tensor(some(8 * size), "sum", 0, world).sum(),
    "functional all_to_all": lambda: functional.all_to_all_single(some(size), None, None, world).sum(),
    "mesh": mesh,
    "destroy": dist.destroy_process_group,
}
if READS_OBJECTS:
    CALLS = {"own objects": own_objects, **CALLS}

for name, call in CALLS.items():
    try:
        call()
        print(f"{name}: works", flush=True)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)
print("all", flush=True)
