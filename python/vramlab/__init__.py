"""What PyTorch training would need of a GPU's memory, to the byte, on a machine that has none.

    report = vramlab.rehearse(train, gpu="rtx-4090")
    print(report)
    assert report.fits and report.peak_reserved < 20 << 30

`train` runs unmodified, in a process of its own, on a simulated GPU: PyTorch's own caching allocator makes every allocation, and nothing is
computed. Scripts are rehearsed by the program: `vramlab rehearse -- python train.py`.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Sequence

__all__ = ["RehearsalError", "Report", "rehearse"]

PROGRAM = str(Path(__file__).with_name("bin") / "vramlab")
CALLED = str(Path(__file__).with_name("called.py"))
DOES_NOT_FIT = 3


class RehearsalError(RuntimeError):
    """The function failed for another reason than memory, or there was nothing to rehearse."""


@dataclass(frozen=True)
class Report:
    """What a rehearsal showed. Sizes are in bytes; printed, it is what the program prints."""

    fits: bool
    #: Name and memory of the simulated GPU.
    gpu: str
    gpu_memory: int
    #: Optimizer steps that ended.
    steps: int
    #: `torch.cuda.memory_stats()["requested_bytes.all.peak"]`, and PyTorch's `max_memory_allocated()` and `max_memory_reserved()`.
    peak_requested: int
    peak_allocated: int
    peak_reserved: int
    #: What is left of the GPU, beside the CUDA context, too; negative where it does not fit.
    headroom: int
    #: The smallest memory of a GPU on which it runs, its CUDA context included; None where that could not be found.
    needs_at_least: int | None
    #: What fills the peak: parameters, gradients, optimizer state, activations, ...
    categories: dict[str, int]
    notes: list[str]
    text: str = field(repr=False)
    #: What the function printed.
    output: str = field(repr=False)
    #: All of it, as `vramlab rehearse --json` writes it.
    json: dict[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return self.text


def rehearse(
    function: Callable[..., object],
    args: Sequence[Any] = (),
    *,
    gpu: str = "24GiB",
    gpus: int = 1,
    steps: int | None = 3,
    no_init: bool = False,
    eager: bool = False,
    timeout: float | None = None,
) -> Report:
    """Runs `function(*args)` on a simulated GPU, and ends it after so many optimizer steps; `steps=None` lets it run to its end.

    It runs in another process, so what it gives back or changes here is lost, and what it needs has to get there: functions of a module or
    of a script (which guards its own work by `if __name__ == "__main__"`) do by their names, those of a notebook and local ones do where
    cloudpickle is installed.

    Raises RehearsalError where the function fails for another reason than memory, or never uses the GPU.
    """
    if not callable(function):
        raise TypeError(f"{function!r} is no function; scripts are rehearsed by `python -m vramlab rehearse -- python train.py`")
    if CALLED in getattr(sys, "orig_argv", ()):
        raise RehearsalError(
            "vramlab.rehearse was called again, by the process that a rehearsal started: that process imports the script to find the function. "
            'Put what the script does itself below `if __name__ == "__main__":`'
        )
    with tempfile.TemporaryDirectory(prefix="vramlab-") as folder:
        call, output, answer = (Path(folder, name) for name in ("call", "output", "answer.json"))
        call.write_bytes(_call(function, args))
        output.touch()
        flags = ["--gpu", gpu, "--gpus", str(gpus), "--steps", "all" if steps is None else str(steps), "--json", str(answer)]
        if no_init:
            flags.append("--no-init")
        if eager:
            flags.append("--eager")
        if timeout is not None:
            flags += ["--timeout", str(timeout)]
        command = [sys.executable, CALLED, str(call)]
        with open(output, "ab") as printed_to:
            process = subprocess.Popen(
                [PROGRAM, "rehearse", *flags, "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=printed_to,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        try:
            _, said = process.communicate()
        except BaseException:
            # A Ctrl-C: the program ends what it has started, and then itself.
            process.terminate()
            process.communicate()
            raise
        printed = output.read_text(errors="replace")
        if process.returncode not in (0, DOES_NOT_FIT):
            # What it printed has the exception; the answer as far as it came is no help.
            told = said.strip().split("; until then:")[0]
            raise RehearsalError(f"{printed.strip()}\n{told}".strip())
        found = json.loads(answer.read_text())
    peaks = [process["peak"]["categories"] for process in found["processes"][:1]]
    return Report(
        fits=process.returncode == 0,
        gpu=found["gpu"]["name"],
        gpu_memory=found["gpu"]["memory"],
        steps=found["steps"],
        peak_requested=found["peak_requested"],
        peak_allocated=found["peak_allocated"],
        peak_reserved=found["peak_reserved"],
        headroom=found["headroom"],
        needs_at_least=found["needs_at_least"],
        categories={held["name"]: held["bytes"] for peak in peaks for held in peak},
        notes=found["notes"],
        # Without what was said on the way, which is more on a slow machine.
        text="\n".join(line for line in said.splitlines() if not line.startswith("vramlab: ")).strip(),
        output=printed,
        json=found,
    )


def _call(function: Callable[..., object], args: Sequence[Any]) -> bytes:
    """What called.py reads: how to become a process like this one, and what to call there."""
    from multiprocessing import spawn

    like_this_one = spawn.get_preparation_data("rehearsal")
    # A key between processes that talk to one another, which these do not.
    like_this_one.pop("authkey", None)
    by_name = hasattr(sys.modules["__main__"], "__file__") or function.__module__ != "__main__"
    try:
        called = pickle.dumps((function, tuple(args))) if by_name else None
    except (pickle.PicklingError, AttributeError, TypeError):
        called = None
    if called is None:
        try:
            import cloudpickle
        except ImportError:
            name = getattr(function, "__qualname__", repr(function))
            raise RehearsalError(
                f"{name} cannot be found by another process: it is local, or made in a notebook. "
                f"Install cloudpickle ({os.path.basename(sys.executable)} -m pip install cloudpickle), or put it into a module"
            ) from None
        called = cloudpickle.dumps((function, tuple(args)))
    return pickle.dumps(like_this_one) + called
