"""Predicts the recorded steps (records/times/steps) with the program's own model and, only then, reads what others measured of them.

    python records/times/evaluate.py [--constants FILE] [--rows] [SOURCE...]
"""

import argparse
import csv
import gzip
import io
import math
import pathlib
import statistics
import subprocess

import model

RECORDS = model.ROOT / "records/times"
# Cards of the records that cards.csv has no line for are left out.
CARDS = {"kineto": ["v100"], "neusight": ["a100-pcie-40g", "a100-pcie-80g", "h100", "l4", "t4", "v100"], "timm-train": ["rtx-3090"],
         "timm-infer": ["rtx-3090", "rtx-4090"]}
PROGRAM = model.ROOT / "target/debug/examples/steps"


def predicted(source, constants=None, program=PROGRAM, without=None):
    """Of all cards that the source has, or of one without the records of its chip."""
    with gzip.open(RECORDS / "steps" / f"{source}.csv.gz", "rt") as file:
        text = file.read()
    known = [row["name"] for row in csv.DictReader(open(model.ROOT / "src/sim/src/cards.csv"))]
    asked = CARDS.get(source) or [card for card in known if card in ("a100-80g", "a100-40g", "a10", "a10g", "b200", "h100", "l40s", "l4", "t4",
                                                                     "rtx-3090-ti", "h100-pcie")]
    asked = [without] if without in asked else [] if without else asked
    command = [program, *(["--constants", constants] if constants else []), *(["--without", without] if without else []), *asked]
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True)
    return {(source, row["case"], row["card"]): row for row in csv.DictReader(io.StringIO(done.stdout))}


def rows(sources, constants=None, program=PROGRAM, without=None):
    """Predicted first; then what was measured of the same."""
    found = {}
    for source in sources:
        found.update(predicted(source, constants, program, without))
    with gzip.open(RECORDS / "measured.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            key = row["source"], row["case"], row["card"]
            if key in found:
                yield {**found[key], "source": row["source"], "measured": float(row["seconds"]), "predicted": float(found[key]["seconds"])}


def quantile(values, share):
    values = sorted(values)
    at = share * (len(values) - 1)
    low = math.floor(at)
    return values[low] + (values[min(low + 1, len(values) - 1)] - values[low]) * (at - low)


def summary(some):
    errors = [abs(row["predicted"] / row["measured"] - 1) for row in some]
    inside = sum(float(row["low"]) <= row["measured"] <= float(row["high"]) for row in some) / len(some)
    ratio = statistics.median(row["measured"] / row["predicted"] for row in some)
    return f"{len(some):4} {quantile(errors, .5):6.1%} / {quantile(errors, .9):6.1%}  x{ratio:.2f}  in {inside:.0%}"


def is_of_host(row):
    """A step of KernelBench's networks that the host bounds: it says nothing of the card. Of a recurrent layer's launches the host makes one."""
    launches = float(row["launches"])
    return "/level3/" in row["case"] and float(row["device_seconds"]) <= 2e-5 * launches and 20 <= launches < 2000


def is_judged(row):
    """Level 1 of KernelBench is fitted."""
    if row["source"].startswith("kernelbench"):
        return "/level3/" in row["case"] and float(row["device_seconds"]) > 2e-5 * float(row["launches"])
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sources", nargs="*", default=[path.name.split(".")[0] for path in sorted((RECORDS / "steps").glob("*.csv.gz"))])
    parser.add_argument("--constants")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--program", default=PROGRAM)
    options = parser.parse_args()
    found = [row for row in rows(options.sources, options.constants, options.program) if is_judged(row)]
    groups = {}
    for row in found:
        for name in ((row["source"], row["card"]), (row["source"], "all"), ("all", row["records"])):
            groups.setdefault(name, []).append(row)
    for name, some in sorted(groups.items()):
        print(f"{name[0]:12} {name[1]:14} {summary(some)}")
    if options.rows:
        for row in sorted(found, key=lambda row: row["measured"] / row["predicted"]):
            shares = [part.split(":") for part in row["classes"].split(";")]
            whole = float(row["device_seconds"])
            print(f"{row['source']:10} {row['card']:10} {row['case'][:45]:45} {row['predicted']*1e3:9.3f} {row['measured']*1e3:9.3f} "
                  f"{row['measured']/row['predicted']:5.2f} {row['bound_by']:10} " + " ".join(f"{name} {float(part)/whole:.0%}" for name, part in shares[:4]))


if __name__ == "__main__":
    main()
