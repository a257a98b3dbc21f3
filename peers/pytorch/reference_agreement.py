"""Writes tests/reference/agreement.json: the bytes that PyTorch in Python counted in a run of the experiment agreement.

    agreement --device cpu --profile quick --out OUT && python peers/pytorch/reference_agreement.py OUT/MACHINE/agreement

Those at one thread that do not depend on the machine.
"""

import csv
import json
import sys
from pathlib import Path

METRICS = ["requested_peak", "live_forward", "live_backward", "live_step"]

figures = {}
with open(Path(sys.argv[1]) / "samples.csv") as file:
    for row in csv.DictReader(file):
        wanted = row["metric"] in METRICS and row["status"] == "ok"
        # Convolutions and products in bf16 need temporaries by the machine's vector instructions.
        everywhere = not any(word in row["cell"] for word in ["resnet", "autocast"])
        if wanted and everywhere and row["cell"].endswith("threads=1 by=pytorch"):
            figures.setdefault(row["cell"], {})[row["metric"]] = int(row["value"])

target = Path(__file__).parents[2] / "tests/reference/agreement.json"
target.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
print(f"{target}: {len(figures)} cells")
