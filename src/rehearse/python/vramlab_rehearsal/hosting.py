"""What the process takes of the host's memory: what it has, and what it would have on a real GPU, where copies from the device fill pages that nobody
writes to here."""

import ctypes
import os
import resource

from .session import simulated

_PAGE = resource.getpagesize()
# Private pages that may be written to and were not, when torch was imported; and the most since.
_before, _most = 0, 0


def _untouched():
    """(proc(5), statm) What may be written to, with stacks, without what has been."""
    with open("/proc/self/statm") as file:
        fields = [int(field) for field in file.read().split()]
    _, resident, shared, _, _, data, *_ = fields
    return (data - (resident - shared)) * _PAGE


def begin():
    global _before
    try:
        _before = _untouched()
    except (OSError, ValueError):
        pass


def look():
    """Where most may be held: when a forward pass has ended, and around the optimizer's step."""
    global _most
    try:
        _most = max(_most, _untouched() - _before)
    except (OSError, ValueError):
        pass


def measured():
    look()
    pinned = 0
    if "libnvidia-ml.so.1" in simulated:
        of_all = simulated["libnvidia-ml.so.1"].vramlab_dry_pinned
        of_all.restype = ctypes.c_uint64
        pinned = of_all()
    file = 0
    try:
        with open("/proc/self/status") as status:
            file = sum(int(line.split()[1]) << 10 for line in status if line.startswith("RssFile"))
    except (OSError, ValueError):
        pass
    # Linux counts it in KiB.
    return {"resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10, "file": file, "untouched": _most, "pinned": pinned}


def private():
    """What this process has alone: of a forked one without what its parent has, too."""
    try:
        with open("/proc/self/smaps_rollup") as rollup:
            return sum(int(line.split()[1]) << 10 for line in rollup if line.startswith("Private_"))
    except (OSError, ValueError):
        return 0


def bytes_of(batch, depth=8):
    """Of the tensors in what a DataLoader gives."""
    if hasattr(batch, "nbytes") and hasattr(batch, "shape"):
        return batch.nbytes
    if depth and isinstance(batch, dict):
        batch = batch.values()
    elif not depth or not isinstance(batch, (list, tuple)):
        return 0
    return sum(bytes_of(each, depth - 1) for each in batch)
