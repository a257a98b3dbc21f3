"""The library that takes the place of CUDA's kernels and follows PyTorch's allocator."""

import ctypes
import functools
import os
import re
import sys

from . import building, notes
from .guard import guarded, instead
from .session import counted, remarks, simulated, use_the_caching_allocator

FORWARD, BACKWARD, OPTIMIZER, EVALUATION, GENERATION = 1, 2, 3, 4, 5
library = None
# Whether Python asked for the time between two events: DDP's logger does by itself.
_asks_for_times = False
# How many entries of PyTorch's own memory history the script wants; None where it wants none.
_history = None


def refuse(torch):
    """Why this PyTorch cannot be rehearsed; None where it can."""
    if not torch.version.cuda and getattr(torch.version, "hip", None):
        return (
            f"PyTorch {torch.__version__} is built for ROCm, and what is simulated are NVIDIA's cards: rehearse the script in an environment with a CUDA "
            "build (pip install torch --index-url https://download.pytorch.org/whl/cu128), which needs no GPU. Tensors take the same bytes on an AMD "
            "card; workspaces, kernels and times differ"
        )
    if not torch.version.cuda:
        return (
            f"PyTorch {torch.__version__} is built without CUDA, so it has no GPU allocator to rehearse with. "
            "Install a CUDA build, which needs no GPU: pip install torch --index-url https://download.pytorch.org/whl/cu128"
        )
    found = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    if not found or tuple(map(int, found.groups())) < (2, 6):
        return f"PyTorch {torch.__version__} is too old for vramlab rehearse; it needs 2.6 or newer"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return (
            "this Python runs threads without its global lock (a free-threaded build), and what several of them do at one time cannot be recorded: set "
            "PYTHON_GIL=1, or rehearse the script with an ordinary build"
        )
    return None


def wait_for_cuda(torch, follow):
    """Opens the library when CUDA comes up, before whatever else waits for that, and then has the script followed."""
    torch.cuda._queued_calls.insert(0, (functools.partial(_open, torch, follow), []))
    _share_history(torch)
    _watch_events(torch)
    _keep_the_allocator(torch)


def _open(torch, follow):
    global library
    opened = ctypes.PyDLL(building.library(torch))
    number, wide, size, real, text, address = ctypes.c_int, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_double, ctypes.c_char_p, ctypes.c_void_p
    for name, result, *arguments in (
        ("open", address, text), ("gather_stacks", address, number, wide), ("forget", None, address), ("label", None, address, size),
        ("begin_pass", None, number, ctypes.c_int64, ctypes.c_uint32), ("set_module", None, ctypes.c_uint32), ("lose", None, address, size),
        ("refused", None, text), ("out_of_memory", ctypes.c_uint32), ("open_clock", None, text), ("clock", real, real),
        ("values", number, wide, address, size), ("work", None, text, number, number, real, real, ctypes.c_uint32, wide),
        ("begin_graph", None, wide), ("end_graph", None), ("replay_graph", None, wide), ("set_pool", None, wide, wide), ("set_collecting", None, number),
        ("begin_wire", None), ("end_wire", None), ("pages", None, number, wide, ctypes.c_int64, number),
        ("wire", None, text, number, real, number, number, ctypes.c_uint32, number, number, number, number, wide),
    ):  # fmt: skip
        function = getattr(opened, f"vl_{name}")
        function.restype, function.argtypes = result, arguments
    checked(opened, opened.vl_open(notes.own_folder().encode()))
    library = opened
    # A script may have set it since.
    use_the_caching_allocator()
    for text in remarks:
        notes.note(note=text)
    # Which cards of the machine they are: CUDA_VISIBLE_DEVICES may give them other numbers here.
    cards = [simulated["libnvidia-ml.so.1"].vramlab_dry_card_of(device) for device in range(torch.cuda.device_count())]
    notes.note(device=torch.cuda.get_device_name(0), devices=len(cards), cards=cards)
    _choose_code(torch)
    _gather_stacks()
    follow(torch)


@guarded("whether this PyTorch has code for the card")
def _choose_code(torch):
    """Which of the code that this PyTorch is built for the card takes; where none, that it would not run there is noted."""
    card = 10 * torch.cuda.get_device_capability(0)[0] + torch.cuda.get_device_capability(0)[1]
    # sm_90a is machine code of that card alone, compute_90 is compiled by the driver for whatever is newer.
    built = [(kind, int(number), only) for kind, number, only in re.findall(r"(sm|compute)_(\d+)([a-z]*)", " ".join(torch.cuda.get_arch_list()))]

    def takes(kind, number, only):
        return number == card or (number < card and not only and (kind == "compute" or number // 10 == card // 10))

    taken = [number for kind, number, only in built if takes(kind, number, only)]
    if built:
        simulated["libnvidia-ml.so.1"].vramlab_dry_set_code(max(taken, default=min(number for _, number, _ in built)))
    if taken or not built:
        return
    releases = getattr(torch.cuda, "PYTORCH_RELEASES_CODE_CC", {})
    fitting = [cuda for cuda, numbers in releases.items() if any(takes("sm", number, "") for number in numbers)]
    notes.note(
        no_code=f"PyTorch {torch.__version__} has no code for this card (compute capability {card // 10}.{card % 10}; it has "
        f"{', '.join(torch.cuda.get_arch_list())}) and fails there with \"no kernel image is available\": install "
        + (f"its build for CUDA {' or '.join(fitting)}" if fitting else "a build that has (https://pytorch.org/get-started/locally)")
    )


def leave_untouched(torch):
    """Large floating-point tensors on the host stay as they are, whatever is written to them."""
    opened = ctypes.PyDLL(building.library(torch))
    opened.vl_leave_untouched.restype = ctypes.c_void_p
    opened.vl_forget.argtypes = (ctypes.c_void_p,)
    checked(opened, opened.vl_leave_untouched())


def checked(opened, message):
    if message:
        text = ctypes.string_at(message).decode("utf-8", "replace")
        opened.vl_forget(message)
        notes.note(refused=text)
        raise RuntimeError(f"vramlab rehearse: {text}")


@guarded("libraries with kernels of their own")
def tell_of_third_party(failed):
    """Libraries that bring kernels, or a whole CUDA runtime, of their own."""

    def ask(library, function):
        if library not in simulated:
            return []
        listing = getattr(simulated[library], function)
        listing.restype = ctypes.c_char_p
        return [os.path.basename(path) for path in listing().decode("utf-8", "replace").splitlines()]

    if counted("vramlab_dry_managed"):
        notes.note(managed=counted("vramlab_dry_managed"))
    if _asks_for_times and counted("vramlab_dry_timed"):
        notes.note(note="elapsed_time of CUDA events is predicted here, as this answer's times are: what the script made of it, such as TFLOP/s, was not measured")
    if _asks_for_times and counted("vramlab_dry_untimed"):
        notes.note(note="elapsed_time of CUDA events was 0.01 ms here, since nothing predicts it (a size has no speed: name a card): what the script makes of it says nothing")
    for name in ask("libnvidia-ml.so.1", "vramlab_runtime_third_party"):
        notes.note(note=f"{name} has CUDA kernels of its own: they were not launched; what it allocates through PyTorch is counted")
    for name in ask("libcuda.so.1", "vramlab_driver_third_party") if failed else ():
        notes.note(
            note=f"{name} brings a CUDA runtime of its own, linked into it, which a rehearsal cannot stand in for: rehearse the script without it"
        )


@guarded("what this process holds of a card")
def hold():
    """What this process has of a card stays taken for those beside it: a real one would go on."""
    if "libnvidia-ml.so.1" in simulated:
        simulated["libnvidia-ml.so.1"].vramlab_dry_hold()


@guarded("the status of a process")
def tell_status(folder):
    if "libnvidia-ml.so.1" in simulated:
        simulated["libnvidia-ml.so.1"].vramlab_dry_tell_status(os.path.join(folder, "status").encode())


@guarded("the end of a process")
def leave_at_exit():
    """Libraries are not unloaded when it ends: what they give back takes longer than many a script, and nobody would see it."""
    if "libnvidia-ml.so.1" in simulated:
        simulated["libnvidia-ml.so.1"].vramlab_dry_leave_at_exit()


@guarded("the end of the record")
def ended(enough_seen):
    if library is not None:
        library.vl_ended(int(enough_seen))


@guarded("what kernels of others write")
def lose(arguments):
    """A kernel that is not PyTorch's was given these: what it may have written is not known."""
    if library is None:
        return
    found = [each.untyped_storage().data_ptr() for each in arguments if getattr(each, "is_cuda", False)]
    library.vl_lose((ctypes.c_uint64 * len(found))(*found), len(found))


def refused(what):
    """The simulated GPU cannot run something that is no operator: where the script goes on without, that is noted."""
    if library is not None:
        library.vl_refused(what.encode())


@guarded("values of a tensor")
def values(tensor):
    """What a tensor on the simulated card holds, on the CPU; None where that is not known, or hangs on numbers that nobody computed."""
    import torch

    storage = tensor.untyped_storage()
    if library is None or tensor.numel() == 0:
        return None
    found = bytearray(storage.nbytes())
    if not library.vl_values(storage.data_ptr(), (ctypes.c_char * len(found)).from_buffer(found), len(found)):
        return None
    return torch.frombuffer(found, dtype=tensor.dtype).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def tell_graphs(torch, begins, ended):
    """What a CUDA graph captures runs once, for its memory; for the time of a step it runs with each replay, backward passes with it."""

    @guarded("a CUDA graph")
    def begin(number):
        notes.note(note="CUDA graphs: what is captured ran as it is, once; each replay counts in the time of a step")
        library.vl_begin_graph(number)

    @guarded("a CUDA graph")
    def replay(number):
        begins()
        library.vl_replay_graph(number)
        ended()

    # By PyTorch's number of a pool, what this calls it: a capture tells its own when it has ended.
    pools = {}

    @guarded("a CUDA graph's pool")
    def begin_pool(graph, pool=None, *_, **__):
        library.vl_set_pool(*(pools.get(tuple(pool), pool) if pool else (id(graph), 0)))

    @guarded("a CUDA graph's pool")
    def end_pool(graph):
        pools.setdefault(tuple(graph.pool()), (id(graph), 0))
        library.vl_set_pool(0, 0)

    def announce(name, tell, before=lambda *_, **__: None, after=lambda _: None):
        @instead(name, torch.cuda.CUDAGraph)
        def method(self, *arguments, **more):
            if library is not None:
                tell(id(self))
                before(self, *arguments, **more)
            result = method.__wrapped__(self, *arguments, **more)
            if library is not None:
                after(self)
            return result

    announce("capture_begin", begin, before=begin_pool)
    announce("capture_end", lambda _: library.vl_end_graph(), after=end_pool)
    announce("replay", replay)


@guarded("compiled kernels")
def tell_kernel(name, traffic):
    """A launch of a compiled kernel, for the time of a step."""
    if library is not None:
        # Kind and precision by their numbers in src/sim/native/python/work.h; without operations the precision does not matter.
        library.vl_work(name.encode(), 10, 1, 0.0, traffic, 1, 0)


def close():
    if library is not None:
        library.vl_close_python()


def _watch_events(torch):
    @instead("elapsed_time", torch.cuda.Event)
    def elapsed_time(self, *arguments, **more):
        global _asks_for_times
        _asks_for_times = True
        return elapsed_time.__wrapped__(self, *arguments, **more)


def _keep_the_allocator(torch):
    """One of the script's own tells nobody what it does."""

    @instead("change_current_allocator", torch.cuda.memory, torch.cuda)
    def change(allocator):
        notes.note(
            note="change_current_allocator: rehearsed with PyTorch's own allocator. Peaks of tensors are the same; what the script's allocator takes of the card for them is not known"
        )


def _share_history(torch):
    """A script that records PyTorch's memory history, also from before CUDA comes up, gets it; ours goes on beside it."""

    @instead("_record_memory_history", torch.cuda.memory)
    def record(enabled="all", *arguments, **more):
        global _history
        if enabled and _history is None:
            # Ours has left its last event.
            record.__wrapped__(None)
        result = record.__wrapped__(enabled, *arguments, **more)
        entries = more.get("max_entries", more.get("trace_alloc_max_entries"))
        _history = None if enabled in (None, False) else entries or 2**62
        if library is not None:
            _gather_stacks()
        return result


def _gather_stacks():
    checked(library, library.vl_gather_stacks(int(_history is not None), _history or 2**62))
