"""Rehearses the steps that others timed and writes what is predicted to peers/times/predictions.csv, without looking at what they measured.

    python peers/times/predictions.py FOLDER [--python PYTHON] [SOURCE...]

FOLDER holds the records, of which only names and sizes are read. PYTHON has torch, timm, torchvision and transformers. Rows that are there
already stay. timm's models are a sample: those whose name's checksum is divisible by 7.
"""

import argparse
import csv
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import zlib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FIELDS = "source,case,card,seconds,device_seconds,host_seconds,bound_by,anchored,roofline,pytorch".split(",")
NEUSIGHT = {
    "NVIDIA_A100-PCIE-40GB": "a100-40g",
    "NVIDIA_A100_80GB_PCIe": "a100-80g",
    "NVIDIA_H100_80GB_HBM3": "h100",
    "NVIDIA_L4": "l4",
    "Tesla_T4": "t4",
    "Tesla_V100-PCIE-32GB": "v100",
}


def rows_of(path):
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
        yield from csv.DictReader(file)


def cases(folder):
    yield "kineto", "", "v100"
    # Training first.
    for row in sorted(rows_of(folder / "neusight_labels.csv"), key=lambda row: ("-train-" not in row["run"], row["run"])):
        # Whole models on one card, without a compiler.
        if row["gpu"] in NEUSIGHT and row["run"].count("-") == 3 and not row["run"].startswith("switch"):
            yield "neusight", row["run"], NEUSIGHT[row["gpu"]]
    for size in (4096, 131072):
        for mode in ("forward", "full"):
            yield "liger", f"cross_entropy {mode} {size}", "a100-80g"
    for size in (1024, 16384):
        for mode in ("forward", "full"):
            for card in ("a100-80g", "h100"):
                yield "liger", f"layer_norm {mode} {size}", card
    for size in (1024, 4096):
        for mode in ("forward", "full"):
            for kind in ("float32", "bfloat16"):
                yield "liger", f"softmax {mode} {size} {kind}", "rtx-3090"
    for size in (8192, 131072):
        for mode in ("forward", "full"):
            for shape in ("768 32 512", "4096 8 2048"):
                yield "liger", f"embedding {mode} {size} {shape}", "a100-80g"
    layouts = ("nchw", "nhwc")
    rows = [(row, layout) for layout in layouts for row in rows_of(folder / f"timm-train-amp-{layout}-pt112-cu113-rtx3090.csv.gz")]
    checksum = lambda row: zlib.crc32(row["model"].encode())
    for row, layout in sorted(rows, key=lambda pair: (checksum(pair[0]), pair[1])):
        if checksum(row) % 7 == 0:
            yield "timm", f"{row['model']} {row['train_batch_size']} {row['train_img_size']} {layout}", "rtx-3090"


def rehearsed(program, python, source, case, card, speeds):
    with tempfile.TemporaryDirectory() as folder:
        answer, simple = pathlib.Path(folder) / "answer.json", pathlib.Path(folder) / "simple.json"
        speed = speeds[card]
        command = [program, "rehearse", "--quiet", "--gpu", card, "--no-init", "--json", answer, "--timeout", "240", "--",
                   python, HERE / "workloads.py", source, *case.split()]
        environment = {**os.environ, "VRAMLAB_BASELINES": f"{simple},{speed['half']},{speed['single']},{speed['bandwidth']}"}
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if not answer.exists() or done.returncode != 0:
            return None, f"{done.returncode} {done.stderr.strip()[-200:]}"
        time, simple = json.loads(answer.read_text())["time"], json.loads(simple.read_text())
    return [f"{time['step_seconds']:.6g}", f"{time['device_seconds']:.6g}", f"{time['host_seconds']:.6g}", time["bound_by"],
            str(time["anchored"]).lower(), f"{simple['roofline']:.6g}", f"{simple['pytorch']:.6g}"], None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("sources", nargs="*")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--program", default=ROOT / "target/debug/vramlab")
    options = parser.parse_args()
    speeds = {row["name"]: row for row in csv.DictReader(open(ROOT / "src/sim/src/cards.csv"))}
    path = HERE / "predictions.csv"
    there = {(row["source"], row["case"], row["card"]) for row in rows_of(path)} if path.exists() else set()
    with open(path, "a", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        if not there:
            out.writerow(FIELDS)
        for key in dict.fromkeys(cases(options.folder)):
            if key in there or (options.sources and key[0] not in options.sources):
                continue
            figures, why = rehearsed(options.program, options.python, *key, speeds)
            print(*key, *(figures or ["-", why]), flush=True)
            if figures:
                out.writerow([*key, *figures])
                file.flush()


if __name__ == "__main__":
    main()
