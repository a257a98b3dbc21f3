"""Rehearses train.py as it is and with each technique, and writes rows.csv beside this file and docs/today.md.

    PYTHON measure.py --vramlab PROGRAM [--only-page]

Run by a Python that has PyTorch, transformers, torchao, liger-kernel, bitsandbytes and galore-torch. No GPU is used. Ten minutes on two cores.
"""

import argparse
import csv
import datetime
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
GPU = "h100"
PACKAGES = ["torch", "transformers", "torchao", "liger-kernel", "bitsandbytes", "galore-torch"]
PARTS = ["weights", "gradients", "optimizer_state", "loss", "activations", "temporaries", "other"]
COLUMNS = ["technique", "peak_allocated", "peak_reserved", "needs_at_least", "host", "managed", "step_seconds", *PARTS, "versions", "date"]
# Name, what is promised, where, who asks, the lines.
TECHNIQUES = {
    "fp8": (
        "FP8 products (torchao)",
        "up to 1.25x the speed on 8 GPUs, with torch.compile",
        "https://docs.pytorch.org/ao/stable/workflows/training.html",
        ["pytorch/ao#1102", "pytorch/ao#2262"],
        "convert_to_float8_training(model, module_filter_fn=lambda module, name: name != 'lm_head')",
    ),
    "liger": (
        "Liger's kernels",
        "60 % less memory, 20 % more throughput (8B, 8 GPUs)",
        "https://github.com/linkedin/Liger-Kernel",
        ["PrimeIntellect-ai/prime-rl#1685", "linkedin/Liger-Kernel#323"],
        "apply_liger_kernel_to_llama()",
    ),
    "paged-8-bit": (
        "Paged 8-bit AdamW (bitsandbytes)",
        "75 % less memory for the optimizer's state than with 32 bits",
        "https://huggingface.co/docs/bitsandbytes/v0.43.0/optimizers",
        ["bitsandbytes-foundation/bitsandbytes#801"],
        "optimizer = bitsandbytes.optim.PagedAdamW8bit(model.parameters(), lr=1e-4)",
    ),
    "galore": (
        "GaLore, rank 128",
        "up to 65.5 % less memory for the optimizer's state",
        "https://huggingface.co/papers/2403.03507",
        ["jiaweizzhao/GaLore#6"],
        "optimizer = GaLoreAdamW([{'params': others}, {'params': matrices, 'rank': 128, 'update_proj_gap': 200, 'scale': 0.25, 'proj_type': 'std'}])",
    ),
    "context-parallel": (
        "Context parallelism over two GPUs",
        "sequences are split over the GPUs",
        "https://huggingface.co/docs/accelerate/concept_guides/context_parallelism",
        ["huggingface/trl#6845"],
        "with context_parallel(mesh, buffers=[ids, positions, labels], buffer_seq_dims=[1, 1, 1]):",
    ),
    "async-checkpoint": (
        "Checkpoints saved beside training",
        "raises CPU memory by the checkpoint's size for each rank",
        "https://docs.pytorch.org/tutorials/recipes/distributed_async_checkpoint_recipe.html",
        ["pytorch/pytorch#170163"],
        "torch.distributed.checkpoint.async_save({'model': weights, 'optimizer': state}, checkpoint_id=...)",
    ),
    "qat": (
        "Training for int4 weights (torchao's QAT)",
        "quality after quantisation; nothing of memory",
        "https://docs.pytorch.org/ao/stable/workflows/qat.html",
        ["ModelTC/MQBench#204"],
        "quantize_(model, QATConfig(activation_config=..., weight_config=...))",
    ),
    "empty-cache": (
        "empty_cache() after each step",
        "saves memory, by a table of advice (`torch_empty_cache_steps`)",
        "https://huggingface.co/docs/transformers/perf_train_gpu_one",
        [],
        "torch.cuda.empty_cache()",
    ),
}


def rehearse(vramlab, python, technique):
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        several = technique == "context-parallel"
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if several else []
        flags = ["--gpus", "2"] if several else []
        command = [python, *launcher, HERE / "train.py", *([technique] if technique != "none" else [])]
        done = subprocess.run([vramlab, "rehearse", "--gpu", GPU, *flags, "--quiet", "--json", answer, "--", *command], cwd=folder)
        found = json.loads(answer.read_text())
    assert done.returncode == 0 and found["verdict"] == "fits", (technique, found["failed"])
    parts = dict.fromkeys(PARTS, 0)
    for row in found["account"]["rows"]:
        if row["part"] not in ("context", "cached", "nccl"):
            parts[row["part"] if row["part"] in parts else "other"] += row["bytes"]
    versions = " ".join(f"{name}={importlib.metadata.version(name)}" for name in PACKAGES)
    return {
        "technique": technique,
        **{name: found[name] for name in ("peak_allocated", "peak_reserved", "needs_at_least", "managed")},
        "host": found["host"]["at_least"],
        "step_seconds": found["time"]["step_seconds"],
        **parts,
        "versions": versions,
        "date": datetime.date.today().isoformat(),
    }


def gib(value):
    return f"{int(value) / 2**30:.1f}"


def page(rows):
    base = rows["none"]
    lines = [
        "<!-- Made by records/today/measure.py; edit nothing here. -->",
        "# Techniques of today, rehearsed",
        "",
        f"One training, a Llama of 1.1 billion parameters in bf16 with AdamW on batches of 4 x 2048 tokens, as it is and with each of eight techniques: "
        f"rehearsals on a simulated {GPU.upper()} with {', '.join(base['versions'].split()).replace('=', ' ')}; {base['date']}. Bytes are those that PyTorch's "
        "allocator would count; times are predicted, and rough. The script and the rows are in "
        "[records/today](../records/today).",
        "",
        "| technique | allocated, GiB | needs, GiB | what changed most, GiB | step, predicted | promised | asked |",
        "|---|---:|---:|---|---:|---|---|",
        f"| as it is | {gib(base['peak_allocated'])} | {gib(base['needs_at_least'])} | | {float(base['step_seconds']) * 1e3:.0f} ms | | |",
    ]
    for technique, (name, promise, source, asked, _) in TECHNIQUES.items():
        row = rows[technique]
        share = int(row["peak_allocated"]) / int(base["peak_allocated"]) - 1
        changes = sorted(PARTS, key=lambda part: -abs(int(row[part]) - int(base[part])))
        changed = ", ".join(
            f"{part.replace('_', ' ')} {gib(base[part])} to {gib(row[part])}" for part in changes[:2] if abs(int(row[part]) - int(base[part])) > 2**26
        )
        if int(row["managed"]) > 2**26:
            changed += f"; {gib(row['managed'])} in managed memory, which the GPU and the host share"
        threads = ", ".join(f"[{one}](https://github.com/{one.replace('#', '/issues/')})" for one in asked)
        lines.append(
            f"| {name} | {gib(row['peak_allocated'])} ({share:+.0%}) | {gib(row['needs_at_least'])} | {changed} "
            f"| {float(row['step_seconds']) * 1e3:.0f} ms ({float(row['step_seconds']) / float(base['step_seconds']):.2f}x) | [{promise}]({source}) | {threads} |"
        )
    host = {name: int(rows[name]["host"]) for name in ("none", "async-checkpoint")}
    lines += [
        "",
        f"The host's memory is at least {gib(host['none'])} GiB as it is and {gib(host['async-checkpoint'])} GiB with checkpoints saved beside training. "
        "A step with such checkpoints has the time in which this machine copied and wrote them. FP8 runs without torch.compile here, where its casts are kernels of their own; the promise is with it. Of context parallelism each GPU's figures are shown.",
        "",
        "## The lines",
        "",
        "```python",
        *(f"{lines_of}  # {name}" for name, _, _, _, lines_of in TECHNIQUES.values()),
        "```",
        "",
        "[What-if](what-if.md) tries some forty others on your own script.",
        "",
    ]
    (HERE.parents[1] / "docs/today.md").write_text("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vramlab")
    parser.add_argument("--only-page", action="store_true")
    arguments = parser.parse_args()
    file = HERE / "rows.csv"
    if not arguments.only_page:
        rows = [rehearse(arguments.vramlab, sys.executable, technique) for technique in ["none", *TECHNIQUES]]
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    page({row["technique"]: row for row in csv.DictReader(file.open())})


if __name__ == "__main__":
    main()
