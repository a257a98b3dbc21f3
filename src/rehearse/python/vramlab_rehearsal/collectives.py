"""A process group of one rank of a job: its collectives move nothing, and allocate what they are given. Imported where torch is there."""

import contextlib
import ctypes
import functools
import os
import sys
import zlib

import torch
from torch import distributed
from torch._C._distributed_c10d import _create_work_from_future

from . import device, meetings, reach
from .guard import guarded
from .notes import note
from .session import settings, simulated

# By their numbers in src/rehearse/src/capture/work.rs.
MOVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "receive")
POINT_TO_POINT = ("send", "receive")
WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
REDUCTIONS = [
    (distributed.ReduceOp.SUM, torch.sum),
    (distributed.ReduceOp.PRODUCT, torch.prod),
    (distributed.ReduceOp.MIN, torch.amin),
    (distributed.ReduceOp.MAX, torch.amax),
]
# More elements than this are data, on which no program hangs its way.
MOST_VALUES = 1 << 14

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


def is_alone(tensor):
    """Whether it has whole numbers that other ranks may have told, or want to be told, in a rehearsal of their own."""
    return not meetings.are_there() and settings.rank is not None and tensor.dtype in WHOLE and tensor.numel() <= MOST_VALUES


def fill(tensors, values):
    """Gives tensors of whole numbers the values that another rank had in its own, as far as those are known."""
    for tensor, each in zip(tensors, values):
        if each is not None and tensor.dtype in WHOLE and torch.tensor(each).numel() == tensor.numel():
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
KEEPS_WORKS = torch.__version__ >= (2, 11)


def done(value, stream=None):
    """What has been moved, of which nobody asks who sent it. Of an older PyTorch the card waits for it at once."""
    if KEEPS_WORKS:
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
        return meetings.BACKEND

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
        if not meetings.are_there() or self._size == 1 or not all(each.dtype in WHOLE for each in mine):
            return {}
        members, rank = self._members(), distributed.get_rank()
        given = ([_values(each) for each in mine],) if self._rank in sources else None
        found = meetings.sent(f"{name}{members}", rank, given, [members[each] for each in sources])
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
        key = (device, peer if meetings.together[0] is None and peer >= 0 else -1)
        if key not in self._streams:
            self._streams[key] = torch.cuda.Stream(device)
        stream = self._streams[key]
        # What goes together begins together.
        if not meetings.together[0]:
            stream.wait_stream(torch.cuda.current_stream(device))
        return stream

    @guarded("what ranks move")
    def _launches(self, what, size, stream, peer):
        if device.library is None:
            return
        together, members = 0, self._members()
        if meetings.together[0] is not None:
            together = meetings.together[0]
            meetings.together[0] += 1
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
            reduce = next((reduce for kind, reduce in REDUCTIONS if options is None or options.reduceOp == kind), None)
            if reduce and len(values) == self._size:
                tensor.copy_(reduce(torch.stack(list(values.values())).to(torch.int64), 0))
            # Of one number, by which ranks agree, each of those that are not there has the same. Of several this one may have written its own alone.
            elif reduce is torch.sum and not meetings.are_there() and settings.rank is not None and tensor.numel() == 1:
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
                fill([tensor], [meetings.told("values", self._members(), options.rootRank, lambda: _values(tensor))])
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
        if not any(each.dtype in WHOLE for each in tensors):
            return bool
        if not meetings.are_there():
            if is_alone(tensors[0]):
                one, other = (self._members()[rank] for rank in (source, target))
                if self._rank == source:
                    meetings.keep("values", one, other, _values(tensors[0]))
                else:
                    fill(tensors[:1], [meetings.kept("values", one, other)])
            return bool
        members, rank = self._members(), distributed.get_rank()
        name = f"values{members} from {source} to {target}"
        turn = meetings.turn(name)

        def passed():
            if self._rank == source:
                meetings.sent(name, rank, ([_values(each) if each.dtype in WHOLE else None for each in tensors],), [], turn)
            else:
                for values in meetings.sent(name, rank, None, [members[source]], turn).values():
                    fill(tensors, values)

        return passed

    def recv_anysource(self, tensors, *_):
        self._communicates(tensors[0], "pairs", [(self._rank + 1) % self._size])
        return Moved(tensors, sender=(self._rank + 1) % self._size)

    # PyTorch names its options.
    def barrier(self, opts=None):
        meetings.wait_for_all(f"barrier {self._members()}", self._size)
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
            values = meetings.told("scattered-values", self._members(), root, lambda: [_values(each) for each in inputs[0]])
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
        if given.dtype in WHOLE:
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


def register():
    distributed.Backend.register_backend(meetings.BACKEND, lambda store, rank, size, timeout: Alone(rank, size), devices=["cpu", "cuda"])
