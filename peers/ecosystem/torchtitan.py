"""Rehearses the job of torchtitan's own table of memory, whose figures are of H100s, and writes torchtitan.csv beside this file.

    torchtitan.py --vramlab PROGRAM --checkout FOLDER PYTHON...

Llama 3.1 8B under FSDP, 8,192 tokens, batch 2, selective checkpointing, eager: the first rows of the tables 1 and 3 of
https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md. The checkout is of the commit that it names,
9dec370, with Llama 3's tokenizer at its place (any of 128,256 words will do). It does not say how the job was started: its slurm script leaves
the allocator as it is, run_llama_train.sh sets expandable segments. Each Python has a version of PyTorch, and the packages that torchtitan needs.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# GPUs, and GiB that were reserved.
PUBLISHED = {8: 82.4, 128: 67.0}
SEGMENTS = {"as they are": "False", "expandable": "True"}
JOB = "train.py --job.config_file train_configs/llama3_8b.toml --training.batch_size 2 --training.dataset c4_test"


def rehearse(options, python, ranks, expandable):
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        flags = ["--gpu", "96GiB", "--world-size", str(ranks), "--rank", "0", "--quiet", "--json", str(answer)]
        # PyTorch 2.9 and newer have another name for it, and still read this one.
        environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}"}
        command = [options.vramlab, "rehearse", *flags, "--", python, *JOB.split()]
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
    rows = []
    for python in options.pythons:
        for ranks, published in PUBLISHED.items():
            for segments, expandable in SEGMENTS.items():
                answer = rehearse(options, python, ranks, expandable)
                reserved, allocated = answer["peak_reserved"], answer["peak_allocated"]
                rows.append([answer["processes"][0]["torch"], ranks, segments, allocated, reserved, published])
                share = reserved / 2**30 / published - 1
                print(f"| {rows[-1][0]} | {ranks} | {segments} | {published} GiB | {reserved / 2**30:.1f} GiB | {share:+.1%} |", flush=True)
    with open(Path(__file__).with_suffix(".csv"), "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["torch", "gpus", "segments", "allocated", "reserved", "published_gib"])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
