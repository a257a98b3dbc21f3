"""This process under rehearsal: what is put in place at its start, how it is stopped, how it ended."""

import atexit
import collections
import itertools
import os
import resource
import sys
import threading
import traceback

from . import counting, device, distributed, labels, loading, reach, steps, switches
from .notes import note, open_folder
from .session import settings

_stopped = False


def begin(torch):
    """Opens this process's folder, and puts everything in place that waits for CUDA. False where that cannot be, which is noted."""
    open_folder()
    rank = os.environ.get("RANK", "") if settings.rank is None else str(settings.rank)
    note(
        process=os.getpid(),
        parent=os.getppid(),
        arguments=getattr(sys, "orig_argv", sys.argv),
        executable=sys.executable,
        python=sys.version.split()[0],
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        rank=int(rank) if rank.isdigit() else None,
        alloc_conf=os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
    )
    refused = device.refuse(torch)
    if refused:
        note(refused=refused)
        return False
    _watch_exceptions(torch)
    atexit.register(_ended)
    if settings.measures:
        from . import measuring

        measuring.follow(torch, stop)
    else:
        device.wait_for_cuda(torch, _follow)
        labels.follow()
        switches.follow(torch)
        steps.leave_out_trials()
        distributed.follow(torch)
        reach.follow(torch)
        loading.follow(torch)
    if settings.techniques:
        from . import techniques

        techniques.begin(torch)
    return True


def _follow(torch):
    steps.follow(torch, stop)


def stop(after):
    """Ends the script as if it had ended by itself; one step later where its operations are to be counted."""
    global _stopped
    again = _stopped
    if not _stopped:
        device.hold()
        _label_everything()
        device.ended(True)
        if device.library is not None:
            reach.tell()
            loading.tell()
            _tell_keepers()
        note(stopped=after)
        _stopped = True
        if settings.counts:
            return counting.begin()
    elif counting.end():
        again = False
    if threading.current_thread() is threading.main_thread() and not again:
        raise SystemExit(0)
    # In another thread, or where the script has caught SystemExit and gone on.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _tell_keepers():
    """Variables of the script, and attributes of its objects, that hold tensors of several steps: lists of them, and sums with their graphs."""
    told = set()
    frame = sys._getframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if reach.is_own(file):
            for name, value in list(frame.f_locals.items()):
                parts = list(vars(value).items())[:200] if type(value).__module__ == "__main__" and hasattr(value, "__dict__") else []
                for name, value in [(name, value), *((f"{name}.{part}", of) for part, of in parts)]:
                    what = _holds(value)
                    if what and id(value) not in told:
                        told.add(id(value))
                        note(keeps=name, what=what, file=file, function=frame.f_code.co_name)
        frame = frame.f_back


def _holds(value):
    if isinstance(value, (list, tuple, set, dict, collections.deque)):
        members = list(itertools.islice(value.values() if isinstance(value, dict) else value, 10000))
        tensors = sum(1 for each in members if getattr(each, "is_cuda", False) is True and getattr(each, "grad_fn", None) is not None)
        return f"a {type(value).__name__} of {tensors} tensors with their graphs" if tensors > 1 else None
    # Of a class that extends Tensor, `is_cuda` is a descriptor.
    depth, node = 0, getattr(value, "grad_fn", None) if getattr(value, "is_cuda", False) is True else None
    while node is not None and node.name() == "AddBackward0" and depth < 100:
        depth += 1
        node = next((of for of, _ in node.next_functions if of is not None), None)
    return f"a sum with the graphs of {depth} steps or more" if depth > 1 else None


def _ended():
    note(ended=True)
    # Linux counts it in KiB.
    note(host_memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
    if not _stopped:
        reach.tell_batches()
        loading.tell()
    device.tell_of_third_party(failed=False)
    _label_everything()
    device.ended(_stopped)
    device.close()


def _label_everything():
    """Before the end: gradients and buffers that no optimizer's step has shown."""
    if device.library is not None:
        labels.label_all()


def _is_of_memory(torch, value):
    """Whether it is that memory ran out, or what a script made of that."""
    seen = set()
    while value is not None and id(value) not in seen:
        if isinstance(value, torch.OutOfMemoryError):
            return True
        seen.add(id(value))
        value = value.__cause__ or (None if value.__suppress_context__ else value.__context__)
    return False


def _watch_exceptions(torch):
    def noted(kind, value, trace):
        frames = [[frame.filename, frame.lineno or 0, frame.name] for frame in traceback.extract_tb(trace)]
        out_of_memory = _is_of_memory(torch, value)
        # What is alive is still there.
        _label_everything()
        device.tell_of_third_party(failed=True)
        note(
            exception=f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__,
            message=str(value),
            out_of_memory=out_of_memory,
            frames=frames,
        )

    before = sys.excepthook

    def excepthook(kind, value, trace):
        noted(kind, value, trace)
        # What a script has put here itself, else Python's.
        before(kind, value, trace)

    sys.excepthook = excepthook
    in_threads = threading.excepthook

    def in_thread(arguments):
        if arguments.exc_type is not SystemExit and arguments.exc_value is not None:
            noted(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
        in_threads(arguments)

    threading.excepthook = in_thread
