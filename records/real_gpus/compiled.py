"""Peaks of torch.compile's rows in Liger-Kernel's benchmark of an embedding, run again; prints how many of compiled.csv are the same.

    vramlab rehearse --gpu a100-80g --steps all -- python records/real_gpus/compiled.py

Each row makes a table of PyTorch's and one of Liger's, compiles the first, and counts the peak of calls, forward and backward. The rows' process
still held what torch.compile was given for the rows before (the table and its gradient), and for each configuration a constant; README.md
says so of the eager rows, too. After the twelfth row Python had collected all of it.
"""

import csv
import gc
import sys
from pathlib import Path

import torch

CONSTANT = {768: 12_834_570_240, 4096: 14_438_891_520}


def peak(call):
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated()


def row(rows, length, width, tokens):
    tables = [torch.nn.Embedding(length, width, device="cuda") for _ in range(2)]
    compiled = torch.compile(tables[0])
    ids = torch.randint(0, length, (rows, tokens), device="cuda")

    def full():
        y = compiled(ids)
        y.backward(torch.randn_like(y))

    # The benchmark takes the median of ten.
    return [peak(full) for _ in range(3)][-1]


held, kept, equal = 0, None, 0
with open(Path(__file__).with_name("compiled.csv"), newline="") as file:
    records = list(csv.DictReader(file))
for place, record in enumerate(records):
    length, width = int(record["V"]), int(record["D"])
    if width != kept:
        kept, held = width, CONSTANT[width]
    if place == 12:
        held = 0
    # Nothing that is here stays from one row to the next; what did there is in `held`.
    torch._dynamo.reset()
    gc.collect()
    before = torch.cuda.memory_allocated()
    found = row(int(record["B"]), length, width, int(record["T"])) - before + held
    equal += found == int(record["peak_allocated_bytes"])
    held += 2 * length * width * 4
print(f"{equal} of {len(records)} equal")
sys.exit(equal != len(records))
