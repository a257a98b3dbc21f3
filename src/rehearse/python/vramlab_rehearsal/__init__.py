"""Python's half of `vramlab rehearse`: puts a simulated GPU under this process's PyTorch and tells the trace what the script is doing.

`begin` is called before the script's first line, or before torch is imported, whichever comes first (`src/sim/native/start.cpp`). Nothing happens
before the script imports torch but for two small libraries, which stand in for the CUDA runtime and driver; what a process that never touches
CUDA pays is their loading.
"""

import ctypes
import os
import sys

from . import imports
from .session import SESSION, remarks, settings, simulated, use_the_caching_allocator


def begin():
    # Ranks of one host, which torchrun or accelerate started, choose their card by their number.
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    if settings.gpus is None and ranks.isdigit() and int(ranks) > 1:
        os.environ["VRAMLAB_DRY_DEVICES"] = ranks
        remarks.append(f"the simulated machine has {ranks} GPUs, one for each rank that was started on it; --gpus says how many it has")
    use_the_caching_allocator()
    # Before anybody else can open the real ones: the dynamic loader finds a library that is loaded by its soname.
    if not settings.measures:
        for name in ("libnvidia-ml.so.1", "libcuda.so.1", "libnvrtc.so.12", "libnvrtc.so.13"):
            simulated[name] = ctypes.CDLL(os.path.join(settings.libraries, name), ctypes.RTLD_GLOBAL)
        # It reads its settings now, and makes no context.
        simulated["libnvidia-ml.so.1"].vramlab_dry_memory()
    imports.when_imported("torch", _torch_is_there, _torch_is_missing, before=use_the_caching_allocator)


def _torch_is_missing():
    try:
        with open(os.path.join(SESSION, f"{os.getpid()}.without-torch"), "w") as file:
            file.write(sys.executable)
    except OSError:
        # The script's own error says it.
        pass


def _torch_is_there(torch):
    with imports.of_python_alone():
        from . import process

    if not process.begin(torch):
        # Why is noted.
        sys.stdout.flush()
        os._exit(2)
