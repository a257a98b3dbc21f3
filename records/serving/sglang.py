"""Rehearses starts of SGLang, and writes what its own log says of its KV cache beside what the answer does to sglang.csv.

    sglang.py --vramlab PROGRAM --env ENV [--only TEXT]

ENV is a virtual environment with SGLang. Nothing is downloaded: models.py has the models' configurations, and weights are SGLang's dummies. No GPU is used.
"""

import argparse
import csv
import json
import os
import re
import resource
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROWS = HERE / "sglang.csv"
STARTS = [
    (model, card, f"--context-length {length}{more}")
    for model, card, length, more in [
        ("Qwen/Qwen3-0.6B", "l40s", 8192, ""),
        ("Qwen/Qwen3-0.6B", "l40s", 8192, " --disable-cuda-graph --attention-backend triton --sampling-backend pytorch"),
        ("Qwen/Qwen3-0.6B", "l40s", 8192, " --disable-cuda-graph --mem-fraction-static 0.6"),
        ("Qwen/Qwen3-8B", "rtx-4090", 8192, ""),
        ("Qwen/Qwen3-8B", "h100", 40960, ""),
    ]
]


def measure(model, card, arguments, options):
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        subprocess.run([options.env / "bin" / "python", HERE / "models.py", model, Path(folder) / model], check=True, capture_output=True)
        words = [options.vramlab, "rehearse", "--gpu", card, "--requests", "4x128+16", "--timeout", "600", "--json", answer, "--", options.env / "bin" / "python", "-m"]
        words += ["sglang.launch_server", "--model-path", model, "--load-format", "dummy", *arguments.split()]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "PATH": f"{options.env / 'bin'}:{os.environ['PATH']}"}
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = json.loads(answer.read_text())
    serves, logged = found.get("serves") or {}, re.findall(r"max_total_num_tokens=(\d+)", done.stdout + done.stderr)
    asked = re.search(r"--requests: (\d+ of \d+)", json.dumps(found["notes"]))
    return {
        "version": (serves.get("engine") or "").removeprefix("SGLang "), "torch": found["processes"][0].get("torch", ""), "model": model, "card": card,
        "arguments": arguments, "verdict": serves.get("dies") or ("serves" if serves.get("starts") else found["verdict"]),
        "tokens": serves.get("tokens", ""), "tokens_logged": logged[-1] if logged else "", "answered": asked[1] if asked else "",
        "kv_gib": f"{serves.get('kv_cache', 0) / 2**30:.2f}", "needs_gib": f"{(found.get('needs_at_least') or 0) / 2**30:.2f}",
        "token_ms": " ".join(f"{one['seconds'] * 1e3:.1f}" for one in serves.get("token_times", [])),
        "processor_seconds": round(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vramlab", type=Path, required=True)
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    options.env, options.vramlab = options.env.absolute(), options.vramlab.absolute()
    with open(ROWS) as file:
        rows = list(csv.DictReader(file))
    for start in STARTS:
        if options.only not in " ".join(start):
            continue
        made = measure(*start, options)
        rows = [row for row in rows if (row["model"], row["card"], row["arguments"]) != start] + [made]
        with open(ROWS, "w", newline="") as file:
            writer = csv.DictWriter(file, made.keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        print(made, flush=True)


main()
