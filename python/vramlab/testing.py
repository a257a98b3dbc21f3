"""A plugin of pytest, which finds it by itself once vramlab is installed: a memory test of a script.

    def test_memory(vramlab_peak):
        assert vramlab_peak("python train.py", gpu="rtx-4090", kept="memory.json", tolerance="1%") < 20 << 30

`pytest --vramlab-update` writes what is kept anew.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Callable, Sequence

import pytest

from . import PROGRAM


def peak(
    command: str | Sequence[str],
    gpu: str = "24GiB",
    *,
    kept: str | Path | None = None,
    tolerance: str = "0%",
    flags: Sequence[str] = (),
    update: bool = False,
) -> int:
    """Rehearses a command on a simulated GPU and gives the most bytes that PyTorch's allocator has reserved (`max_memory_reserved`).

    Fails where the command fails, does not fit, or takes more than what is `kept` by `--check FILE --update`. `flags` are more of `vramlab rehearse`.
    """
    __tracebackhide__ = True
    words = shlex.split(command) if isinstance(command, str) else list(map(str, command))
    words[:1] = [sys.executable if name in ("python", "python3") else name for name in words[:1]]
    with tempfile.TemporaryDirectory(prefix="vramlab-") as folder:
        answer = Path(folder, "answer.json")
        check = ["--check", str(kept), *(["--update"] if update else ["--tolerance", tolerance])] if kept else []
        if kept and not update and not Path(kept).exists():
            pytest.fail(f"there is no {kept} yet: pytest --vramlab-update writes it", pytrace=False)
        rehearse = [PROGRAM, "rehearse", "--gpu", gpu, "--json", str(answer), *check, *flags, "--", *words]
        done = subprocess.run(rehearse, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
        if done.returncode:
            said = done.stdout + done.stderr
            # pytest's summary shows the first line.
            news = re.findall(r"^(?:GREW|DOES NOT FIT|THE SCRIPT FAILED|vramlab: (?!still running)).*", said, re.M)
            news = (news or ["the rehearsal failed"])[0]
            pytest.fail(f"{news}\n{shlex.join(rehearse)}: exit status {done.returncode}\n{said}", pytrace=False)
        return json.loads(answer.read_text())["peak_reserved"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("vramlab").addoption("--vramlab-update", action="store_true", help="write what vramlab_peak keeps anew")


@pytest.fixture
def vramlab_peak(request: pytest.FixtureRequest) -> Callable[..., int]:
    """`vramlab_peak(command, gpu, kept=FILE, tolerance="1%")`: see `vramlab.testing.peak`."""
    update = request.config.getoption("--vramlab-update")
    return lambda *args, **named: peak(*args, **{"update": update, **named})
