"""What scripts take with each version of a package: writes rows.csv and jumps.txt beside this file. Goes on where it was stopped.

    measure.py --vramlab PROGRAM [--python PYTHON] [CASE...]

The Python is one that has PyTorch; what an earlier run found of other cases stays.
"""

import argparse
import csv
import datetime
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PRESETS = ROOT / "src/rehearse/python/presets/train.py"
TORCH = ["--torch", "2.9..2.12"]
# Flags of `vramlab versions`, and the script with its flags.
CASES = {
    "int8_function compiled": ([*TORCH, "--gpu", "rtx-4090", "--steps", "all"], [HERE / "int8_function.py", "compile"]),
    "int8_function eager": ([*TORCH, "--gpu", "rtx-4090", "--steps", "all"], [HERE / "int8_function.py"]),
    "llama_long": (
        ["--package", "transformers=4.37.2,4.38.2,4.39.3,4.40.2", "--gpu", "a100-80g", "--steps", "all"],
        [HERE / "llama_long.py"],
    ),
    **{
        f"transformers {name}": (
            ["--package", "transformers=4.49,4.57,5.5", "--gpu", "a100-80g", "--steps", "all"],
            [HERE / "architectures.py", name],
        )
        for name in ["mixtral", "qwen2", "gemma2", "t5", "bert", "whisper"]
    },
    **{
        f"{model} {mode}": ([*TORCH, "--gpu", "a100-80g"], [PRESETS, "--model", model, "--batch", batch, *flags])
        for model, batch in [("gpt2", "8"), ("bert-base", "8"), ("vit-l16", "16"), ("resnet50", "32"), ("llama-1b", "1"), ("sd-unet", "1")]
        for mode, flags in [("eager", []), ("compiled", ["--compile", "default"])]
    },
}
COLUMNS = ["case", "version", "peak_allocated", "peak_reserved", "verdict", "missing", "date"]


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--vramlab", required=True)
    options.add_argument("--python", default=sys.executable)
    options.add_argument("cases", nargs="*", metavar="CASE", default=list(CASES))
    options = options.parse_args()
    table, jumps = HERE / "rows.csv", HERE / "jumps.txt"
    known = list(csv.DictReader(table.open())) if table.exists() else []
    told = dict(part.split("\n", 1) for part in jumps.read_text().split("\n## ")[1:]) if jumps.exists() else {}
    for case in options.cases:
        flags, command = CASES[case]
        out = ROOT / "target/versions" / case.replace(" ", "-")
        words = [options.vramlab, "versions", *flags, "--out", out, "--", options.python, *command]
        if subprocess.run(list(map(str, words)), stdout=subprocess.DEVNULL).returncode:
            sys.exit(f"{case}: there are no figures")
        found = json.loads((out / "versions.json").read_text())
        known = [row for row in known if row["case"] != case]
        for row in found["rows"]:
            version = " ".join(f"{pin['package']}=={pin['version']}" for pin in row["pins"])
            values = {**row, "case": case, "version": version, "date": datetime.date.today()}
            known.append({name: values.get(name) or "" for name in COLUMNS})
        told[case] = (out / "versions.txt").read_text()
        with table.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(known)
        jumps.write_text("# Written by measure.py\n" + "".join(f"\n## {name}\n{text.rstrip()}\n" for name, text in told.items()))


if __name__ == "__main__":
    main()
