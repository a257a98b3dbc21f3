"""Steps of Megatron-DeepSpeed on A100s that vTrain's authors timed (VIA-Research/vTrain, validation data), beside predictions of records/layouts/gpt.py of the
same sizes, written to a table with both: of the rows of their CSV with 16 micro-batches at most (or --most N) every EVERY-th, since more take minutes each.
--second-half takes every other row alone; the others are those from which their host's time of a launch was taken.

    python records/layouts/vtrain.py VRAMLAB THEIR.csv EVERY OUT.csv [--recompute] [--second-half] [--launch-us N] [--most N]
"""

import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

program, theirs, every, out, *flags = sys.argv[1:]
script = Path(__file__).with_name("gpt.py")
MOST = int(flags[flags.index("--most") + 1]) if "--most" in flags else 16
found = []


def micro_batches(row):
    return int(row["global batch"]) / int(row["data parallelism"]) / int(row["micro batch"])


rows = list(csv.DictReader(open(theirs)))[1 if "--second-half" in flags else 0 :: 2 if "--second-half" in flags else 1]
rows = [row for row in rows if micro_batches(row) <= MOST][:: int(every)]
for row in rows:
    number = {name: int(row[f"{title}"]) for name, title in dict(
        gpus="# GPUs", batch="global batch", micro="micro batch", hidden="hidden size", heads="attention heads", layers="# layers",
        length="sequence length", tp="tensor parallelism", dp="data parallelism", pp="pipeline parallelism",
    ).items()}  # fmt: skip
    measured = float(row["iteration time (ms)"])
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        arguments = [f"--{name}={number[name]}" for name in ("tp", "pp", "hidden", "layers", "heads", "length", "micro", "batch")]
        rank = "all" if number["pp"] > 1 else "0"
        command = [program, "rehearse", "--gpu", "a100-80g", "--world-size", str(number["gpus"]), "--rank", rank, "--steps", "2", "--quiet", "--no-init"]
        command += flags[flags.index("--launch-us") :][:2] if "--launch-us" in flags else []
        arguments += ["--recompute=1"] if "--recompute" in flags else []
        subprocess.run([*command, "--json", str(answer), "--", sys.executable, str(script), *arguments], capture_output=True, check=False)
        answers = json.loads(answer.read_text()) if answer.exists() else []
    answers = answers if isinstance(answers, list) else [answers]
    times = [each["time"] for each in answers if each.get("time")]
    if not times:
        print("no time:", number, file=sys.stderr, flush=True)
        continue
    step = max(time["step_seconds"] for time in times) * 1e3
    alone = max(time["device_seconds"] for time in times) * 1e3
    exposed = max(time["exposed_seconds"] for time in times) * 1e3
    found.append(number | dict(measured_ms=round(measured, 1), predicted_ms=round(step, 1), computes_ms=round(alone, 1), exposed_ms=round(exposed, 1)))
    print(number, f"{measured:.1f} ms, predicted {step:.1f} ({step / measured - 1:+.1%})", flush=True)
with open(out, "w") as file:
    writer = csv.DictWriter(file, found[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
for column in ("predicted_ms", "computes_ms"):
    off = sorted(row[column] / row["measured_ms"] - 1 for row in found)
    sizes = sorted(map(abs, off))
    print(f"{column}: {len(off)} rows: median {statistics.median(off):+.1%}, mean of sizes {statistics.mean(sizes):.1%}, nine in ten within {sizes[len(sizes) * 9 // 10]:.1%}, worst {max(off, key=abs):+.1%}")
