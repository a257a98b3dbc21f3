"""Python's half of `vramlab rehearse`: puts a simulated GPU under this process's PyTorch and tells the trace what the script is doing.

Nothing happens before the script imports torch but for two small libraries, which stand in for the CUDA runtime and driver; what a process
that never touches CUDA pays is their loading.
"""

import ctypes
import os
import sys

from . import imports

LIBRARIES = os.environ.get("VRAMLAB_REHEARSAL_LIBRARIES", "")
simulated = {}


def begin():
    # Ranks of one host, which torchrun or accelerate started, choose their card by their number.
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    if ranks.isdigit() and int(ranks) > int(os.environ.get("VRAMLAB_DRY_DEVICES", "1")):
        os.environ["VRAMLAB_DRY_DEVICES"] = ranks
    # Before anybody else can open the real ones: the dynamic loader finds a library that is loaded by its soname.
    if "VRAMLAB_REHEARSAL_MEASURE" not in os.environ:
        for name in ("libnvidia-ml.so.1", "libcuda.so.1", "libnvrtc.so.12", "libnvrtc.so.13"):
            simulated[name] = ctypes.CDLL(os.path.join(LIBRARIES, name), ctypes.RTLD_GLOBAL)
    _say("python")
    imports.when_imported("torch", _torch_is_there, lambda: _say("without-torch"))


def _say(what):
    """That this Python was here, for the answer where there is nothing else to tell."""
    path = os.path.join(os.environ["VRAMLAB_REHEARSAL"], f"{os.getpid()}.{what}")
    with open(path, "w") as file:
        file.write(sys.executable)


def _torch_is_there(torch):
    from . import process

    if not process.begin(torch):
        sys.exit(2)
