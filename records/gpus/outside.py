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

HERE = Path(__file__).parent
ROWS = list(csv.DictReader((HERE / "outside.csv").open()))
CARDS = {row["name"]: int(row["context"]) / 2**20 for row in csv.DictReader((HERE.parents[1] / "src/sim/src/cards.csv").open())}


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


def beside_cards():
    """What the messages of one GPU say beside what is counted for that card, in MiB."""
    print("card: counted; what messages say, less that")
    for name in sorted({row["card"] for row in ROWS}):
        card = name.lower().replace(" ", "-").replace("gb", "g")
        more = sorted(outside_mib(row) - CARDS[card] for row in ROWS if row["card"] == name and row["several_gpus"] == "no" and card in CARDS)
        if more:
            print(f"{card}: {CARDS[card]:.0f};", *(f"{one:+.0f}" for one in more))


table("card", "several_gpus")
beside_cards()
