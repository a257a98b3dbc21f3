"""This process under rehearsal: what is put in place at its start, how it is stopped, how it ended."""

import atexit
import contextlib
import functools
import gc
import multiprocessing
import os
import sys
import threading
import time
import traceback
from multiprocessing import util

from . import clock, counting, device, distributed, extensions, hosting, imports, labels, loading, notes, passes, pools, reach, serving, steps, switches
from .guard import guarded, instead
from .notes import note
from .session import settings

_SEED = 67280421310721
# Seconds that a process has to end in when it is told to.
_TO_END = 5
_stopped = False
# Whether what the script has and was not come to is noted.
_told = False
# Ids of processes that have written their end.
_ended_in = 0


def _versions():
    """Of the packages that somebody wants to know them of."""
    from importlib import metadata

    found = {}
    for name in filter(None, os.environ.get("VRAMLAB_REHEARSAL_PACKAGES", "").split(",")):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def begin(torch):
    """Opens this process's folder, and puts everything in place that waits for CUDA. False where that cannot be, which is noted."""

    def introduction():
        rank = os.environ.get("RANK", "") if settings.rank is None else str(settings.rank)
        return dict(
            process=os.getpid(),
            parent=os.getppid(),
            began=time.monotonic_ns(),
            libraries=imports.libraries(),
            arguments=getattr(sys, "orig_argv", sys.argv),
            executable=sys.executable,
            python=sys.version.split()[0],
            torch=str(torch.__version__),
            packages=_versions(),
            cuda=torch.version.cuda,
            rank=int(rank) if rank.isdigit() else None,
            version=settings.version,
            alloc_conf=os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
        )

    notes.begin(introduction, device.tell_status)
    hosting.begin()
    refused = device.refuse(torch)
    if refused:
        note(refused=refused)
        return False
    _watch_exceptions(torch)
    _watch_children(torch)
    _watch_exits(os)
    atexit.register(_ended)
    if settings.measures:
        from . import measuring

        measuring.Meter(torch, stop)
    else:
        # PyTorch starts from another number in each process, and rehearsals are compared. A script that cares sets its own.
        torch.default_generator.manual_seed(_SEED)
        device.wait_for_cuda(torch, _follow)
        labels.follow()
        passes.follow(stop)
        serving.follow(stop, functools.partial(_noted, torch))
        switches.follow(torch)
        steps.leave_out_trials()
        steps.watch_cpu(torch, stop)
        distributed.follow(torch)
        extensions.follow()
        reach.follow(torch)
        loading.follow(torch)
    if settings.techniques:
        from . import techniques

        techniques.begin(torch)
    return True


def _follow(torch):
    clock.begin()
    steps.follow(torch, stop)


def stop(after, passes_made=0, why=None):
    """Ends the script as if it had ended by itself; one step later where its operations are to be counted. After so many passes where it makes no
    steps. `why` is said in place of what was not run."""
    global _stopped, _told
    again = _stopped
    # The worker of a pool goes on with the next task, and a sweep with its next job.
    is_task = pools.goes_on() and not (again or settings.counts)
    if not again:
        if pools.jobs and not (is_task or settings.counts):
            note(unreached="further jobs of the sweep", what=f"after the first {pools.jobs}", file="", line=0)
        if not is_task or pools.is_last:
            device.hold()
        _label_everything()
        if device.library is not None and not _told:
            passes.look_at_variables()
        if not is_task:
            device.ended(2 if settings.counts else 1)
        note(host=hosting.measured())
        if device.library is not None and not _told:
            reach.tell()
            loading.tell()
            passes.tell()
            clock.tell()
        if not _told:
            note(stopped=after, at=time.monotonic_ns())
            if why:
                left = why
            elif passes_made:
                left = f"it makes forward passes without an end, and those after pass {passes_made} were not run: --passes N runs more of them"
            else:
                left = f"steps after step {after} were not run: what is larger later is in no figure here; --steps all runs the script to its end"
            note(note=left, about="ended")
            notes.mark("stopped")
        _told = True
        if is_task:
            pools.here.was_stopped = True
            pools.stopped += 1
            if pools.stopped > 1:
                note(trainings=pools.stopped)
            pools.wait_for_those_beside()
            raise SystemExit(0)
        _stopped = True
        if settings.counts:
            return counting.begin()
    elif counting.end():
        again = False
    if threading.current_thread() is threading.main_thread() and not again:
        raise SystemExit(0)
    # In another thread, or where the script has caught SystemExit and gone on. What the parent of a forked process has for its own end is not this one's.
    _end_children()
    (util._exit_function if _is_forked else atexit._run_exitfuncs)()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@guarded("the end of a server's other processes")
def _end_children():
    """They may wait for what the server sends them without an end, and Python for them."""
    children = [] if _is_forked else multiprocessing.active_children()
    for child in children:
        child.terminate()
    for child in children:
        child.join(_TO_END)
        child.kill()


@guarded("the process's end")
def _ended():
    global _ended_in
    if _ended_in == os.getpid() or not notes.is_own():
        return
    _ended_in = os.getpid()
    note(ended=True)
    note(host=hosting.measured())
    if not _told:
        reach.tell_batches()
        reach.tell_of_backward()
        loading.tell()
        passes.tell()
        clock.tell()
    device.tell_of_third_party(failed=False)
    _label_everything()
    device.ended(_stopped)
    device.close()
    device.leave_at_exit()
    # Nothing is recorded from here on, and as it ends Python would look for cycles in all of torch: a fifth of a short rehearsal.
    gc.freeze()


@guarded("labels")
def _label_everything():
    """Before the end: gradients and buffers that no optimizer's step has shown."""
    if device.library is not None:
        labels.label_all()
        labels.collect()


def _is_of_memory(torch, value):
    """Whether it is that memory ran out, or what a script made of that."""
    seen = set()
    while value is not None and id(value) not in seen:
        if isinstance(value, torch.OutOfMemoryError) or getattr(value, "is_of_memory", False):
            return True
        seen.add(id(value))
        value = value.__cause__ or (None if value.__suppress_context__ else value.__context__)
    return False


# What a process raises that waits for another one which has gone, or was sent away.
_OF_OTHERS = {"ConnectionError", "EOFError", "KeyboardInterrupt", "Empty", "DistError", "ProcessException", "ChildFailedError", "CalledProcessError"}


@guarded("the script's exception")
def _noted(torch, value, is_of_thread=False):
    frames = [[frame.filename, frame.lineno or 0, frame.name] for frame in traceback.extract_tb(value.__traceback__)]
    out_of_memory = _is_of_memory(torch, value)
    # What is alive is still there.
    _label_everything()
    device.tell_of_third_party(failed=True)
    kind = type(value)
    note(
        exception=f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__,
        message=_text(value),
        out_of_memory=out_of_memory,
        frames=frames,
        at=time.monotonic_ns(),
        of_thread=is_of_thread,
        of_others=any(each.__name__ in _OF_OTHERS for each in kind.__mro__) or "onnection " in _text(value),
    )


def _text(value):
    try:
        return str(value)
    except Exception as error:
        return f"its message raises {type(error).__name__}"


def _watch_exceptions(torch):
    before = sys.excepthook

    def excepthook(kind, value, trace):
        _noted(torch, value)
        _leave_out_ours(value)
        # What a script has put here itself, else Python's.
        before(kind, value, trace)

    sys.excepthook = excepthook
    in_threads = threading.excepthook

    def in_thread(arguments):
        if arguments.exc_type is not SystemExit and arguments.exc_value is not None:
            _noted(torch, arguments.exc_value, True)
        in_threads(arguments)

    threading.excepthook = in_thread


@guarded("our lines in the script's traceback")
def _leave_out_ours(value):
    """A traceback as the script has it, without our functions between its own."""

    def of_others(trace):
        while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
            trace = trace.tb_next
        return trace

    each = value.__traceback__ = of_others(value.__traceback__)
    while each is not None:
        each.tb_next = each = of_others(each.tb_next)


_is_forked = False


def _watch_exits(os):
    """Forked processes leave by it, and what their status says is nowhere else."""

    @instead("_exit", os)
    def _exit(status, *arguments):
        if status and not _stopped and notes.is_own():
            notes.mark("status", f"{status} {time.monotonic_ns()}")
        _exit.__wrapped__(status, *arguments)


def _watch_children(torch):
    """Processes of multiprocessing, whose exceptions it prints itself, and which leave without what is at Python's exit; and forked ones."""

    def forked():
        global _stopped, _told, _is_forked
        _stopped, _told, _is_forked = False, False, True
        # The card of the one that forked it is not to be used here.
        device.library = None

    @guarded("a child process's end")
    def ends():
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            # What was caught, printed and turned to a status.
            error = error.__context__ if error.code not in (None, 0) else None
        if error is not None and not _stopped:
            _noted(torch, error)
        _ended()

    def watched(_=None):
        # The first of what is done at its end, where the exception is still there. One that was spawned imports the script before it knows its parent.
        if multiprocessing.parent_process() is not None or getattr(multiprocessing.current_process(), "_inheriting", False):
            util.Finalize(None, ends, exitpriority=1 << 30)

    os.register_at_fork(after_in_child=forked)
    # A process that was forked begins by forgetting what its parent had to finalize.
    util.register_after_fork(watched, watched)
    watched()
