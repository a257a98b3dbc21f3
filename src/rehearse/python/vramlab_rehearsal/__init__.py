"""Python's half of `vramlab rehearse`: puts a simulated GPU under this process's PyTorch and tells the trace what the script is doing.

`begin` is called before the script's first line, or before torch is imported, whichever comes first (`src/sim/native/start.cpp`). Nothing happens
before the script imports torch but for two small libraries, which stand in for the CUDA runtime and driver; what a process that never touches
CUDA pays is their loading.
"""

import ctypes
import json
import os
import sys
import types

from . import imports

# The session's folder, in which processes write. As this process was started: a script may remove it from its environment.
SESSION = os.environ["VRAMLAB_REHEARSAL"]
# What the rehearsal was asked for; `Settings` in src/rehearse/src/run/session.rs says of each what it is.
with open(os.path.join(SESSION, "settings.json")) as _file:
    settings = types.SimpleNamespace(**json.load(_file))
simulated = {}


def begin():
    # Ranks of one host, which torchrun or accelerate started, choose their card by their number.
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    if ranks.isdigit() and int(ranks) > settings.gpus:
        os.environ["VRAMLAB_DRY_DEVICES"] = ranks
    # Before anybody else can open the real ones: the dynamic loader finds a library that is loaded by its soname.
    if not settings.measures:
        for name in ("libnvidia-ml.so.1", "libcuda.so.1", "libnvrtc.so.12", "libnvrtc.so.13"):
            simulated[name] = ctypes.CDLL(os.path.join(settings.libraries, name), ctypes.RTLD_GLOBAL)
        # It reads its settings now.
        simulated["libnvidia-ml.so.1"].cudaMemGetInfo(ctypes.byref(ctypes.c_size_t()), ctypes.byref(ctypes.c_size_t()))
    imports.when_imported("torch", _torch_is_there, _torch_is_missing)


def fail(reason):
    """Ends this process, and the rehearsal: what cannot be rehearsed must not run on."""
    try:
        with open(os.path.join(SESSION, "failed"), "w", errors="replace") as file:
            file.write(reason)
        sys.stdout.flush()
    finally:
        os.write(2, f"vramlab: {reason}\n".encode("utf-8", "replace"))
        os._exit(2)


def _torch_is_missing():
    with open(os.path.join(SESSION, f"{os.getpid()}.without-torch"), "w") as file:
        file.write(sys.executable)


def _torch_is_there(torch):
    from . import process

    if not process.begin(torch):
        # Why is noted.
        sys.stdout.flush()
        os._exit(2)
