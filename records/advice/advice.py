"""What the answer advises beside what `--what-if` finds when it tries everything: eight programs of different kinds, rehearsed for an H100.

    advice.py --vramlab PROGRAM [--python PYTHON] [NAME...]    adds to rows.csv, a row for each technique that is advised or among what-if's first three
    advice.py --vramlab PROGRAM --estimates [NAME...]          the advice alone; what was tried stays as it is in rows.csv
    advice.py                                                  says of each program in rows.csv whether the first three kinds of both agree

The advice is estimated from one rehearsal; what-if rehearses each technique. `place` is what-if's place among techniques by themselves that save a
twentieth of what the program needs or more, one of a kind; empty where it is not among them. Both save bytes of what the program needs.
"""

import argparse
import ast
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parent / "gpus/programs"
TECHNIQUES = HERE.parent.parent / "src/rehearse/python/vramlab_rehearsal/techniques"
NAMES = ["resnet50_fp32", "gpt2_bf16", "llama_lora", "unet", "lstm", "llama_prefill", "faster_rcnn", "t5_fp32"]
COLUMNS = ["program", "technique", "advised", "place", "frees", "saved", "longer", "longer_tried"]


def ask(options, name, *flags):
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        words = [options.vramlab, "rehearse", "--quiet", "--gpu", "h100", *flags, "--json", answer, "--", options.python, PROGRAMS / f"{name}.py"]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
        if not answer.exists():
            raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
        return json.loads(answer.read_text())


def heads():
    """What stands in the heads of the techniques' files."""
    headers = (ast.get_docstring(ast.parse(path.read_text()), clean=False) or "" for path in sorted(TECHNIQUES.glob("*.py")))
    return {name: of for header in headers if header.startswith("{") for name, of in json.loads(header).items()}


def groups():
    """Of alternatives the first counts: techniques of one group."""
    return {name: of["group"] for name, of in heads().items()}


def estimates(options, name, rows):
    """The rows with today's advice."""
    advice = {one["technique"]: (place, one) for place, one in enumerate(ask(options, name)["advice"], 1)}
    tried = {row["technique"]: row for row in rows}
    first = [technique for technique, row in tried.items() if row["place"] and int(row["place"]) <= 3]
    for technique in [*advice, *(one for one in first if one not in advice)]:
        place, one = advice.get(technique, (None, {}))
        row = dict.fromkeys(COLUMNS) | tried.get(technique, {})
        yield row | {"program": name, "technique": technique, "advised": place, "frees": one.get("frees"), "longer": one.get("longer")}


def rows_of(options, name):
    advice = ask(options, name)["advice"]
    tried = ask(options, name, "--what-if")
    needs = tried[[row["techniques"] for row in tried].index([])]["needs_at_least"]
    found, seen, group_of = {}, set(), groups()
    for row in tried:
        technique, *more = row["techniques"] or [None]
        if technique and not more and (row["saved"] or 0) * 20 >= needs and group_of.get(technique, technique) not in seen:
            seen.add(group_of.get(technique, technique))
            found[technique] = len(found) + 1
    by_name = {row["techniques"][0]: row for row in tried if len(row["techniques"]) == 1}
    advised = {one["technique"]: place for place, one in enumerate(advice, 1)}
    # The first three, and the first three of those that can be estimated.
    known = heads()
    estimated = [technique for technique in found if known[technique].get("frees")]
    first = [technique for technique, place in found.items() if place <= 3 or technique in estimated[:3]]
    for technique in [*advised, *(one for one in first if one not in advised)]:
        one = next((one for one in advice if one["technique"] == technique), {})
        row = by_name.get(technique, {})
        yield {"program": name, "technique": technique, "advised": advised.get(technique), "place": found.get(technique), "frees": one.get("frees"),
               "saved": row.get("saved"), "longer": one.get("longer"), "longer_tried": (row.get("predicted_change") or {}).get("share")}


def agreement():
    """The first three kinds in both orders, of those that have a place in both; and what is among what-if's first three alone."""
    group_of = groups()
    rows = list(csv.DictReader((HERE / "rows.csv").open()))
    for name in NAMES:
        own = [row for row in rows if row["program"] == name]
        advised, tried = ({}, {})
        for found, key in ((advised, "advised"), (tried, "place")):
            for row in sorted((row for row in own if row[key]), key=lambda row: int(row[key])):
                found.setdefault(group_of[row["technique"]], int(row[key]))
        first = [[kind for kind in order if kind in advised and kind in tried][:3] for order in (advised, tried)]
        alone = [kind for kind, place in tried.items() if place <= 3 and kind not in advised]
        verdict = "agree" if first[0] == first[1] else "differ"
        print(f"{name:14} {verdict:7} advised: {', '.join(first[0])}; tried: {', '.join(first[1])}; tried alone: {', '.join(alone) or 'none'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vramlab")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--estimates", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    if not options.vramlab:
        return agreement()
    path = HERE / "rows.csv"
    rows = list(csv.DictReader(path.open())) if path.exists() else []
    for name in options.names or NAMES:
        own = [row for row in rows if row["program"] == name]
        made = estimates(options, name, own) if options.estimates else rows_of(options, name)
        rows = [row for row in rows if row["program"] != name] + list(made)
        with path.open("w", newline="") as file:
            out = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            out.writeheader()
            out.writerows(rows)
        print(f"{name}: done", flush=True)


if __name__ == "__main__":
    main()
