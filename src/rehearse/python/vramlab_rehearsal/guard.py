"""What stands between our functions and the script: nothing of ours raises into it.

What fails is left out, and noted with the reason. What a script must see passes: the end of a rehearsal, Ctrl-C, and what its own handlers of
signals raise, which can be while one of our functions runs.
"""

import functools
import os
import signal

from . import notes

# For a test: each of our functions fails, at each call (`always`) or at the first two (`at first`), before it has done anything and after it has;
# or those alone that are named, with | between them.
_fails = os.environ.get("VRAMLAB_REHEARSAL_FAILS")
_times = {}


def guarded(what):
    """Decorates a function of ours that is called from the script's own calls. `what` is noted as left out where it fails, and it gives None."""

    def around(function):
        if _fails and (_fails in ("always", "at first") or what in _fails.split("|")):
            function = _failing(function)

        @functools.wraps(function)
        def call(*arguments, **more):
            try:
                return function(*arguments, **more)
            except Exception as error:
                if _is_of_a_handler(error):
                    raise
                left_out(what, error)

        return call

    return around


def instead(name, *owners):
    """Decorates a function that is called in place of the owners' of that name, which it has as its `__wrapped__`; not where they have none."""
    original = getattr(owners[0], name, None)

    def put(function):
        if original is not None:
            functools.wraps(original)(function)
            for owner in owners:
                setattr(owner, name, function)
        return function

    return put


def left_out(what, error):
    _times[what] = times = _times.get(what, 0) + 1
    # A power of two: what fails at each call is noted a few times.
    if times & (times - 1) == 0:
        try:
            why = " ".join(str(error).split())[:300]
        except Exception:
            why = "?"
        notes.note(left_out=what, times=times, why=f"{type(error).__name__}: {why}")


def _is_of_a_handler(error):
    """Whether a handler of the script's raised it, which a signal called."""
    handlers = {getattr(signal.getsignal(each), "__code__", None) for each in signal.valid_signals()} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _failing(function):
    calls = 0

    @functools.wraps(function)
    def fails(*arguments, **more):
        nonlocal calls
        calls += 1
        if _fails != "at first" or calls == 1:
            raise RuntimeError("a test")
        result = function(*arguments, **more)
        if calls == 2:
            raise RuntimeError("a test")
        return result

    return fails
