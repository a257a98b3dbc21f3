"""How long the script's own DataLoader takes for a batch: the time inside of a fetch, in workers and in the script's process, whoever waits for it.

A worker writes its own lines: one that was forked has no other way to tell. They stand in the file `loading` of the folder of the process that it
was forked from, or of its own where it was spawned.
"""

import contextlib
import json
import multiprocessing
import os
import time

from . import clock, hosting, longest, notes, padding
from .guard import guarded, instead
from .session import settings

# Fetches that a process tells of.
MOST = 100

_written = 0
_owner = 0
# By name of a loader: its workers, batches that were taken from it outside of no_grad, batches that a worker has ready, and all that it has.
_taken = {}
# Batches that were taken when the first step ended and when the last one did, by name; how many steps that were, and backward passes of the first.
_first, _last, _steps, _backwards = {}, {}, 0, 0


def follow(torch):
    from torch.utils.data import dataloader
    from torch.utils.data._utils import fetch

    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        _time(kind)

    @guarded("batches of a DataLoader")
    def taken(self):
        if torch.is_grad_enabled():
            name = _name(self._dataset)
            known = _taken.get(name) or (0, 0, 0, _length(self))
            _taken[name] = (self._num_workers, known[1] + 1, getattr(self, "_prefetch_factor", None) or 0, known[3])

    @instead("__next__", dataloader._BaseDataLoaderIter)
    def take(self):
        began = time.monotonic(), time.thread_time()
        batch = take.__wrapped__(self)
        taken(self)
        if clock.is_followed():
            clock.waited_for_data(time.monotonic() - began[0] - (time.thread_time() - began[1]))
        if torch.is_grad_enabled():
            padding.see(batch)
            if settings.longest:
                batch = longest.instead(self, batch)
        return batch


def _name(dataset):
    try:
        return f"{type(dataset).__name__} of {len(dataset)} samples"
    # A script's own, which says that it has none in whatever way.
    except Exception:
        return type(dataset).__name__


def _length(batches):
    try:
        return len(batches)
    # A stream's is not known, and a script's own sampler says that in whatever way.
    except Exception:
        return 0


def _waited_for_a_core():
    """Seconds in which this thread could have run and no core was free, which is the rehearsal's and others' doing (proc(5), schedstat)."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def _time(kind):
    @instead("fetch", kind)
    def fetch(self, possibly_batched_index):
        began = _moment()
        batch = fetch.__wrapped__(self, possibly_batched_index)
        _fetched(self, possibly_batched_index, batch, began)
        return batch


@guarded("the time of loading")
def _moment():
    global _written, _owner
    # A forked worker has what its parent wrote.
    if _owner != os.getpid():
        _written, _owner = 0, os.getpid()
    return (_waited_for_a_core(), time.thread_time(), time.perf_counter()) if _written < MOST else None


@guarded("the time of loading")
def _fetched(self, index, batch, began):
    global _written
    if began is None:
        return
    waited, worked, since = began
    seconds, worked, waited = time.perf_counter() - since, time.thread_time() - worked, _waited_for_a_core() - waited
    _written += 1
    parent = multiprocessing.parent_process()
    _write(
        loads=_name(self.dataset),
        worker=_owner,
        owner=parent.pid if parent and _is_worker() else _owner,
        seconds=max(seconds - waited, worked),
        processor_seconds=worked,
        samples=len(index) if isinstance(index, (list, tuple)) else 0,
        bytes=hosting.bytes_of(batch),
        private=hosting.private() if _is_worker() else 0,
    )


def _is_worker():
    from torch.utils.data import get_worker_info

    return get_worker_info() is not None


def _write(**line):
    # Where that cannot be, nothing of it is in the answer.
    with contextlib.suppress(OSError), open(os.path.join(notes.folder, "loading"), "ab", buffering=0) as file:
        file.write((json.dumps(line) + "\n").encode("utf-8", "replace"))


@guarded("batches of a DataLoader")
def step_ended(backwards):
    global _first, _last, _steps, _backwards
    _last, _steps = {name: known[1] for name, known in _taken.items()}, _steps + 1
    if _steps == 1:
        _first, _backwards = _last, backwards


def _per_step(name, batches):
    """Batches of a step: a library may take one ahead of the step that needs it, and the last step may have failed. None where no step has ended."""
    if _steps > 1:
        return (_last.get(name, 0) - _first.get(name, 0)) / (_steps - 1)
    return min(_first.get(name, batches), max(_backwards, 1)) if _steps else None


@guarded("batches of a DataLoader")
def tell():
    for name, (workers, batches, prefetched, length) in _taken.items():
        per_step = _per_step(name, batches)
        if per_step == 0:
            notes.note(note=f"{name}: no step after the first took a batch of it, so that the steps of an epoch are not known; --steps {10 * _steps} shows more")
        notes.note(loader=name, workers=workers, batches=batches, per_step=per_step, prefetched=prefetched, length=length)
