"""The session that this process belongs to."""

import ctypes
import json
import os
import sys
import types

# Its folder, in which processes write. As this process was started: a script may remove it from its environment.
SESSION = os.environ["VRAMLAB_REHEARSAL"]


def read():
    """What the rehearsal was asked for; `Rehearsal` in src/rehearse/src/run/executor.rs says of each what it is."""
    with open(os.path.join(SESSION, "settings.json")) as file:
        asked = json.load(file)
    # Of a job of so many processes, of which this one is that rank and the others are not there.
    asked["rank"], asked["world_size"] = asked["rank"] or (None, None)
    return asked


settings = types.SimpleNamespace(**read())
# The libraries that stand in for NVIDIA's, by their names.
simulated = {}
# What the answer is to say of how this process was started.
remarks = []


def counted(function):
    """What a function of the simulated driver counts; 0 where it is not there."""
    count = getattr(simulated.get("libnvidia-ml.so.1"), function, None)
    if count is None:
        return 0
    count.restype = ctypes.c_uint64
    return count()


def fail(reason):
    """Ends this process, and the rehearsal: what cannot be rehearsed must not run on."""
    path = os.path.join(SESSION, "failed")
    try:
        # The program ends all processes as soon as the file is there, so that it must come whole.
        with open(f"{path}.{os.getpid()}", "w", errors="replace") as file:
            file.write(reason)
        os.rename(file.name, path)
        sys.stdout.flush()
    finally:
        os.write(2, f"vramlab: {reason}\n".encode("utf-8", "replace"))
        os._exit(2)


def use_the_caching_allocator():
    """PyTorch's others tell nobody what they do. What tensors ask for is the same; what is reserved for them is not."""
    if settings.measures:
        return
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        wanted = os.environ.get(name, "").split(",")
        kept = [part for part in wanted if "".join(part.split()) != "backend:cudaMallocAsync"]
        if kept != wanted:
            os.environ[name] = ",".join(kept)
            remarks.append(
                "backend:cudaMallocAsync is rehearsed with PyTorch's own allocator: peaks of tensors are the same, what CUDA's pool reserves for them is not known"
            )
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "0") not in ("", "0"):
        del os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"]
        remarks.append("PYTORCH_NO_CUDA_MEMORY_CACHING is rehearsed with the cache: peaks of tensors are the same, no more is reserved without it")
