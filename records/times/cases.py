"""Which steps of others are rehearsed, by source; of their records names and sizes alone are read.

A sample is chosen by the checksum of a model's name.
"""

import os
import pathlib
import zlib

from gather import rows_of

NEUSIGHT = {
    "NVIDIA_A100-PCIE-40GB": "a100-pcie-40g",
    "NVIDIA_A100_80GB_PCIe": "a100-pcie-80g",
    "NVIDIA_H100_80GB_HBM3": "h100",
    "NVIDIA_L4": "l4",
    "Tesla_T4": "t4",
    "Tesla_V100-PCIE-32GB": "v100",
}
LAYOUTS = ("nchw", "nhwc")


def checksum(name):
    return zlib.crc32(name.encode())


def timm_train(folder):
    rows = [(row, layout) for layout in LAYOUTS for row in rows_of(folder / f"timm-train-amp-{layout}-pt112-cu113-rtx3090.csv.gz")]
    for row, layout in sorted(rows, key=lambda pair: (checksum(pair[0]["model"]), pair[1])):
        if checksum(row["model"]) % 14 == 0:
            yield f"{row['model']} {row['train_batch_size']} {row['train_img_size']} {layout}"


def timm_infer(folder):
    # One size of a model.
    seen = set()
    for row in sorted(rows_of(folder / "timm-infer/benchmark-infer-amp-nchw-pt240-cu124-rtx4090.csv.gz"), key=lambda row: checksum(row["model"])):
        if checksum(row["model"]) % 43 == 3 and not (row["model"] in seen or seen.add(row["model"])) and int(row["infer_img_size"]) <= 288 and float(row["param_count"]) < 120:
            for layout in LAYOUTS:
                yield f"{row['model']} {row['infer_batch_size']} {row['infer_img_size']} {layout}"


def neusight(folder):
    for row in sorted(rows_of(folder / "neusight_labels.csv"), key=lambda row: ("-train-" not in row["run"], row["run"])):
        if row["gpu"] in NEUSIGHT and row["run"].count("-") == 3 and not row["run"].startswith("switch"):
            yield row["run"]


def kernelbench(folder):
    root = pathlib.Path(os.environ["KERNELBENCH"])
    for level in sorted(root.glob("*/level*")):
        for path in sorted(level.glob("*.py"), key=lambda path: int(path.name.split("_")[0])):
            yield str(path.relative_to(root))


def kernelbench_compiled(folder):
    return (case for case in kernelbench(folder) if case.startswith("old/level3/") and checksum(case) % 4 == 0)


def of(source, folder):
    return {"timm-train": timm_train, "timm-infer": timm_infer, "neusight": neusight, "kernelbench": kernelbench,
            "kernelbench-compiled": kernelbench_compiled,
            "kineto": lambda folder: [""]}[source](folder)
