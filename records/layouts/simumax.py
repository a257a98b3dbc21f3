"""Rows that SimuMax's authors measured on eight B200s with Megatron-LM and Transformer Engine, of Llama 3 without context parallel groups and with 4 micro-batches
(more take as much memory), beside rehearsals of mcore.py of the same sizes, written to a table with both. THEIRS is their docs/b200/b200_release_v1.2_summary.json, which has SimuMax's
own prediction, too.

    python records/layouts/simumax.py VRAMLAB THEIRS.json OUT.csv
"""

import csv
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

program, theirs, out = sys.argv[1:]
script = Path(__file__).with_name("mcore.py")
SIZES = {"llama3-70b": (8192, 28672, 64), "llama3-405b": (16384, 53248, 128)}
found = []
for row in json.loads(Path(theirs).read_text())["rows"]:
    if "llama3" not in row["case"] or "_cp" in row["case"] or int(row["mbc"]) > 4:
        continue
    hidden, ffn, heads = SIZES["llama3-70b" if "70b" in row["case"] else "llama3-405b"]
    tp, pp = (int(re.search(f"_{name}(\\d+)", row["case"])[1]) for name in ("tp", "pp"))
    batch = int(row["mbc"]) * 8 // tp // pp
    number = dict(tp=tp, pp=pp, hidden=hidden, ffn=ffn, heads=heads, groups=8, layers=int(row["layer_num"]), length=4096, vocab=128256, batch=batch)
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        rank = "all" if pp > 1 else "0"
        command = [program, "rehearse", "--gpu", "b200", "--world-size", "8", "--rank", rank, "--steps", "3", "--quiet", "--no-init", "--json", str(answer)]
        arguments = [f"--{name}={each}" for name, each in number.items()] + ["--distributed=1"]
        subprocess.run([*command, "--", sys.executable, str(script), *arguments], capture_output=True, check=False)
        answers = json.loads(answer.read_text()) if answer.exists() else []
    answers = answers if isinstance(answers, list) else [answers]
    times = [each["time"]["step_seconds"] for each in answers if each.get("time")]
    if not times:
        print("no time:", row["case"], file=sys.stderr, flush=True)
        continue
    bytes_, step = max(each["peak_allocated"] for each in answers) / 2**30, max(times) * 1e3
    found.append(dict(
        case=row["case"], measured_ms=row["real_ms"], predicted_ms=round(step, 1), simumax_ms=row["perf_ms"],
        measured_gib=row["real_alloc_gib"], predicted_gib=round(bytes_, 2), simumax_gib=row["perf_alloc_gib"],
    ))  # fmt: skip
    print(found[-1], flush=True)
with open(out, "w") as file:
    writer = csv.DictWriter(file, found[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
for who in ("predicted", "simumax"):
    for unit in ("ms", "gib"):
        off = [row[f"{who}_{unit}"] / row[f"measured_{unit}"] - 1 for row in found]
        print(f"{who} {unit}: {len(off)} rows: median {statistics.median(off):+.1%}, mean of sizes {statistics.mean(map(abs, off)):.1%}, worst {max(off, key=abs):+.1%}")
