"""Writes tests/reference/agreement.json: the bytes that PyTorch in Python counts in the cells of the experiment agreement, of those at one
thread that do not depend on the machine. Runs the experiment; needs cargo."""

import csv
import json
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
METRICS = ["requested_peak", "live_forward", "live_backward", "live_step"]

figures = {}
with tempfile.TemporaryDirectory() as out:
    experiment = ["cargo", "run", "--release", "--quiet", "--bin", "agreement", "--", "--device", "cpu", "--profile", "quick"]
    subprocess.run([*experiment, "--filter", "threads=1", "--rounds", "1", "--out", out], check=True, cwd=ROOT)
    (samples,) = Path(out).glob("*/agreement/samples.csv")
    for row in csv.DictReader(samples.read_text().splitlines()):
        wanted = row["metric"] in METRICS and row["status"] == "ok"
        # Convolutions and products in bf16 need temporaries by the machine's vector instructions.
        everywhere = not any(word in row["cell"] for word in ["resnet", "autocast"])
        if wanted and everywhere and row["cell"].endswith("threads=1 by=pytorch"):
            figures.setdefault(row["cell"], {})[row["metric"]] = int(row["value"])

target = ROOT / "tests/reference/agreement.json"
target.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
print(f"{target}: {len(figures)} cells")
