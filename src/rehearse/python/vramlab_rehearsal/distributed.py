"""Jobs of many processes on a machine that has one: collectives move nothing, and allocate what they are given.

A process of `--world-size N --rank R`, or one that torchrun started, gets a process group of its rank and size whose collectives end at once
and leave what they were given. A reduction gives back its input, of one number the sum of as many, a gather its input for each rank: what the
ranks would tell each other is what this one says. Ranks that are all there, as torchrun starts them, wait for each other at barriers, and give each other objects and the
values of small tensors of whole numbers, by which programs agree on sizes.
"""

import functools
import os
import sys

from . import imports, meetings
from .guard import guarded, instead
from .notes import note
from .session import settings


def follow(torch):
    if not torch.distributed.is_available():
        return
    distributed = torch.distributed
    if not settings.measures:
        _move_ports(distributed.TCPStore)
    init = distributed.init_process_group

    @functools.wraps(init)
    def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, *arguments, **more):
        if settings.world_size is None and not _uses_cuda(torch, backend):
            return init(backend, init_method, timeout, world_size, rank, store, *arguments, **more)
        if not hasattr(distributed.Backend, meetings.BACKEND.upper()):
            from . import collectives, objects

            collectives.register()
            _alone_in_all_groups(distributed)
            objects.follow()
        size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        rank = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
        # Of PyTorch's fake group the others are not there, and its store answers nobody.
        is_fake = str(backend) == "fake"
        if size > 1 and settings.world_size is None and not is_fake:
            store = meetings.met(distributed, init_method, size, rank, store, timeout)
        moved = "nothing but objects and small tensors of whole numbers" if meetings.are_there() else "nothing"
        note(rank=rank, of=size)
        local = int(os.environ.get("LOCAL_WORLD_SIZE") or size)
        machines = f" ({-(-size // local)} machines of {local} GPUs; --nodes and --gpus say otherwise)" if settings.world_size is not None and local < size else ""
        note(note=f"rank {rank} of {size}{machines}: collectives move {moved} and give back what they were given")
        init(backend=meetings.BACKEND, world_size=size, rank=rank, store=store if meetings.are_there() else distributed.HashStore())
        distributed.group.WORLD.types = [torch.device(kind) for kind in ("cpu", "cuda")[not _has_cpu(backend) :]]
        if is_fake:
            distributed.group.WORLD.asked = "fake"

    _replace(init, init_process_group)
    # Scripts ask for the backend that they wanted.
    _replace(distributed.get_backend, _renamed(distributed.get_backend))
    imports.when_imported("torch.distributed.pipelining.stage", _stages_alone)
    for name, of in WRAPPERS:
        imports.when_imported(name, functools.partial(_count_replicas_of_class, of))
    imports.when_imported("torch.distributed.fsdp._fully_shard._fully_shard", _count_replicas_of_function)


def _move_ports(original):
    """Launchers and scripts name one, such as 29500: a rehearsal that runs beside another, or beside a training, has its own. What the system chose stays."""

    class TCPStore(original):
        def __init__(self, host_name, port, *arguments, **more):
            super().__init__(host_name, settings.ports + port % 16 if 0 < port < 32768 else port, *arguments, **more)

    _replace(original, TCPStore)


def _has_cpu(backend):
    """Scripts ask whether there is a backend for the CPU: to save checkpoints beside training, or before a barrier that tells who is missing."""
    return any(name in str(backend) for name in ("None", "cpu", "gloo", "mpi"))


_replicas = 0

# What has ranks with batches of their own agree: modules and their classes.
WRAPPERS = (
    ("torch.nn.parallel.distributed", "DistributedDataParallel"),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"),
    ("megatron.core.distributed.distributed_data_parallel", "DistributedDataParallel"),
    ("deepspeed.runtime.engine", "DeepSpeedEngine"),
)


def _tell_replicas(count):
    """Of a job, ranks that train on batches of their own: what goes through the job is so many times what goes through one."""
    global _replicas
    if count > _replicas:
        _replicas = count
        note(replicas=count)


@guarded("how many ranks have a batch of their own")
def _tell_replicas_of(wrapper):
    # As PyTorch's, Megatron's and DeepSpeed's name it.
    names = ("process_group", "dp_cp_group", "data_parallel_group")
    group = next((found for name in names if hasattr(found := getattr(wrapper, name, None), "size")), None)
    between = getattr(wrapper, "_inter_node_pg", None)
    if group is not None:
        _tell_replicas(group.size() * (between.size() if between is not None else 1))


def _count_replicas_of_class(name, module):
    @instead("__init__", getattr(module, name))
    def init(self, *arguments, **more):
        init.__wrapped__(self, *arguments, **more)
        _tell_replicas_of(self)


def _count_replicas_of_function(module):
    @instead("fully_shard", module)
    def fully_shard(*arguments, mesh=None, **more):
        sharded = fully_shard.__wrapped__(*arguments, mesh=mesh, **more)
        _tell_replicas(mesh.size() if mesh is not None else module.torch.distributed.get_world_size())
        return sharded


def _uses_cuda(torch, backend):
    return torch.cuda.is_available() and (backend is None or any(name in str(backend) for name in ("nccl", "cuda", "fake")))


def _replace(was, by):
    """In each module that has the function by its name already: torch.distributed.device_mesh makes the default group with its own."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(was.__name__) is was:
            setattr(module, was.__name__, by)


def _renamed(get_backend):
    @functools.wraps(get_backend)
    def renamed(group=None):
        found = get_backend(group)
        return getattr(group, "asked", "nccl") if found == meetings.BACKEND else found

    return renamed


def _alone_in_all_groups(distributed):
    """Groups that a script makes later, of whatever backend, are of this rank alone, too: a real one would wait for the others for ever."""
    c10d = distributed.distributed_c10d

    @instead("_new_process_group_helper", c10d)
    def make(size, rank, ranks, backend, *arguments, **more):
        if not distributed.is_initialized() or not meetings.is_ours():
            return make.__wrapped__(size, rank, ranks, backend, *arguments, **more)
        # Options are for the backend that was asked for.
        made = make.__wrapped__(size, rank, ranks, meetings.BACKEND, *arguments, **{**more, "backend_options": None})
        if str(backend) != meetings.BACKEND and not isinstance(made[0], (int, type(None))):
            made[0].asked = str(backend)
            if _has_cpu(backend):
                made[0].types = list(map(c10d.torch.device, ("cpu", "cuda")))
        return made


def _stages_alone(pipelining):
    """What stages tell each other in newer versions of PyTorch: the shapes of gradients, which are those of what they are gradients of, and in some
    of them a vote whether they know their shapes, in which ranks that are not there vote as this one does.
    """
    stage = pipelining.PipelineStage

    def alone(group):
        return not meetings.are_there() and meetings.is_ours(group)

    @instead("_warmup_forward_vote", stage)
    def vote(self, has_backward, received_acc=None):
        if not alone(self.group):
            return vote.__wrapped__(self, has_backward, received_acc)
        known = not pipelining.InferenceMode.needs_dynamic(self._user_meta, has_backward)
        mine = pipelining.torch.tensor([int(known)], dtype=pipelining.torch.int32, device=self.device)
        return mine if received_acc is None else received_acc * mine

    @instead("_warmup_backward_result", stage)
    def result(self, received_result=None):
        return received_result if alone(self.group) else result.__wrapped__(self, received_result)

    @instead("_recv_meta", stage)
    def receive(self, source):
        if alone(self.group) and source > self.stage_index:
            return pipelining._StageBackwardMeta(backward_metas=pipelining._derive_grad_metas(self._stage_meta.outputs))
        return receive.__wrapped__(self, source)
