"""Pools of processes: a training that is stopped ends its task, whose result is None, and the worker goes on to the next one as it would without us.

A worker that ended with its task would break the pool, or leave the one that waits for its result waiting for ever.
"""

import contextlib
import functools
import os
import time

from . import imports
from .guard import guarded, instead
from .session import SESSION

# As long as a task that was stopped waits for those beside it, in seconds.
_LONGEST = 60

# Tasks that this process carries out, one within the other, and whether the innermost was stopped.
depth = 0
was_stopped = False


def follow():
    imports.when_imported("multiprocessing.pool", _watch_pools)
    imports.when_imported("concurrent.futures.process", _watch_executors)


def _watch_pools(module):
    @instead("worker", module)
    def worker(inqueue, *arguments, **more):
        return worker.__wrapped__(_Tasks(inqueue), *arguments, **more)


def _watch_executors(module):
    @instead("_process_worker", module)
    def worker(call_queue, *arguments, **more):
        return worker.__wrapped__(_Tasks(call_queue), *arguments, **more)


class _Tasks:
    """The queue from which a worker takes them."""

    def __init__(self, queue):
        self._queue = queue

    def __getattr__(self, name):
        return getattr(self._queue, name)

    def get(self, *arguments, **more):
        task = self._queue.get(*arguments, **more)
        if type(task) is tuple and len(task) == 5:
            job, number, function, given, named = task
            if getattr(function, "__name__", "") in ("mapstar", "starmapstar"):
                ((function_of_all, *rest),) = given
                return job, number, function, ((_Task(function_of_all), *rest),), named
            return job, number, _Task(function), given, named
        if hasattr(task, "fn"):
            is_chunk = isinstance(task.fn, functools.partial) and task.fn.func.__name__ == "_process_chunk"
            task.fn = functools.partial(task.fn.func, _Task(*task.fn.args)) if is_chunk else _Task(task.fn)
        return task


class _Task:
    def __init__(self, function):
        self._function = function

    def __call__(self, *arguments, **more):
        global depth, was_stopped
        depth, was_stopped = depth + 1, False
        _mark()
        try:
            return self._function(*arguments, **more)
        except SystemExit:
            if not was_stopped:
                raise
        finally:
            depth, was_stopped = depth - 1, False
            _mark(ends=True)


def _file(of):
    return os.path.join(SESSION, f"task.{of}")


@guarded("tasks of a pool")
def _mark(ends=False):
    """Others see by it who is at work."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(_file(os.getpid())) if ends else open(_file(os.getpid()), "w").close()


@guarded("tasks beside a stopped one")
def wait_for_those_beside():
    """What the task has stays taken until those that are at work with it have come as far: real trainings go on, whichever begins first."""
    me, since = os.getpid(), time.monotonic()
    others = {name for name in os.listdir(SESSION) if name.startswith("task.") and name != f"task.{me}"}
    os.rename(_file(me), _file(f"{me}.stopped"))
    while others and time.monotonic() - since < _LONGEST:
        others = {name for name in others if os.path.exists(os.path.join(SESSION, name)) and os.path.exists(f"/proc/{name.split('.')[1]}")}
        others = {name for name in others if not name.endswith(".stopped")}
        time.sleep(0.02)
    with contextlib.suppress(FileNotFoundError):
        os.remove(_file(f"{me}.stopped"))
