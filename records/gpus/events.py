"""Each allocation of a program's first three steps, as PyTorch's memory history has it.

    events.py record SCRIPT FILE           on the GPU that is there, real or rehearsed
    events.py compare REHEARSED MEASURED   two folders of such files: h200-events.csv on standard output
"""

import csv
import difflib
import gzip
import os
import runpy
import sys
from pathlib import Path


def record(script, out):
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    torch.cuda.memory._record_memory_history(max_entries=2_000_000, stacks="python", context="all")
    counts = {}

    def tell():
        with gzip.open(out, "wt", newline="") as file:
            rows = csv.writer(file)
            for event in torch.cuda.memory._snapshot()["device_traces"][0]:
                frame = next(iter(event.get("frames", [])), None)
                rows.writerow([event["action"], event["size"], event.get("stream"), f"{frame['name']}:{frame['line']}" if frame else ""])

    def mark(optimizer, *_):
        counts[id(optimizer)] = counts.get(id(optimizer), 0) + 1
        if min(counts.values()) == 3:
            tell()
            os._exit(0)

    register_optimizer_step_post_hook(mark)
    sys.argv, sys.path[0] = [script], os.path.dirname(script)
    runpy.run_path(script, run_name="__main__")
    tell()


def sizes(file):
    with gzip.open(file, "rt") as rows:
        return [row[1] for row in csv.reader(rows) if row[0] == "alloc"]


def compare(rehearsed, measured):
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["program", "allocations_rehearsed", "allocations_measured", "same_in_order_and_size"])
    for file in sorted(Path(measured).glob("*.csv.gz")):
        ours, real = sizes(Path(rehearsed) / file.name), sizes(file)
        same = sum(block.size for block in difflib.SequenceMatcher(None, ours, real, autojunk=False).get_matching_blocks())
        out.writerow([file.name.removesuffix(".csv.gz"), len(ours), len(real), same])


if __name__ == "__main__":
    {"record": record, "compare": compare}[sys.argv[1]](*sys.argv[2:])
