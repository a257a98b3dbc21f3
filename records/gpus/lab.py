"""The lab's cells on an H100 beside their predictions: lab.py MEASURED PREDICTED, two folders of results of one profile; writes h100-lab.csv.

Cells were counted on the GPU several experiments at a time, each pass in a process of its own; what was not reached in the time is not there.
"""

import csv
import sys
from pathlib import Path

PEAKS = ["requested_peak", "allocated_peak", "reserved_peak"]


def peaks(folder):
    """By cell: the peaks of its first memory pass that ended well."""
    cells = {}
    for row in csv.DictReader((folder / "samples.csv").open()):
        if row["metric"] in PEAKS and row["status"] == "ok" and row["value"]:
            cells.setdefault(row["cell"], {}).setdefault(row["metric"], int(float(row["value"])))
    return {cell: found for cell, found in cells.items() if len(found) == len(PEAKS)}


def main():
    measured, predicted = map(Path, sys.argv[1:])
    rows = []
    for folder in sorted(path for path in measured.iterdir() if (predicted / path.name / "samples.csv").exists()):
        real, foreseen = peaks(folder), peaks(predicted / folder.name)
        for cell in sorted(real.keys() & foreseen.keys()):
            rows.append([folder.name, cell, *(value for peak in PEAKS for value in (foreseen[cell][peak], real[cell][peak]))])
    with Path(__file__).with_name("h100-lab.csv").open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["experiment", "cell", *(name for peak in PEAKS for name in (f"{peak}_predicted", f"{peak}_measured"))])
        out.writerows(rows)
    for number, peak in enumerate(PEAKS):
        off = sorted(abs(row[2 + 2 * number] / row[3 + 2 * number] - 1) for row in rows)
        shares = ", ".join(f"{sum(each <= most for each in off)} within {most:.1%}" for most in (0.001, 0.01))
        print(f"{peak}: {len(rows)} cells, {off.count(0)} equal, {shares}, at most {off[-1]:.1%}")


if __name__ == "__main__":
    main()
