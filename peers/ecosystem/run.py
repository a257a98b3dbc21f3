"""Rehearses the ecosystem: every model of models.py and every script of features.py, with the Python that runs this.

    run.py --vramlab PROGRAM [--only TEXT] [--jobs N] [--nanogpt FOLDER] [--imagenet FILE]

Without --only it writes results.csv beside this file and the table docs/ecosystem.md. Its exit status is 1 where something that worked in
the results.csv from before does not work any more, or needs another peak with the same versions. Needs nothing that is not Python's own.
"""

import argparse
import collections
import concurrent.futures
import csv
import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import features

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULTS, PAGE = HERE / "results.csv", ROOT / "docs" / "ecosystem.md"
# Every model is taken as it comes, most of them at the width that it was published with, so the card is large.
CARD = "1024GiB"
LIMIT = 1800
PACKAGES = ["torch", "torchvision", "transformers", "timm", "peft", "accelerate", "lightning", "diffusers", "bitsandbytes", "torchao", "triton"]
# Group of models.py: what the page calls it.
GROUPS = {
    "torchvision_classification": "torchvision, classification",
    "torchvision_segmentation": "torchvision, segmentation",
    "torchvision_detection": "torchvision, detection",
    "timm": "timm, the first model of each family",
    "transformers_causal": "transformers, causal",
    "transformers_masked": "transformers, masked",
    "transformers_encoder_decoder": "transformers, encoder-decoder",
    "transformers_vision": "transformers, image classification",
    "peft": "PEFT on a Llama",
    "diffusers": "diffusers",
}

Row = collections.namedtuple("Row", "group name works peak seconds why")


def rehearse(options, flags, command, environment=None):
    """The rehearsal's end, its output, and its answer; an empty one where there is none."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        words = [options.vramlab, "rehearse", "--timeout", str(LIMIT), "--json", str(answer), *flags, "--", *command]
        done = subprocess.run(
            words, cwd=HERE, env={**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace",
        )  # fmt: skip
        return done, json.loads(answer.read_text()) if answer.exists() else {}


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("vramlab: ")]
    errors = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception"))]
    return next(iter((told or errors or lines)[-1:]), "")


def models(options, group):
    """Every model of a group; one that ends the process is told, and the next process goes on behind it."""
    rows, after = [], None
    while True:
        command = [sys.executable, "models.py", group, "--only", options.only_model, *(["--after", after] if after else [])]
        done, answer = rehearse(options, ["--gpu", CARD, "--steps", "all", "--quiet"], command)
        begun, peaks = None, []
        for line in done.stdout.splitlines():
            if not line.startswith("MATRIX "):
                continue
            told = json.loads(line[7:])
            if "begins" in told:
                begun = told["begins"]
                continue
            begun = None
            peaks.append(told["peak"])
            failed = told.get("failed")
            rows.append(Row(GROUPS[group], told["name"], not failed, told["peak"], told["seconds"], failed or ""))
            print(f"{GROUPS[group]}: {told['name']}: {failed or 'works'}", file=sys.stderr, flush=True)
        if begun is not None:
            rows.append(Row(GROUPS[group], begun, False, "", "", f"the process ended: {last_line(done.stderr)}"))
            after = begun
            continue
        if done.returncode not in (0, 3):
            rows.append(Row(GROUPS[group], "(the rehearsal)", False, "", "", last_line(done.stderr)))
        elif peaks and after is None and max(peaks) != answer["peak_allocated"]:
            why = f"PyTorch's meter says {max(peaks)} B at most and the answer {answer['peak_allocated']} B"
            rows.append(Row(GROUPS[group], "(the answer)", False, "", "", why))
        return rows


def feature(options, name):
    wanted, _ = features.FEATURES[name]
    words = {"python": sys.executable, "script": str(HERE / "features.py"), "folder": str(HERE), "bin": str(Path(sys.executable).parent)}
    command = shlex.split(wanted.command.format(**words)) if wanted.command else [sys.executable, words["script"], name]
    return script(options, wanted, command)


def script(options, wanted, command):
    began = time.monotonic()
    done, answer = rehearse(options, wanted.flags, command, wanted.environment)
    seconds = round(time.monotonic() - began, 1)
    works = done.returncode == wanted.status and wanted.says in done.stderr
    why = "" if works and not wanted.status else last_line(done.stderr)
    print(f"{wanted.group}: {wanted.title}: {'works' if works else why}", file=sys.stderr, flush=True)
    return [Row(wanted.group, wanted.title, works, answer.get("peak_allocated", ""), seconds, why)]


def theirs(options):
    """Other people's scripts, where somebody has them."""
    if options.nanogpt:
        flags = "--compile=False --gradient_accumulation_steps=1 --batch_size=12 --eval_iters=1"
        yield features.Feature("scripts", "nanoGPT's train.py, GPT-2 124M"), [sys.executable, "train.py", *flags.split()], options.nanogpt
    if options.imagenet:
        words = [sys.executable, options.imagenet, "--dummy", "-a", "resnet50", "-b", "32", "-j", "2"]
        yield features.Feature("scripts", "pytorch/examples, imagenet --dummy, ResNet-50"), words, None


# ---- what is written -------------------------------------------------------------------------------------------------------------------


def versions():
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    return found


def size(peak):
    return "" if peak == "" else f"{int(peak) / 2**20:,.1f} MiB" if int(peak) < 10 * 2**30 else f"{int(peak) / 2**30:,.1f} GiB"


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def page(rows, found):
    lines = [
        "# What runs under rehearsal",
        "",
        "Written by `just test-ecosystem`, which makes a virtual environment of its own, rehearses all of this and compares with the",
        "results from before (`peers/ecosystem/results.csv`, every row with its peak in bytes). Two training steps of each model; a Hugging",
        "Face architecture in a plain loop and once more with its `Trainer` in bf16; few layers, the library's own widths.",
        "",
        "With " + ", ".join(f"{package} {version}" for package, version in found.items() if version != "none") + f"; Python {sys.version.split()[0]}.",
        "",
        "| what | works | of | seconds |",
        "|---|---:|---:|---:|",
    ]
    groups = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    for group, of in groups.items():
        seconds = sum(float(row.seconds or 0) for row in of)
        lines.append(f"| {group} | {sum(row.works for row in of)} | {len(of)} | {seconds:.0f} |")
    lines += ["", "## Scripts", "", "| | peak allocated | seconds |", "|---|---:|---:|"]
    for row in rows:
        if row.group not in GROUPS.values():
            lines.append(f"| {row.group}: {cell(row.name)} | {size(row.peak) if row.works else 'does not work'} | {row.seconds} |")
    lines += ["", "## What does not work", ""]
    failed = [row for row in rows if not row.works]
    lines += ["| | why |", "|---|---|"] if failed else ["Nothing that was tried."]
    lines += [f"| {row.group}: {cell(row.name)} | {cell(row.why)} |" for row in failed]
    lines += ["", "## Peaks of two training steps", ""]
    for group, of in groups.items():
        if group in GROUPS.values():
            told = ", ".join(f"{cell(row.name)} {size(row.peak)}" for row in of if row.works)
            lines += [f"<details><summary>{group}</summary>", "", told, "", "</details>", ""]
    return "\n".join(lines).rstrip() + "\n"


def compare(rows, found):
    """What is worse than in the results from before."""
    if not RESULTS.exists():
        return []
    with open(RESULTS) as file:
        before = {(row["group"], row["name"]): row for row in csv.DictReader(file)}
    same = before.pop(("versions", json.dumps(found)), None) is not None
    worse = []
    for row in rows:
        then = before.get((row.group, row.name))
        if then and then["works"] == "True" and not row.works:
            worse.append(f"{row.group}: {row.name} worked, and now: {row.why}")
        elif same and then and row.works and then["works"] == "True" and then["peak"] != str(row.peak):
            worse.append(f"{row.group}: {row.name} needed {then['peak']} B and now {row.peak} B")
    return worse


def write(rows, found):
    with open(RESULTS, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerow(Row("versions", json.dumps(found), "", "", "", ""))
        writer.writerows(rows)
    PAGE.write_text(page(rows, found))


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--vramlab", required=True)
    options.add_argument("--only", default="", metavar="TEXT", help="groups and scripts whose name has this; writes nothing")
    options.add_argument("--only-model", default="", metavar="TEXT", help="with --only: models whose name has this")
    options.add_argument("--jobs", type=int, default=os.cpu_count())
    options.add_argument("--nanogpt", metavar="FOLDER", help="a checkout of karpathy/nanoGPT with data prepared")
    options.add_argument("--imagenet", metavar="FILE", help="main.py of pytorch/examples' imagenet")
    options = options.parse_args()
    found = versions()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        # The long ones first.
        waiting = [pool.submit(models, options, group) for group in GROUPS if options.only in group]
        waiting += [pool.submit(feature, options, name) for name in features.FEATURES if options.only in name]
        for wanted, command, folder in theirs(options):
            if options.only in wanted.title:
                waiting.append(pool.submit(script, options, wanted, ["env", "-C", folder, *command] if folder else command))
        rows = [row for done in waiting for row in done.result()]
    worse = compare(rows, found)
    if not options.only:
        write(rows, found)
    works = sum(row.works for row in rows)
    print(f"{works} of {len(rows)} work", file=sys.stderr)
    for line in worse:
        print(f"worse: {line}", file=sys.stderr)
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
