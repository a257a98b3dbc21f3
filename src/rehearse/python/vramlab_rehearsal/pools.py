"""Pools of processes, and sweeps: a training that is stopped ends its task alone, and the next one begins as it would without us.

A worker that ended with its task would break the pool, or leave the one that waits for its result waiting for ever; and of a sweep, whose jobs one
process has one after the other, the first says nothing of the others.
"""

import contextlib
import functools
import os
import sys
import threading
import time

from . import imports
from .guard import guarded, instead
from .session import SESSION

# As long as a task that was stopped waits for those beside it, in seconds.
_LONGEST = 60
# Jobs of a sweep that a process goes through, and what those have for a result that were stopped.
MOST_JOBS, _RESULT = 16, 1.0



class _Here(threading.local):
    """Tasks that a thread carries out, one within the other, and whether the innermost was stopped."""

    depth = 0
    was_stopped = False


here = _Here()
# Whether no task follows in this process, and the jobs of sweeps that it began and that were stopped.
is_last = False
jobs = stopped = 0


def follow():
    imports.when_imported("multiprocessing.pool", _watch_pools)
    for module in ("concurrent.futures.process", "joblib.externals.loky.process_executor", "loky.process_executor"):
        imports.when_imported(module, _watch_executors)
    imports.when_imported("hydra.core.utils", _watch_hydra)
    imports.when_imported("optuna.study._optimize", _watch_studies)
    imports.when_imported("submitit.core.utils", _watch_submissions)


def goes_on():
    """Whether another task may follow the one that is stopped."""
    return here.depth > 0 and jobs < MOST_JOBS


def _watch_hydra(module):
    @instead("run_job", module)
    def run_job(task_function, config, *arguments, **more):
        is_one_of_several = getattr(config.hydra.mode, "name", "") == "MULTIRUN"
        return run_job.__wrapped__(_Job(task_function) if is_one_of_several else task_function, config, *arguments, **more)


def _watch_studies(module):
    @instead("_run_trial", module)
    def run_trial(study, function, *arguments, **more):
        values = [_RESULT] * len(study.directions)
        return run_trial.__wrapped__(study, _Job(function, values if len(values) > 1 else _RESULT), *arguments, **more)


def _watch_pools(module):
    @instead("worker", module)
    def worker(inqueue, *arguments, **more):
        return worker.__wrapped__(_Tasks(inqueue), *arguments, **more)


def _watch_executors(module):
    @instead("_process_worker", module)
    def worker(call_queue, *arguments, **more):
        return worker.__wrapped__(_Tasks(call_queue), *arguments, **more)


def _watch_submissions(module):
    @instead("result", module.DelayedSubmission)
    def result(self):
        global is_last
        # A process has one; of those that run in the process that submits them nothing is to be stopped.
        if getattr(sys.modules["__main__"].__spec__, "name", "") == "submitit.core._submit" and not is_last:
            is_last = True
            self.function = _Task(self.function)
        return result.__wrapped__(self)


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
            task.fn = functools.partial(task.fn.func, _Task(*task.fn.args)) if is_chunk else _of_joblib(task.fn) or _Task(task.fn)
        return task


def _of_joblib(function):
    """Its workers are given several calls at once, whose results are one list."""
    calls = getattr(function, "items", None)
    if not (isinstance(calls, list) and all(type(call) is tuple and len(call) == 3 for call in calls)):
        return None
    function.items = [(_Task(called), given, named) for called, given, named in calls]
    return function


class _Task:
    def __init__(self, function, result=None):
        self._function = function
        self._result = result

    def __call__(self, *arguments, **more):
        here.depth, here.was_stopped = here.depth + 1, False
        _mark()
        try:
            return self._function(*arguments, **more)
        except SystemExit:
            if not here.was_stopped:
                raise
            return self._result
        finally:
            here.depth, here.was_stopped = here.depth - 1, False
            _mark(ends=True)


class _Job(_Task):
    """Of a sweep, whose results are numbers that nobody computed."""

    def __init__(self, function, result=_RESULT):
        super().__init__(function, result)

    def __call__(self, *arguments, **more):
        global jobs
        jobs += 1
        return super().__call__(*arguments, **more)


def _me():
    return f"{os.getpid()}.{threading.get_ident()}"


def _file(of):
    return os.path.join(SESSION, f"task.{of}")


@guarded("tasks of a pool")
def _mark(ends=False):
    """Others see by it who is at work."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(_file(_me())) if ends else open(_file(_me()), "w").close()


@guarded("tasks beside a stopped one")
def wait_for_those_beside():
    """What the task has stays taken until those that are at work with it have come as far: real trainings go on, whichever begins first."""
    me, since = _me(), time.monotonic()
    others = {name for name in os.listdir(SESSION) if name.startswith("task.") and name != f"task.{me}"}
    os.rename(_file(me), _file(f"{me}.stopped"))
    while others and time.monotonic() - since < _LONGEST:
        others = {name for name in others if os.path.exists(os.path.join(SESSION, name)) and os.path.exists(f"/proc/{name.split('.')[1]}")}
        others = {name for name in others if not name.endswith(".stopped")}
        time.sleep(0.02)
    with contextlib.suppress(FileNotFoundError):
        os.remove(_file(f"{me}.stopped"))
