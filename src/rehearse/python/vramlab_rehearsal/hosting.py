"""What the process takes of the host's memory: what it has, and what it would have on a real GPU, where copies from the device fill pages that nobody
writes to here."""

import contextlib
import resource

from .session import counted

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
    with contextlib.suppress(OSError, ValueError):
        _before = _untouched()


def look():
    """Where most may be held: when a forward pass has ended, and around the optimizer's step."""
    global _most
    with contextlib.suppress(OSError, ValueError):
        _most = max(_most, _untouched() - _before)


def measured():
    look()
    # Linux counts it in KiB.
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return {"resident": resident, "file": _kernel_count("status", "RssFile"), "untouched": _most, "pinned": counted("vramlab_dry_pinned")}


def private():
    """What this process has alone: of a forked one without what its parent has, too."""
    return _kernel_count("smaps_rollup", "Private_")


def _kernel_count(name, beginning):
    """Bytes that the lines of a file of this process add up to; 0 where it tells none."""
    try:
        with open(f"/proc/self/{name}") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith(beginning))
    except (OSError, ValueError):
        return 0


def bytes_of(batch, depth=8, of_others=lambda value: 0):
    """Of the tensors in what a DataLoader gives, and what is said of the rest."""
    if hasattr(batch, "nbytes") and hasattr(batch, "shape"):
        return batch.nbytes
    if depth and isinstance(batch, dict):
        batch = batch.values()
    elif not depth or not isinstance(batch, (list, tuple)):
        return of_others(batch)
    return sum(bytes_of(each, depth - 1, of_others) for each in batch)
