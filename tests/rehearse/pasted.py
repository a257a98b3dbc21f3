"""Runs scripts one after the other, each from an empty allocator, and prints what each needed at most: its name, allocated, reserved."""

import gc
import sys
from pathlib import Path

import torch

for path in sys.argv[1:]:
    source = Path(path)
    sys.argv = [path]
    assert torch.cuda.memory_reserved() == 0, f"what ran before {path} left {torch.cuda.memory_reserved()} bytes"
    torch.cuda.reset_peak_memory_stats()
    exec(compile(source.read_text(), path, "exec"), {"__name__": "__main__"})
    print(source.stem, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
