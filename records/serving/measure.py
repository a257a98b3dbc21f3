"""Rehearses the starts of vLLM in public.csv whose version is the one that ENV has, and writes what it says beside what was logged to rows.csv. Those in
own.csv, which no log is known of, have rows in own_rows.csv: quantised weights, several cards, sleep, and cards that are just large enough.

    measure.py --vramlab PROGRAM --env ENV [--only TEXT] [--eager] [--own]

ENV is a virtual environment with vLLM. Nothing is downloaded: models.py has the models' configurations, and weights are vLLM's dummies. No GPU is used.
"""

import argparse
import collections
import csv
import json
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
STARTS, ROWS = {False: "public.csv", True: "own.csv"}, {False: "rows.csv", True: "own_rows.csv"}
KEYS = ["version", "model", "card", "cards", "arguments"]
PARTS = {"weights": "weights_gib", "outside of PyTorch": "non_torch_gib", "activations": "activation_gib"}
FIELDS = [*KEYS, "mode", "torch", "program", "verdict", *(f"{what}{of}" for of in ("", "_logged") for what in PARTS.values()), "kv_gib", "kv_gib_logged", "kv_tokens", "kv_tokens_logged", "off_percent", "graphs_gib", "graphs_gib_logged", "needs_gib", "token_ms", "processor_seconds", "seconds"]
# In bytes: the least memory, and that of sleep.py by the answer and by its own meter.
OWN = ["needs", "starts_from", *(f"{when}{by}" for when in ("asleep", "awake") for by in ("", "_metered"))]


def command(row, env, is_eager):
    if row["entry"] == "serve":
        words = [env / "bin" / "vllm", "serve", row["model"], "--load-format", "dummy", *row["arguments"].split()]
        return [*words, *(["--enforce-eager"] if is_eager else [])]
    if row["entry"] == "sleep.py":
        return [env / "bin" / "python", HERE / "sleep.py", row["model"]]
    given = dict(load_format="dummy") | dict(one.split("=") for one in row["arguments"].split())
    arguments = ", ".join(f"{name}={value if value.replace('.', '').isdigit() else repr(value)}" for name, value in given.items())
    name = f"{row['model']}/model.gguf" if row["model"].endswith("gguf") else row["model"]
    made = f"from vllm import LLM; llm = LLM({name!r}, enforce_eager={is_eager}, {arguments})"
    # A card that has just room for the cache has to have it for a request.
    return [env / "bin" / "python", "-c", f"{made}; llm.generate({{'prompt_token_ids': [1, 2, 3]}})"]


def measure(row, options, program):
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        subprocess.run([options.env / "bin" / "python", HERE / "models.py", row["model"], Path(folder) / row["model"]], check=True, capture_output=True)
        words = [options.vramlab, "rehearse", "--gpu", row["card"], "--gpus", row["cards"], "--timeout", "1500", "--json", answer, "--"]
        began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        # In one process it takes a third less of a processor.
        environment = os.environ | ({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if options.own and row["cards"] == "1" else {}) | {"HF_HUB_OFFLINE": "1", "PATH": f"{options.env / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run([*words, *command(row, options.env, options.eager)], cwd=folder, env=environment, capture_output=True, text=True)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        if not answer.exists():
            raise SystemExit(f"{row['model']}: no answer\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        found = json.loads(answer.read_text())
    serves = found.get("serves") or found.get("engine") or {}
    beside = {part["what"]: part["bytes"] / 2**30 for part in serves.get("beside", [])}
    kv = serves.get("kv_cache", 0) / 2**30
    filled = {part["what"]: part["bytes"] / 2**30 for part in serves.get("fills", [])}
    failed = (found.get("failed") or {}).get("failure")
    sleep = {when: (serves.get("sleep") or {}).get(when, "") for when in ("asleep", "awake")}
    meters = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("meter ")]
    sleep |= {f"{when}_metered": max((int(bytes) for of, bytes in meters if of == when), default="") for when in ("asleep", "awake")}
    logged, ours = (row["kv_tokens"], serves.get("tokens")) if row["kv_tokens"] else (row["kv_gib"], round(kv, 2))
    figures = {name: f"{beside.get(what, 0):.2f}" for what, name in PARTS.items()} | {f"{name}_logged": row[name] for name in PARTS.values()}
    return {
        **{key: row[key] for key in KEYS}, "mode": "eager" if options.eager else "compiled", "torch": found["processes"][0].get("torch", ""),
        "program": program, "verdict": (failed and failed["message"]) or serves.get("dies") or ("serves" if serves.get("starts") else found["verdict"]), **figures,
        "kv_gib": f"{kv:.2f}", "kv_gib_logged": row["kv_gib"], "kv_tokens": serves.get("tokens") or "", "kv_tokens_logged": row["kv_tokens"],
        "off_percent": f"{(float(ours) / float(logged) - 1) * 100:+.2f}" if ours and logged and float(logged) > 0 else "",
        "graphs_gib": f"{filled.get('CUDA graphs', 0):.2f}", "graphs_gib_logged": row["graphs_gib"],
        "needs_gib": f"{(found.get('needs_at_least') or 0) / 2**30:.2f}",
        "token_ms": " ".join(f"{one['seconds'] * 1e3:.1f}" for one in serves.get("token_times", [])),
        **sleep, "needs": found.get("needs_at_least") or "", "starts_from": serves.get("starts_from", ""),
        "processor_seconds": round(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime), "seconds": round(time.monotonic() - began),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vramlab", type=Path, required=True)
    parser.add_argument("--env", type=lambda text: Path(text).absolute(), required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--own", action="store_true", help="the starts in own.csv")
    options = parser.parse_args()
    starts, rows = HERE / STARTS[options.own], HERE / ROWS[options.own]
    fields = [*KEYS, *(name for name in FIELDS if "logged" not in name and name not in (*KEYS, "off_percent")), *OWN] if options.own else FIELDS
    options.vramlab = options.vramlab.resolve()
    git = ["git", "-C", HERE, "status", "--porcelain", "--", ":/src", *(HERE / name for name in ("models.py", "measure.py", "sleep.py")), starts]
    if subprocess.run(git, capture_output=True, text=True, check=True).stdout:
        raise SystemExit("what is rehearsed with is not committed")
    program = subprocess.run(["git", "-C", HERE, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    version = subprocess.run([options.env / "bin" / "python", "-c", "import importlib.metadata as m; print(m.version('vllm'))"], capture_output=True, text=True, check=True).stdout.strip()
    for row in csv.DictReader(starts.open()):
        row = collections.defaultdict(str, row)
        if row["version"] != version or options.only not in f"{row['model']} {row['card']} {row['arguments']}":
            continue
        found = measure(row, options, program)
        print(", ".join(f"{name} {value}" for name, value in found.items() if value), flush=True)
        kept = list(csv.DictReader(rows.open())) if rows.exists() else []
        is_same = lambda one: all(one[key] == found[key] for key in [*KEYS, "mode"])
        with rows.open("w", newline="") as file:
            writer = csv.DictWriter(file, fields, lineterminator="\n", extrasaction="ignore")
            writer.writeheader()
            writer.writerows([*(one for one in kept if not is_same(one)), found])


if __name__ == "__main__":
    main()
