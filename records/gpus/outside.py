"""Prints how much GPU memory public out-of-memory messages leave outside PyTorch's allocator.

Outside = in use by the process - allocated - reserved but unallocated.
Messages round GiB to two decimals, so one value is exact to about 10 MiB.
`torch` is what the message's wording tells where the thread names no version:
"capacty" is 2.1, torch.cuda.OutOfMemoryError without it 2.2-2.3, torch.OutOfMemoryError >=2.4.
`several_gpus` is yes or no only where the text says so.
"""

import csv
import statistics
from collections import defaultdict
from pathlib import Path

ROWS = list(csv.DictReader(Path(__file__).with_name("outside.csv").open()))


def outside_mib(row):
    held = float(row["allocated_gib"]) + float(row["reserved_unallocated_gib"])
    return (float(row["in_use_gib"]) - held) * 1024


def table(*columns):
    groups = defaultdict(list)
    for row in ROWS:
        groups[tuple(row[c] for c in columns)].append(outside_mib(row))
    print(f"{' / '.join(columns):<28} count   min median   max  (MiB)")
    for key, mib in sorted(groups.items()):
        stats = (min(mib), statistics.median(mib), max(mib))
        print(f"{' / '.join(key):<28} {len(mib):>5}" + "".join(f"{s:>7.0f}" for s in stats))


table("card", "several_gpus")
