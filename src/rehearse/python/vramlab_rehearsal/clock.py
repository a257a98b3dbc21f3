"""The script's clocks. With --clock `time.time` and `time.perf_counter` advance by the predicted time of what was launched, as CUDA's events always
do where the card has a speed; without it a script that reads them is told that they are this machine's."""

import ast
import functools
import os
import sys
import time

from . import device
from .guard import guarded
from .notes import note
from .session import settings

_real = {"time": time.time, "perf_counter": time.perf_counter}
# What they said when CUDA came up, and the last that was predicted since.
_began = {}
_last = 0.0
# Seconds that the script has slept, or waited for data, since they were read; and what they said at the last batch.
_idle = 0.0
_at_batch = 0.0
# Python forgets the script's file before it ends.
_script = ""


def follow():
    """Before the script's first line: it may take the functions out of their module."""
    if settings.clocks and settings.clock:
        for name, real in _real.items():
            setattr(time, name, _clock(name, real, 1))
            setattr(time, f"{name}_ns", _clock(name, getattr(time, f"{name}_ns"), 1_000_000_000))
        time.sleep = _sleeping(time.sleep)
        if "timeit" in sys.modules:
            sys.modules["timeit"].default_timer = time.perf_counter


def begin():
    """CUDA has come up."""
    global _script
    _script = os.path.abspath(getattr(sys.modules.get("__main__"), "__file__", None) or "")
    if settings.clock:
        device.library.vl_open_clock(settings.clock.encode())
        _began.update((name, real()) for name, real in _real.items())


@guarded("the script's clock")
def _predicted():
    global _last, _idle
    if not _began or device.library is None:
        return None
    idle, _idle = _idle, 0.0
    said = device.library.vl_clock(idle)
    if said < 0:
        return None
    _last = max(_last, said)
    return _last


def _clock(name, real, unit):
    @functools.wraps(real)
    def clock():
        said = _predicted()
        if said is None:
            return real()
        return _began[name] + said if unit == 1 else int((_began[name] + said) * unit)

    return clock


def _sleeping(real):
    @functools.wraps(real)
    def sleep(seconds, /):
        global _idle
        real(seconds)
        _idle += seconds

    return sleep


def is_followed():
    return settings.clocks and bool(_began)


@guarded("the wait for a batch")
def waited_for_data(seconds):
    """What of it the card did not work meanwhile."""
    global _idle, _at_batch
    now = _predicted() or 0.0
    wait = max(0.0, seconds - (now - _at_batch))
    _idle += wait
    _at_batch = now + wait


@guarded("whether the script reads a clock")
def tell():
    if settings.clocks:
        if not settings.clock:
            note(note="--clock: no time can be predicted of a size alone, so the script's clocks are this machine's; name a card, as in --gpu rtx-4090")
        return
    from . import reach

    for file in dict.fromkeys((_script, *reach.own_files())):
        tree = reach.parsed(file) if reach.is_own(file) else None
        lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and _reads(node.func)] if tree else []
        if lines:
            return note(
                note=f"the script reads the clock ({os.path.basename(file)}:{min(lines)}): what it prints of times and rates is this machine's, where nothing is "
                "computed; --clock has its clocks advance by predicted time"
            )


def _reads(function):
    text = ast.unparse(function) if isinstance(function, (ast.Name, ast.Attribute)) else ""
    return text in ("time.time", "time.time_ns") or text.split(".")[-1] in ("perf_counter", "perf_counter_ns", "default_timer")
