"""Rehearses the jobs of torchtitan's own tables of memory, whose figures are of H100s, and writes torchtitan.csv beside this file.

    torchtitan.py --vramlab PROGRAM --checkout FOLDER PYTHON...

Llama 3.1 8B under FSDP, 8,192 tokens, batch 2, selective checkpointing, eager and compiled: the first two rows of the tables 1 and 3 of
https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md. The checkout is of the commit that it names,
9dec370, with Llama 3's tokenizer at its place (any of 128,256 words will do). It does not say how the job was started: its slurm script leaves
the allocator as it is, run_llama_train.sh sets expandable segments. Their H100s had 96 GB with 2.4 TB/s, and 500 W: the nearest card with a name is a
GH200's, with 4.0 TB/s, here at 500 W. Each Python has a version of PyTorch, and the packages that torchtitan needs.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# GPUs and whether it was compiled: GiB that were reserved, tokens per second of each GPU.
PUBLISHED = {(8, "no"): (82.4, 5762), (8, "yes"): (77.0, 6667), (128, "no"): (67.0, 5605), (128, "yes"): (62.0, 6514)}
SEGMENTS = {"as they are": "False", "expandable": "True"}
JOB = "train.py --job.config_file train_configs/llama3_8b.toml --training.batch_size 2 --training.dataset c4_test"


COLUMNS = ["torch", "gpus", "compiled", "segments", "allocated", "reserved", "published_gib", "tokens_per_second", "published_tokens_per_second"]


def rehearse(options, python, ranks, compiled, expandable):
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        flags = ["--gpu", "gh200", "--watts", "500", "--world-size", str(ranks), "--rank", "0", "--quiet", "--json", str(answer)]
        # PyTorch 2.9 and newer have another name for it, and still read this one.
        environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}", "TIKTOKEN_CACHE_DIR": ""}
        command = [options.vramlab, "rehearse", *flags, "--", python, *JOB.split(), *["--training.compile"] * (compiled == "yes")]
        done = subprocess.run(command, cwd=options.checkout, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{python}, {ranks} GPUs: status {done.returncode}\n{done.stderr[-3000:]}")
        return json.loads(answer.read_text())


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--vramlab", required=True)
    options.add_argument("--checkout", required=True, metavar="FOLDER")
    options.add_argument("pythons", nargs="+", metavar="PYTHON")
    options = options.parse_args()
    rows, path = [], Path(__file__).with_suffix(".csv")
    for python in options.pythons:
        for (ranks, compiled), (published, speed) in PUBLISHED.items():
            for segments, expandable in SEGMENTS.items():
                answer = rehearse(options, python, ranks, compiled, expandable)
                torch, reserved = answer["processes"][0]["torch"], answer["peak_reserved"]
                # Theirs is of each GPU.
                rate = round(answer["time"]["tokens_per_second"] / ranks)
                rows.append([torch, ranks, compiled, segments, answer["peak_allocated"], reserved, published, rate, speed])
                memory = f"{published} GiB | {reserved / 2**30:.1f} GiB | {reserved / 2**30 / published - 1:+.1%}"
                print(f"| {torch} | {ranks} | {compiled} | {segments} | {memory} | {speed} | {rate} | {rate / speed - 1:+.0%} |", flush=True)
    with path.open(newline="") as file:
        # What an earlier program predicted is no figure of this one.
        others = [[*row[:7], "", row[8]] for row in list(csv.reader(file))[1:] if row[0] not in {row[0] for row in rows}]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(others + rows)


if __name__ == "__main__":
    main()
