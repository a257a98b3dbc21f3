"""A script's allocations asked for again of PyTorch's own allocator, in the sizes that another batch would give them or on a smaller card;
nothing else runs."""

import array
import contextlib
import ctypes
import functools
import importlib.util
import json
import math
import os
import runpy

from . import building
from .session import SESSION, settings, simulated

# The simulated card hands out whole pages.
PAGE = 2 << 20
# More than anything reserves.
LARGE = 1 << 40


def begin():
    """Answers what the session's file asks."""
    path = os.path.join(SESSION, "replay")
    with open(path) as file:
        request = json.load(file)
    answer = {"largest": _largest, "smallest": _smallest, "needed": _needed}[settings.replay](request)
    with open(path + ".answer", "w") as file:
        json.dump(answer, file)


def _largest(request):
    """The largest number below `high` whose allocations fit the card; `low` does."""
    course = _Course(request["course"])

    def fits(number):
        return course.reserved([max(size, 1) for size in _sizes(request, number)]) is not None

    return _last(request["low"], request["high"], fits)


def _smallest(request):
    """The fewest bytes with which the course comes to its end, of which its sizes are linear; with `high` it does. Of none is less left than one unit,
    as a block of a cache of keys and values, where the two sizes that are known have one. Where many blocks are rounded up at once, fewer pages may do
    where more do not: by which they are is the same every `wave` pages."""
    course = _Course(request["course"])
    units = [math.gcd(*pair) if 64 * math.gcd(*pair) <= abs(pair[1] - pair[0]) else 1 for pair in request["sizes"]]

    def is_too_small(pages):
        sizes = _sizes(request, pages * PAGE)
        return any(size < unit for size, unit, pair in zip(sizes, units, request["sizes"]) if pair[0] != pair[1]) or course.reserved(sizes, pages * PAGE) is None

    least = _last(0, -(-request["high"] // PAGE), is_too_small) + 1
    # Of those below the one where they are rounded up by the least.
    rounded = lambda pages: sum(-size % PAGE for size, pair in zip(_sizes(request, pages * PAGE), request["sizes"]) if pair[0] != pair[1])
    while below := range(max(least - request["wave"], 1), least):
        pages = min(below, key=rounded)
        if is_too_small(pages):
            break
        least = pages
    return least * PAGE


def _sizes(request, number):
    """The blocks' with a number, of which they are linear."""
    less, more = request["numbers"]
    return [before + (after - before) * (number - less) // (more - less) for before, after in request["sizes"]]


def _needed(request):
    """For each course, in order of what they reserved, the fewest bytes with which it comes to its end: None where that is no more than
    another's and not each is asked for. And of the first what it reserves with expandable segments, and with one memory pool for all of its own,
    where that is asked; with expandable segments, too, by how many bytes less it would come to its end, to a half per cent of what it needs."""
    courses = [_Course(course) for course in request["courses"]]
    most, needs = 0, []
    for course, each in zip(courses, request["courses"]):
        if each["reserved"] <= most and not request["each"]:
            needs.append(None)
            continue

        def is_too_small(pages):
            return course.reserved(each["sizes"], pages * PAGE) is None

        # What was reserved on a card with more of it is enough, and what was allocated at once has to be there.
        low, high = each["allocated"] // PAGE - 1, -(-each["reserved"] // PAGE)
        needs.append((_last(low, high, is_too_small) + 1) * PAGE)
        most = max(most, needs[-1])
    one_pool = expandable = saved = None
    if request["one_pool"]:
        one_pool = _Course(request["one_pool"]).reserved(request["one_pool"]["sizes"], LARGE)
    if request["expandable"]:
        # Alone: a limit of what may be split that the script has set is none then.
        _checked(_library().vl_set_allocator(b"expandable_segments:True,max_split_size_mb:1048576"))
        # A segment reserves addresses for more than the whole card, in each memory pool: of a card without bounds there are not enough.
        each, most = request["courses"][0], needs[0] // PAGE
        expandable = courses[0].reserved(each["sizes"], 2 * needs[0] + (1 << 30))
        low = each["allocated"] // PAGE - 1
        # What would free less than a fiftieth is of no interest.
        if most - low > most // 50:
            saved = (most - 1 - _last(low, most, lambda pages: courses[0].reserved(each["sizes"], pages * PAGE) is None, most // 200)) * PAGE
    return [needs, expandable, saved, one_pool]


def _last(low, high, holds, close=1):
    """The last number of which something holds, or one that is less than `close` before it: it does of `low` and does not of `high`."""
    while high - low > max(close, 1):
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


@functools.cache
def _library():
    path = None
    with contextlib.suppress(OSError):
        path = _kept()
    if path is None:
        import torch

        path = building.library(torch, "replay")
    library = ctypes.PyDLL(path)
    library.vl_replay.restype = library.vl_set_allocator.restype = ctypes.c_void_p
    return library


def _kept():
    """Where our library lies, over PyTorch's allocator alone: the rest takes longer to load than most replays take."""
    root = importlib.util.find_spec("torch").submodule_search_locations[0]
    c10, _ = [ctypes.CDLL(os.path.join(root, "lib", f"lib{name}.so"), ctypes.RTLD_GLOBAL) for name in ("c10", "c10_cuda")]
    # A function's name in the older C++ ABI.
    abi = 0 if hasattr(c10, "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs") else 1
    return building.kept("replay", runpy.run_path(os.path.join(root, "version.py"))["__version__"], abi)


def _checked(message):
    if message:
        raise RuntimeError(ctypes.string_at(message).decode("utf-8", "replace"))


class _Course:
    def __init__(self, request):
        self.streams = request["streams"]
        self.requests = array.array("I", request["requests"])

    def reserved(self, sizes, memory=None):
        """Most bytes that were reserved with these sizes of the blocks; None where memory ran out. `memory` is what the card has for them."""
        if memory is not None:
            taken = int(os.environ.get("VRAMLAB_DRY_TAKEN", "0"))
            simulated["libnvidia-ml.so.1"].vramlab_dry_set_memory(ctypes.c_uint64(memory + taken))
        sizes = array.array("Q", sizes)
        reserved = ctypes.c_int64()
        requests, blocks = (ctypes.c_void_p(of.buffer_info()[0]) for of in (self.requests, sizes))
        count, made, streams = (ctypes.c_size_t(number) for number in (len(self.requests) // 2, len(sizes), self.streams))
        _checked(_library().vl_replay(requests, count, blocks, made, streams, ctypes.byref(reserved)))
        return None if reserved.value < 0 else reserved.value
