"""Takes what others measured of whole steps out of their files: records/times/measured.csv.gz, which comparison.py sets beside predictions.

    python records/times/measured.py FOLDER KERNELBENCH

FOLDER holds the sources' files (records/times/README.md), KERNELBENCH is a clone of ScalingIntelligence/KernelBench.
"""

import csv
import gzip
import json
import pathlib
import re
import subprocess
import sys

from cases import NEUSIGHT
from gather import ROOT, rows_of, write

MEASURED = ROOT / "records/times/measured.csv.gz"
# Problems of before July 2025 and of after it have other sizes.
KERNELBENCH = {"433d28b7e3": "old", "7811a1c3b1": "new", "15c880c7fb": "new"}
HARDWARE = {"NVIDIA A100-SXM4-80GB": "a100-80g", "NVIDIA A100-SXM4-40GB": "a100-40g", "NVIDIA A10G": "a10g", "NVIDIA A10": "a10",
            "NVIDIA B200": "b200", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA L40S": "l40s", "NVIDIA L4": "l4",
            "NVIDIA GeForce RTX 3090 Ti": "rtx-3090-ti", "Tesla T4": "t4", "NVIDIA H100 PCIe": "h100-pcie"}


def kernelbench(repository):
    git = lambda *words: subprocess.check_output(["git", "-C", repository, *words], text=True)
    found = {}
    for commit, size in KERNELBENCH.items():
        for name in git("ls-tree", "-r", "--name-only", commit, "results/timing").split():
            source = {"baseline_time_torch.json": "kernelbench",
                      "baseline_time_torch_compile_inductor_default.json": "kernelbench-compiled"}.get(name.split("/")[-1])
            # Two more machines with an L40S measured the same.
            if source is None or name.split("/")[2] in ("L40S_modal", "L40S_babel"):
                continue
            for level, problems in json.loads(git("show", f"{commit}:{name}")).items():
                for problem, one in problems.items():
                    if one and (level == "level1" or (level == "level3" and size == "old")) and one["hardware"] in HARDWARE:
                        found[source, f"{size}/{level}/{problem}", HARDWARE[one["hardware"]]] = one["mean"] / 1e3
    return found


def timm(folder):
    found = {}
    for layout in ("nchw", "nhwc"):
        for row in rows_of(folder / f"timm-train-amp-{layout}-pt112-cu113-rtx3090.csv.gz"):
            case = f"{row['model']} {row['train_batch_size']} {row['train_img_size']} {layout}"
            found["timm-train", case, "rtx-3090"] = float(row["train_step_time"]) / 1e3
    for path in sorted((folder / "timm-infer").glob("*.csv.gz")):
        layout, version, card = re.search(r"amp-(n...)-(pt\d+)-cu\d+-rtx(\d+)", path.name).groups()
        # Of three versions of cuDNN on one card the newest.
        if version != "pt240":
            continue
        for row in rows_of(path):
            case = f"{row['model']} {row['infer_batch_size']} {row['infer_img_size']} {layout}"
            found["timm-infer", case, f"rtx-{card}"] = float(row["infer_step_time"]) / 1e3
    return found


def neusight(folder):
    return {("neusight", row["run"], NEUSIGHT[row["gpu"]]): float(row["e2e_ms"]) / 1e3
            for row in rows_of(folder / "neusight_labels.csv") if row["gpu"] in NEUSIGHT}


def rehearsed():
    """Sources and cases whose steps are there."""
    for path in sorted((ROOT / "records/times/steps").glob("*.csv.gz")):
        yield from {(path.name.split(".")[0], row["case"]) for row in rows_of(path)}


def main():
    folder = pathlib.Path(sys.argv[1])
    found = {**kernelbench(sys.argv[2]), **timm(folder), **neusight(folder)}
    there = set(rehearsed())
    rows = [(*key, f"{seconds:.5g}") for key, seconds in sorted(found.items()) if key[:2] in there]
    write(MEASURED, "source,case,card,seconds", rows)
    print(len(rows))


if __name__ == "__main__":
    main()
