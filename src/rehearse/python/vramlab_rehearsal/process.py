"""This process in the report: its folder, what is noted there, how it ended."""

import atexit
import json
import os
import sys
import threading
import time
import traceback

folder = ""
_names = -1
_owner = 0
_stopped = False


def begin(torch):
    """Opens this process's folder, and puts everything in place that waits for CUDA. False where that cannot be, which is noted."""
    global folder, _names, _owner
    _owner = os.getpid()
    folder = os.path.join(os.environ["VRAMLAB_REHEARSAL"], f"{_owner}-{time.monotonic_ns()}")
    os.makedirs(folder)
    _names = os.open(os.path.join(folder, "names"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    rank = os.environ.get("VRAMLAB_REHEARSAL_RANK") or os.environ.get("RANK")
    note(
        process=_owner,
        parent=os.getppid(),
        arguments=getattr(sys, "orig_argv", sys.argv),
        python=sys.version.split()[0],
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        rank=int(rank) if rank and rank.isdigit() else None,
        alloc_conf=os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
    )
    from . import device, distributed, switches

    refused = device.refuse(torch)
    if refused:
        note(refused=refused)
        return False
    _watch_exceptions(torch)
    atexit.register(_ended)
    if os.environ.get("VRAMLAB_REHEARSAL_MEASURE"):
        from . import measuring

        measuring.follow(torch)
    else:
        device.wait_for_cuda(torch)
        switches.follow(torch)
        distributed.follow(torch)
    if os.environ.get("VRAMLAB_REHEARSAL_TECHNIQUES"):
        from . import techniques

        techniques.begin(torch)
    return True


def note(**line):
    """One line of the file `names`, written at once."""
    if os.getpid() == _owner:
        os.write(_names, (json.dumps(line) + "\n").encode("utf-8", "replace"))


def stop(steps):
    """Ends the script as if it had ended by itself; one step later where its operations are to be counted."""
    global _stopped
    from . import counting

    again = _stopped
    if not _stopped:
        from . import device

        device.ended(True)
        note(stopped=steps)
        _stopped = True
        if os.environ.get("VRAMLAB_REHEARSAL_COUNTS"):
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


def _ended():
    note(ended=True)
    from . import device

    device.tell_of_strangers(failed=False)
    device.ended(_stopped)
    device.close()


def _watch_exceptions(torch):
    from . import device

    def noted(kind, value, trace):
        frames = [[frame.filename, frame.lineno or 0, frame.name] for frame in traceback.extract_tb(trace)]
        out_of_memory = isinstance(value, torch.OutOfMemoryError)
        # What is alive is still there.
        device.label_everything()
        device.tell_of_strangers(failed=True)
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
