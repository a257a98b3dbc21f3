"""A training step of PEFT's methods on Llama 3.2 3B (../real_gpus/peft_methods.csv) on an L40S: predicted by rehearsals, then set beside what PEFT measured.

    python records/times/peft_steps.py predict VRAMLAB PYTHON   # PYTHON has torch, transformers and peft: the columns of peft_steps.csv that are predicted
    python records/times/peft_steps.py measured RESULTS         # method_comparison/MetaMathQA/results of huggingface/peft @ 5d602fdb: the last one

A step has a batch of four texts of the mean length. What PEFT measured is the mean of the first 250 steps, from one host's wait to the next. The host
takes LAUNCH_US for each launch, which is what fits KernelBench's rows of another machine with an L40S (docs/time.md).
"""

import csv
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE / "peft_steps.csv"
LAUNCH_US = 16
BASE = "lora--rank32"
FIELDS = "method,predicted,low,high,device,host,bound_by,measured".split(",")

sys.path.insert(0, str(HERE.parent / "real_gpus"))
import peft_methods  # noqa: E402


def step(method):
    """In the rehearsal."""
    import torch

    model = peft_methods.model_of(json.loads(peft_methods.rows()[method]["configuration"]))
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-4, weight_decay=0.1)
    model.train()
    for at in range(1, 5):
        ids = torch.randint(0, peft_methods.LLAMA["vocab_size"], (peft_methods.BATCH, peft_methods.MEAN))
        mask = torch.ones_like(ids)
        mask[1:, -1] = 0
        batch = {"input_ids": ids.to("cuda"), "attention_mask": mask.to("cuda")}
        batch["labels"] = batch["input_ids"].clone()
        tokens = batch["attention_mask"].sum().item()
        optimizer.zero_grad()
        model(**batch, num_items_in_batch=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if hasattr(getattr(model, "base_model", None), "update_and_allocate"):
            model.base_model.update_and_allocate(at)


def read():
    if not FILE.exists():
        return {}
    with open(FILE, newline="") as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def write(rows):
    with open(FILE, "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())


def predict(program, python):
    rows = read()
    for method in peft_methods.rows():
        words = [program, "rehearse", "--gpu", "l40s", "--steps", "4", "--launch-us", str(LAUNCH_US), "--json", "-"]
        done = subprocess.run([*words, "--", python, __file__, "step", method], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            time = json.loads(done.stdout)["time"] or {}
            time["step_seconds"]
        except (ValueError, KeyError):
            print(method, done.stderr[-2000:], file=sys.stderr)
            continue
        found = {"predicted": "step_seconds", "low": "low_seconds", "high": "high_seconds", "device": "device_seconds", "host": "host_seconds"}
        row = rows.setdefault(method, {"method": method})
        row |= {name: f"{time[key]:.4g}" for name, key in found.items()} | {"bound_by": time["bound_by"]}
        print(method, row["predicted"], row["bound_by"], file=sys.stderr)
        write(rows)


def measured(folder):
    rows = read()
    for method, row in rows.items():
        name, _, rest = method.partition("--")
        with open(pathlib.Path(folder) / f"{name}--llama-3.2-3B-{rest}.json") as file:
            first = json.load(file)["train_info"]["metrics"][0]
        row["measured"] = f"{first['train time'] / first['step']:.4g}"
    write(rows)
    compare(rows)


def compare(rows):
    of = lambda name: {method: float(row[name]) for method, row in rows.items()}
    predicted, seconds = of("predicted"), of("measured")
    errors = [abs(predicted[method] / seconds[method] - 1) for method in rows]
    ratios = [abs(predicted[method] / predicted[BASE] / (seconds[method] / seconds[BASE]) - 1) for method in rows if method != BASE]
    inside = sum(float(row["low"]) <= seconds[method] <= float(row["high"]) for method, row in rows.items())
    for method in sorted(rows, key=seconds.get):
        print(f"{method:32} {predicted[method]:.3f} s {seconds[method]:.3f} s  {predicted[method] / predicted[BASE]:.2f} {seconds[method] / seconds[BASE]:.2f}")
    for name, some in (("seconds", errors), (f"ratio to {BASE}", ratios)):
        print(f"{name}: {statistics.median(some):.1%} in the median, {statistics.quantiles(some, n=10)[-1]:.1%} at the 90th percentile of {len(some)}")
    print(f"in the band: {inside} of {len(rows)}")


if __name__ == "__main__":
    {"step": step, "predict": predict, "measured": measured}[sys.argv[1]](*sys.argv[2:])
