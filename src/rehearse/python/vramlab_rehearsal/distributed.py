"""Jobs of many processes on a machine that has one: collectives move nothing, and allocate what they are given.

A process of `--world-size N --rank R`, or one that torchrun started, gets a process group of its rank and size whose collectives end at once
and leave what they were given. A reduction gives back its input, of one number the sum of as many, a gather its input for each rank: what the
ranks would tell each other is what this one says. Ranks that are all there, as torchrun starts them, wait for each other at barriers, and give each other objects and the
values of small tensors of whole numbers, by which programs agree on sizes.
"""

import atexit
import contextlib
import ctypes
import functools
import os
import pickle
import sys
import time
import zlib

from . import device, imports, reach
from .guard import guarded, instead
from .notes import note
from .session import SESSION, settings, simulated


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
        _register(torch)
        size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        rank = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
        # Of PyTorch's fake group the others are not there, and its store answers nobody.
        is_fake = str(backend) == "fake"
        if size > 1 and settings.world_size is None and not is_fake:
            store = _met(distributed, init_method, size, rank, store, timeout)
        moved = "nothing but objects and small tensors of whole numbers" if _others else "nothing"
        note(rank=rank, of=size)
        local = int(os.environ.get("LOCAL_WORLD_SIZE") or size)
        machines = f" ({-(-size // local)} machines of {local} GPUs; --nodes and --gpus say otherwise)" if settings.world_size is not None and local < size else ""
        note(note=f"rank {rank} of {size}{machines}: collectives move {moved} and give back what they were given")
        init(backend=BACKEND, world_size=size, rank=rank, store=store if _others else distributed.HashStore())
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


# Whether what a group connects is taken of the card, as engines size themselves by what that leaves; for others the answer names a range.
_holds_buffers = False


def holds_buffers():
    global _holds_buffers
    _holds_buffers = True


@guarded("NCCL's buffers of a rank")
def _take_buffers():
    """What a group's first reduction takes: in the middle of the range that src/rehearse/src/answer/nccl.rs has for it."""
    status, address = ctypes.c_int(), ctypes.c_void_p()
    simulated["libnvidia-ml.so.1"].nvmlDeviceGetP2PStatus(None, None, 2, ctypes.byref(status))
    # Channels, each with a connection of 12 MiB: over NVLink 24 of a ring, and as many of a tree or none.
    channels = 36 if status.value == 0 else 3
    # It is NCCL's, as the address of the caller says.
    caller = ctypes.cast(ctypes.CDLL("libnccl.so.2").ncclGetVersion, ctypes.c_void_p)
    simulated["libnvidia-ml.so.1"].vramlab_dry_allocate(ctypes.byref(address), ctypes.c_size_t(channels * 12 << 20), caller)


BACKEND = "vramlab"
# By their numbers in src/rehearse/src/capture/work.rs.
MOVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "receive")
POINT_TO_POINT = ("send", "receive")
# How many sends and receives of those that go together there have been; none where each goes alone.
_together = [None]
# Of ranks that are all there, as torchrun starts them: the store in which they meet.
_others = None


def _met(distributed, init_method, size, rank, store, timeout):
    """The store that a launcher has for its ranks, or that the script gives; None where they do not meet."""
    global _others
    try:
        if store is None:
            store, _, _ = next(distributed.rendezvous(init_method or "env://", rank, size, **({"timeout": timeout} if timeout else {})))
    except Exception as error:
        note(note=f"the ranks did not meet ({error}): none waits for another")
        return None
    _others = distributed.PrefixStore("vramlab", store)
    # Who waits for a rank that has ended waits no more.
    atexit.register(_leave, _others)
    return store


@guarded("the end of a rank")
def _leave(store):
    # Its keeper may have ended.
    with contextlib.suppress(RuntimeError):
        store.add("ended", 1)


_meetings = {}


def _wait_for_all(name, size):
    """Until all ranks of the group have come here as often as this one, or one has ended."""
    if _others is None:
        return
    key = f"{name}/{_turn(name)}"
    with contextlib.suppress(RuntimeError):
        _others.add(key, 1)
        _wait_until(lambda: _others.add(key, 0) >= size)


def _turn(name):
    """How often this rank has come here."""
    _meetings[name] = _meetings.get(name, 0) + 1
    return _meetings[name]


def _wait_until(is_there):
    """False where a rank has ended before."""
    pause = 0.001
    while not is_there():
        if _others.add("ended", 0):
            # What it gave before it ended came after the look above.
            return is_there()
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
    return True


def _sent(name, rank, mine, theirs, turn=None):
    """Objects by the store, which are real: gives `mine` to the others, and back what the ranks `theirs` gave; nothing of one that has ended."""
    place, found = f"{name}/{turn or _turn(name)}", {}
    with contextlib.suppress(RuntimeError):
        if mine is not None:
            _others.set(f"{place}/{rank}", pickle.dumps(mine[0]))
        for other in theirs:
            if not _wait_until(lambda: _others.check([f"{place}/{other}"])):
                break
            found[other] = pickle.loads(_others.get(f"{place}/{other}"))
    return found


# What this rank sent another, by the number of the sending.
_own = {}


def _keep(what, source, target, objects):
    """For ranks that are rehearsed after this one, and for what it asks back itself."""
    turn = _turn((what, source, target))
    _own[what, source, target, turn] = objects
    if settings.sent is not None:
        with open(os.path.join(settings.sent, f"{what}.{turn}.{source}.{target}"), "wb") as file:
            pickle.dump(objects, file)


def _kept(what, source, target):
    """What `source` sent; where it was not rehearsed, what the nearest rank that was sent one as far away. If none has, what this rank sent `source` as
    its own of that number: a gradient has the shape of what it is a gradient of. None if that is nothing, too. A rank that is rehearsed alone asks for the
    first one's rehearsal, and begins anew."""
    from torch.distributed import get_world_size

    turn = _turn((what, source, target))
    if settings.sent is None and settings.rank and source is not None:
        open(os.path.join(SESSION, "wanted"), "w").close()
        os._exit(0)
    # A receiver that names no source cannot be told whose it would get.
    names = [] if settings.sent is None or source is None else os.listdir(settings.sent)
    pairs = [tuple(map(int, name.split(".")[2:])) for name in names if name.startswith(f"{what}.{turn}.")]
    # On a ring, as stages that are interleaved lie: from the last to the first is one on.
    pairs = [(sender, to) for sender, to in pairs if (to - sender - target + source) % get_world_size() == 0]
    if not pairs:
        own = _own.get((what, target, source, turn)) if source != target else None
        if own is not None:
            note(note=f"rank {source} was not rehearsed before: what it sends rank {target} is taken to be what rank {target} sent it")
        return own
    sender, to = min(pairs, key=lambda pair: (pair != (source, target), abs(pair[0] - source)))
    if (sender, to) != (source, target):
        whom = "its group" if source == target else f"rank {target}"
        theirs = "its own" if source == target else f"rank {to}"
        note(note=f"rank {source} was not rehearsed before: what it sends {whom} is taken to be what rank {sender} sent {theirs}")
    with open(os.path.join(settings.sent, f"{what}.{turn}.{sender}.{to}"), "rb") as file:
        return pickle.load(file)


def _told(what, members, root, mine):
    """What the root of a group gives all of it, `mine` being a function that says it there; groups of as many ranks as far apart are of one kind."""
    from torch.distributed import get_rank

    if len(members) < 2:
        return None
    kind, source = f"{what}-{len(members)}-{members[1] - members[0]}-{root}", members[root]
    if get_rank() != source:
        return _kept(kind, source, source)
    _keep(kind, source, source, mine() if settings.sent is not None else None)


# More elements than this are data, on which no program hangs its way.
MOST_VALUES = 1 << 14


def _is_of_a_module():
    """Whether a wrapper such as DDP gives all ranks a module's buffers, such as how many batches a norm has seen, which nobody reads: C++ does that by
    itself, and a script calls a function of PyTorch's."""
    caller = sys._getframe(3)
    return not caller.f_code.co_filename.endswith("distributed_c10d.py")


@guarded("values that ranks give each other")
def _values(tensor):
    """A list of a tensor's whole numbers; None where there are too many, or where they are not known."""
    if tensor.numel() > MOST_VALUES or str(tensor.layout) != "torch.strided" or tensor.device.type not in ("cpu", "cuda"):
        return None
    known = tensor if tensor.device.type == "cpu" else device.values(tensor)
    return None if known is None else known.tolist()


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
        return getattr(group, "asked", "nccl") if found == BACKEND else found

    return renamed


def _is_ours(group=None):
    from torch import distributed

    # PyTorch says so to who is no member.
    return group is not distributed.GroupMember.NON_GROUP_MEMBER and distributed.get_backend.__wrapped__(group) == BACKEND


def _alone_in_all_groups(distributed):
    """Groups that a script makes later, of whatever backend, are of this rank alone, too: a real one would wait for the others for ever."""
    c10d = distributed.distributed_c10d

    @instead("_new_process_group_helper", c10d)
    def make(size, rank, ranks, backend, *arguments, **more):
        if not distributed.is_initialized() or not _is_ours():
            return make.__wrapped__(size, rank, ranks, backend, *arguments, **more)
        # Options are for the backend that was asked for.
        made = make.__wrapped__(size, rank, ranks, BACKEND, *arguments, **{**more, "backend_options": None})
        if str(backend) != BACKEND and not isinstance(made[0], (int, type(None))):
            made[0].asked = str(backend)
            if _has_cpu(backend):
                made[0].types = list(map(c10d.torch.device, ("cpu", "cuda")))
        return made

    def ranks_of(group):
        # A script may have counted them with NumPy.
        return list(map(int, distributed.get_process_group_ranks(group or distributed.group.WORLD)))

    def among(group, rank, group_rank):
        return rank if group_rank is None else ranks_of(group)[group_rank]

    def exchanged(group, mine, theirs):
        return _sent(f"objects{ranks_of(group)}", distributed.get_rank(), mine, theirs)

    def where_given(**places):
        return {name: place for name, place in places.items() if place is not None}

    def told(what, group, source, mine):
        members = ranks_of(group)
        return _told(what, members, members.index(source), mine)

    # Objects of another rank are not there to be read where this one is alone and none ran before; the list stays as it is.
    @instead("broadcast_object_list", distributed, c10d)
    def broadcast(object_list, src=None, group=None, *arguments, group_src=None, **more):
        if not _is_ours(group):
            return broadcast.__wrapped__(object_list, src, group, *arguments, **more, **where_given(group_src=group_src))
        source, rank = among(group, src, group_src) or 0, distributed.get_rank()
        if _others is not None:
            given = exchanged(group, (list(object_list),) if rank == source else None, [source])
            object_list[:] = given.get(source, object_list)
        else:
            object_list[:] = told("objects", group, source, lambda: list(object_list)) or object_list

    @instead("scatter_object_list", distributed, c10d)
    def scatter(scatter_object_output_list, scatter_object_input_list=None, src=None, group=None, group_src=None):
        if not _is_ours(group):
            return scatter.__wrapped__(scatter_object_output_list, scatter_object_input_list, src, group, **where_given(group_src=group_src))
        source, rank = among(group, src, group_src) or 0, distributed.get_rank()
        if _others is not None:
            given = exchanged(group, (list(scatter_object_input_list),) if rank == source else None, [source]).get(source)
        else:
            given = told("scattered", group, source, lambda: list(scatter_object_input_list))
            given = list(scatter_object_input_list) if rank == source else given
        if given:
            scatter_object_output_list[0] = given[distributed.get_rank(group)]

    @instead("all_gather_object", distributed, c10d)
    def gather_all(object_list, obj, group=None):
        if _others is None or not _is_ours(group):
            return gather_all.__wrapped__(object_list, obj, group)
        given = exchanged(group, (obj,), ranks_of(group))
        object_list[:] = [given.get(rank, obj) for rank in ranks_of(group)]

    @instead("gather_object", distributed, c10d)
    def gather(obj, object_gather_list=None, dst=None, group=None, group_dst=None):
        if _others is None or not _is_ours(group):
            return gather.__wrapped__(obj, object_gather_list, dst, group, **where_given(group_dst=group_dst))
        is_target = distributed.get_rank() == (among(group, dst, group_dst) or 0)
        given = exchanged(group, (obj,), ranks_of(group) if is_target else [])
        if is_target:
            object_gather_list[:] = [given.get(other, obj) for other in ranks_of(group)]

    @instead("send_object_list", distributed, c10d)
    def send(object_list, dst=None, group=None, device=None, group_dst=None, **more):
        if not _is_ours(group):
            return send.__wrapped__(object_list, dst, group, device, **where_given(group_dst=group_dst), **more)
        rank, target = distributed.get_rank(), among(group, dst, group_dst)
        if _others is not None:
            _sent(f"{rank} to {target}", rank, (list(object_list),), [])
        else:
            _keep("objects", rank, target, list(object_list))

    @instead("batch_isend_irecv", distributed, c10d)
    def together(p2p_op_list):
        _together[0] = 0
        try:
            return together.__wrapped__(p2p_op_list)
        finally:
            _together[0] = None

    @instead("recv_object_list", distributed, c10d)
    def receive(object_list, src=None, group=None, device=None, group_src=None, **more):
        if not _is_ours(group):
            return receive.__wrapped__(object_list, src, group, device, **where_given(group_src=group_src), **more)
        rank = distributed.get_rank()
        source = among(group, src, group_src)
        given = _sent(f"{source} to {rank}", rank, None, [source]).get(source) if _others is not None and source is not None else _kept("objects", source, rank)
        if given is None:
            raise RuntimeError(
                f"vramlab rehearse: rank {rank} waits for objects of rank {source}, which is not there. Rehearse all ranks, with --rank all or "
                "torchrun; or have the script need none: a PipelineStage takes its shapes from input_args and output_args"
            )
        object_list[:] = given
        return source


def _stages_alone(pipelining):
    """What stages tell each other in newer versions of PyTorch: the shapes of gradients, which are those of what they are gradients of, and in some
    of them a vote whether they know their shapes, in which ranks that are not there vote as this one does.
    """
    stage = pipelining.PipelineStage

    def alone(group):
        return _others is None and _is_ours(group)

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


def _register(torch):
    import torch.distributed as distributed
    from torch._C._distributed_c10d import _create_work_from_future

    if hasattr(distributed.Backend, BACKEND.upper()):
        return

    whole = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    kinds = distributed.ReduceOp
    reductions = [(kinds.SUM, torch.sum), (kinds.PRODUCT, torch.prod), (kinds.MIN, torch.amin), (kinds.MAX, torch.amax)]

    def is_alone(tensor):
        """Whether it has whole numbers that other ranks may have told, or want to be told, in a rehearsal of their own."""
        return _others is None and settings.rank is not None and tensor.dtype in whole and tensor.numel() <= MOST_VALUES

    def fill(tensors, values):
        """Gives tensors of whole numbers the values that another rank had in its own, as far as those are known."""
        for tensor, each in zip(tensors, values):
            if each is not None and tensor.dtype in whole and torch.tensor(each).numel() == tensor.numel():
                tensor.copy_(torch.tensor(each).reshape(tensor.shape))

    class Moved(distributed.Work):
        """What was moved, or will be when somebody waits for it; on a card on a stream of its own, as NCCL does. Of a receiver also from whom, as one
        that names none wants to know."""

        def __init__(self, value, stream=None, sender=None, take=bool):
            super().__init__()
            self._value, self._stream, self._sender, self._take = value, stream, sender, take
            self._event = stream.record_event() if stream is not None else None

        def wait(self, *_):
            take, self._take = self._take, bool
            take()
            if self._event is not None:
                torch.cuda.current_stream(self._stream.device).wait_event(self._event)
            return True

        # Without who sent it, as PyTorch's own.
        synchronize = block_current_stream = wait

        def is_completed(self):
            return True

        is_success = is_completed

        def exception(self):
            return None

        def result(self):
            return self._value

        def get_future(self):
            with torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext():
                future = torch.futures.Future(devices=[self._stream.device] if self._stream is not None else None)
                future.set_result(self._value)
            return future

        def _source_rank(self):
            return self._sender

    # A work of Python that C++ waits for has to be kept alive, which PyTorch does by itself from here on at least.
    keeps_works = torch.__version__ >= (2, 11)

    def done(value, stream=None):
        """What has been moved, of which nobody asks who sent it. Of an older PyTorch the card waits for it at once."""
        if keeps_works:
            return Moved(value, stream)
        if stream is not None:
            torch.cuda.current_stream(stream.device).wait_stream(stream)
        future = torch.futures.Future()
        future.set_result(value)
        return _create_work_from_future(future)

    def moves(what, of):
        """A method that has ranks move something: `of` its arguments, the tensors that are moved, of which the first says where, and bytes of the whole
        for each of them. What it does meanwhile stands for that, and is no work of the card's."""

        def of_method(method):
            @functools.wraps(method)
            def moved(self, *arguments):
                tensors, size = of(*arguments)
                tensors = [tensor for tensor in tensors if tensor.is_cuda]
                peer = arguments[1] if what in POINT_TO_POINT else -1
                stream = self._begins(tensors[0].device, peer) if tensors and self._size > 1 else None
                with wire():
                    result = method(self, *arguments)
                if stream is not None:
                    self._launches(what, sum(map(bytes_of, tensors)) * size(self), stream, peer)
                value, *of_receiver = result if isinstance(result, tuple) else (result,)
                return Moved(value, stream, *of_receiver) if what in POINT_TO_POINT else done(value, stream)

            return moved

        return of_method

    def bytes_of(tensor):
        return tensor.numel() * tensor.element_size()

    @contextlib.contextmanager
    def wire():
        library = device.library
        if library is None:
            yield
            return
        library.vl_begin_wire()
        try:
            yield
        finally:
            library.vl_end_wire()

    def once(self):
        return 1

    def each(self):
        return self._size

    class Alone(distributed.ProcessGroup):
        """One rank of a group whose others are not there."""

        def __init__(self, rank, size):
            super().__init__(rank, size)
            self._rank = rank
            self._size = size
            self._name = ""
            self._connected = set()
            # By whom it is for: a pair that is not one of several has its own, as in ProcessGroupNCCL.
            self._streams = {}
            # None until it is made: PyTorch takes a group with some for one of its own, and records it.
            self.types = []

        def getBackendName(self):
            return BACKEND

        # Of this group itself is asked what a backend can.
        supports_coalescing = supports_splitting = False

        def _get_backend(self, _):
            return self

        @property
        def _device_types(self):
            return self.types

        @property
        def pg_name(self):
            # PyTorch asks for it after it has forgotten the group, too.
            self._name = distributed.distributed_c10d._world.pg_names.get(self, self._name)
            return self._name

        @property
        def group_name(self):
            return self.pg_name

        def _given(self, name, mine, sources):
            """What ranks of this group, all of whom are there, give each other in lists of tensors of whole numbers: by rank, their values, None for
            those that nobody knows. A rank that has ended is left out."""
            if _others is None or self._size == 1 or not all(each.dtype in whole for each in mine):
                return {}
            members, rank = self._members(), distributed.get_rank()
            given = ([_values(each) for each in mine],) if self._rank in sources else None
            found = _sent(f"{name}{members}", rank, given, [members[each] for each in sources])
            return {members.index(each): values for each, values in found.items()}

        def _values_of(self, tensor, sources):
            """What each of them has in a tensor of whole numbers; a rank that knows no values is left out."""
            found = self._given("values", [tensor], sources)
            return {rank: torch.tensor(values) for rank, (values,) in found.items() if values is not None}

        def _communicates(self, tensor, how, peers=()):
            """NCCL connects ranks, with buffers on the card, when a group first moves something there in that way, or between two of them."""
            if self._size > 1 and tensor.is_cuda and not self._connected.issuperset({how, *peers}):
                if _holds_buffers and not self._connected:
                    _take_buffers()
                self._connected.update({how, *peers})
                pairs = sum(type(each) is int and each != self._rank for each in self._connected)
                ways = [each for each in self._connected if type(each) is str]
                members = self._members() if pairs else []
                note(communicator=self._size, group=id(self), nodes=self._nodes(self._members()), pairs=pairs, ways=sorted(ways), members=members)

        def _begins(self, device, peer):
            """The stream on which something is moved, from now on: after what this one has been given."""
            if peer >= 0:
                reach.sends_to_one()
            key = (device, peer if _together[0] is None and peer >= 0 else -1)
            if key not in self._streams:
                self._streams[key] = torch.cuda.Stream(device)
            stream = self._streams[key]
            # What goes together begins together.
            if not _together[0]:
                stream.wait_stream(torch.cuda.current_stream(device))
            return stream

        @guarded("what ranks move")
        def _launches(self, what, size, stream, peer):
            if device.library is None:
                return
            together, members = 0, self._members()
            if _together[0] is not None:
                together = _together[0]
                _together[0] += 1
            group = zlib.crc32(repr(members).encode())
            between = members if peer < 0 else [members[self._rank], members[peer]]
            device.library.vl_wire(
                f"nccl::{what}".encode(), MOVES.index(what), float(size), self._size, self._nodes(between), group, self._rank, peer, together,
                stream.device.index or 0, stream.cuda_stream,
            )  # fmt: skip

        def moves_by_a_kernel(self, what, tensor):
            self._launches(what, bytes_of(tensor), torch.cuda.current_stream(tensor.device), -1)

        def _nodes(self, ranks):
            """On how many machines they are."""
            per_node = int(os.environ.get("LOCAL_WORLD_SIZE") or 0) or self._size
            return len({rank // per_node for rank in ranks})

        @moves("all_reduce", lambda tensors, *_: (tensors, once))
        def allreduce(self, tensors, options=None, *_):
            for tensor in tensors:
                self._communicates(tensor, "all_reduce")
                values = self._values_of(tensor, range(self._size))
                reduce = next((reduce for kind, reduce in reductions if options is None or options.reduceOp == kind), None)
                if reduce and len(values) == self._size:
                    tensor.copy_(reduce(torch.stack(list(values.values())).to(torch.int64), 0))
                # Of one number, by which ranks agree, each of those that are not there has the same. Of several this one may have written its own alone.
                elif reduce is torch.sum and _others is None and settings.rank is not None and tensor.numel() == 1:
                    known = _values(tensor)
                    if known is not None:
                        tensor.copy_(torch.tensor(known).reshape(tensor.shape) * self._size)
            return tensors

        # Whose result is nobody's may have it, too.
        allreduce_coalesced = reduce = allreduce

        @moves("broadcast", lambda tensors, *_: (tensors, once))
        def broadcast(self, tensors, options, *_):
            for tensor in tensors:
                self._communicates(tensor, "broadcast")
                for values in self._values_of(tensor, [options.rootRank]).values():
                    tensor.copy_(values)
                if is_alone(tensor) and not _is_of_a_module():
                    fill([tensor], [_told("values", self._members(), options.rootRank, lambda: _values(tensor))])
            return tensors

        @moves("send", lambda tensors, *_: (tensors, once))
        def send(self, tensors, target, *_):
            self._communicates(tensors[0], "pairs", [target])
            self._passed(tensors, self._rank, target)()
            return tensors

        @moves("receive", lambda tensors, *_: (tensors, once))
        def recv(self, tensors, source, *_):
            self._communicates(tensors[0], "pairs", [source])
            return tensors, source, self._passed(tensors, source, self._rank)

        def _passed(self, tensors, source, target):
            """What gives another rank the values of whole numbers, or takes them: when somebody waits, since both may send after they have asked."""
            if not any(each.dtype in whole for each in tensors):
                return bool
            if _others is None:
                if is_alone(tensors[0]):
                    one, other = (self._members()[rank] for rank in (source, target))
                    if self._rank == source:
                        _keep("values", one, other, _values(tensors[0]))
                    else:
                        fill(tensors[:1], [_kept("values", one, other)])
                return bool
            members, rank = self._members(), distributed.get_rank()
            name = f"values{members} from {source} to {target}"
            turn = _turn(name)

            def passed():
                if self._rank == source:
                    _sent(name, rank, ([_values(each) if each.dtype in whole else None for each in tensors],), [], turn)
                else:
                    for values in _sent(name, rank, None, [members[source]], turn).values():
                        fill(tensors, values)

            return passed

        def recv_anysource(self, tensors, *_):
            self._communicates(tensors[0], "pairs", [(self._rank + 1) % self._size])
            return Moved(tensors, sender=(self._rank + 1) % self._size)

        # PyTorch names its options.
        def barrier(self, opts=None):
            _wait_for_all(f"barrier {self._members()}", self._size)
            return done([])

        def monitored_barrier(self, *_, **__):
            self.barrier()

        def _members(self):
            # A group's name is the rank's own where it was made for some ranks only.
            return list(map(int, distributed.get_process_group_ranks(self)))

        def _start_coalescing(self, *_):
            pass

        def _end_coalescing(self, *_):
            return done([])

        @moves("all_gather", lambda _, inputs, *__: (inputs, each))
        def allgather(self, outputs, inputs, *_):
            for each, given in zip(outputs, inputs):
                self._communicates(given, "all_gather")
                buffer = self._buffer(each)
                values = self._values_of(given, range(self._size))
                for rank, output in enumerate(each):
                    output.copy_(values.get(rank, given))
                del buffer
            return outputs

        def _buffer(self, tensors):
            """NCCL takes tensors of one size in one buffer (`newLikeFlat` in ProcessGroupNCCL.cpp)."""
            if len({tensor.shape for tensor in tensors}) == 1:
                return tensors[0].new_empty(len(tensors), *tensors[0].shape)

        def allgather_coalesced(self, outputs, inputs, *_):
            return self.allgather([[each[i] for each in outputs] for i in range(len(inputs))], inputs)

        @moves("all_gather", lambda output, *_: ([output], once))
        def _allgather_base(self, output, given, *_):
            self._communicates(given, "all_gather")
            parts = output.view(self._size, -1)
            parts.copy_(given.reshape(1, -1).expand(self._size, -1))
            for rank, values in self._values_of(given, range(self._size)).items():
                parts[rank].copy_(values.reshape(-1))
            return [output]

        def allgather_into_tensor_coalesced(self, outputs, inputs, *_):
            works = [self._allgather_base(output, given) for output, given in zip(outputs, inputs)]
            return works[-1] if works else done(outputs)

        @moves("broadcast", lambda _, inputs, *__: (inputs, each))
        def gather(self, outputs, inputs, options=None, *_):
            is_root = options is None or options.rootRank == self._rank
            self._communicates(inputs[0], "pairs", range(self._size) if is_root else [options.rootRank])
            values = self._values_of(inputs[0], range(self._size))
            for each, given in zip(outputs, inputs):
                for rank, output in enumerate(each):
                    output.copy_(values.get(rank, given))
            return outputs

        @moves("broadcast", lambda outputs, *_: (outputs, each))
        def scatter(self, outputs, inputs, options=None, *_):
            root = self._rank if options is None else options.rootRank
            self._communicates(outputs[0], "pairs", range(self._size) if inputs else [root])
            for output, each in zip(outputs, inputs):
                output.copy_(each[self._rank])
            for values in self._given("scatter", inputs[0] if inputs else outputs, [root]).values():
                fill(outputs, values[self._rank :])
            if is_alone(outputs[0]):
                values = _told("scattered-values", self._members(), root, lambda: [_values(each) for each in inputs[0]])
                fill(outputs, (values or [])[self._rank :])
            return outputs

        @moves("reduce_scatter", lambda outputs, *_: (outputs, each))
        def reduce_scatter(self, outputs, inputs, *_):
            self._communicates(inputs[0][0], "reduce_scatter")
            for output, each in zip(outputs, inputs):
                buffer = self._buffer(each)
                output.copy_(each[self._rank])
                del buffer
            return outputs

        @moves("reduce_scatter", lambda _, given, *__: ([given], once))
        def _reduce_scatter_base(self, output, given, *_):
            self._communicates(given, "reduce_scatter")
            output.view(-1).copy_(given.reshape(self._size, -1)[self._rank])
            return [output]

        def reduce_scatter_tensor_coalesced(self, outputs, inputs, *_):
            works = [self._reduce_scatter_base(output, given) for output, given in zip(outputs, inputs)]
            return works[-1] if works else done(outputs)

        @moves("all_to_all", lambda _, inputs, *__: (inputs, once))
        def alltoall(self, outputs, inputs, *_):
            self._communicates(inputs[0], "pairs", range(self._size))
            for output, given in zip(outputs, inputs):
                if output.shape == given.shape:
                    output.copy_(given)
            self._exchange(outputs, inputs)
            return outputs

        @moves("all_to_all", lambda _, given, *__: ([given], once))
        def alltoall_base(self, output, given, output_sizes=(), input_sizes=(), *_):
            self._communicates(given, "pairs", range(self._size))
            if output.shape == given.shape:
                output.copy_(given)
            if given.dtype in whole:
                parts = ((output, output_sizes), (given, input_sizes))
                self._exchange(*(each.split(list(sizes)) if sizes else each.tensor_split(self._size) for each, sizes in parts))
            return [output]

        def _exchange(self, outputs, inputs):
            for rank, values in self._given("exchanged", inputs, range(self._size)).items():
                fill([outputs[rank]], [values[self._rank]])

        # As newer versions of PyTorch call them.
        all_gather_single, all_gather_single_coalesced = _allgather_base, allgather_into_tensor_coalesced
        reduce_scatter_single, reduce_scatter_single_coalesced = _reduce_scatter_base, reduce_scatter_tensor_coalesced
        all_to_all_single = alltoall_base

        def gather_single(self, output, given, *_):
            return self._allgather_base(output, given) if output.numel() else done([output])

    distributed.Backend.register_backend(
        BACKEND, lambda store, rank, size, timeout: Alone(rank, size), devices=["cpu", "cuda"]
    )
    _alone_in_all_groups(distributed)
