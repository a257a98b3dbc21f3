"""Rehearses the ecosystem: every model of models.py, every script of features.py and the lines of lines.py, with the Python that runs this.

    run.py --vramlab PROGRAM [--only TEXT] [--again] [--jobs N] [--nanogpt FOLDER] [--imagenet FILE]

Writes results.csv beside this file and the table docs/ecosystem.md; with --only and --again, what was not run stays as it was there. Its exit status is
1 where something that worked in the results.csv from before does not work any more, or needs another peak with the same versions. Needs
nothing that is not Python's own.
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
import lines

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULTS, PAGE = HERE / "results.csv", ROOT / "docs" / "ecosystem.md"
# Every model is taken as it comes, most of them at the width that it was published with, so the card is large.
CARD = "1024GiB"
LIMIT = 7200
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

LINES = "lines of --what-if"

# `alike`: the same error comes on the CPU, where nothing is simulated.
# `peak` is allocated; `reserved` is told of scripts.
Row = collections.namedtuple("Row", "group name works peak seconds why alike reserved", defaults=("", False, ""))


def rehearse(options, flags, command, environment=None, hear=lambda line: None):
    """The rehearsal's exit status, what it says of errors, and its answer; an empty one where there is none. Lines are heard as they come."""
    with tempfile.TemporaryDirectory() as folder:
        answer, errors = Path(folder) / "answer.json", Path(folder) / "errors"
        words = [options.vramlab, "rehearse", "--timeout", str(LIMIT), "--json", str(answer), *flags, "--", *command]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})}
        with open(errors, "w") as told, subprocess.Popen(
            words, cwd=HERE, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=told, text=True, errors="replace"
        ) as running:
            for line in running.stdout:
                hear(line)
        return running.returncode, errors.read_text(errors="replace"), json.loads(answer.read_text()) if answer.exists() else {}


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("vramlab: ")]
    errors = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception"))]
    return next(iter((told or errors or lines)[-1:]), "")


def models(options, group, only):
    """The models of a group with one of these texts in their name; one that ends the process is told, and the next process goes on behind it."""
    rows, peaks, after, begun = [], [], None, None

    def hear(line):
        nonlocal begun
        if not line.startswith("MATRIX "):
            return
        told = json.loads(line[7:])
        begun = told.get("begins")
        if not begun:
            failed = told.get("failed", "")
            peaks.append(told["peak"] + told["left"])
            why, alike = failed or told["note"], told.get("on_the_cpu_too", False)
            add(Row(GROUPS[group], told["name"], not failed, told["peak"], told["seconds"], why, alike))

    def add(row):
        rows.append(row)
        print(f"{row.group}: {row.name}: {'works' if row.works else row.why}", file=sys.stderr, flush=True)

    while True:
        command = [sys.executable, "models.py", group, "--only", *only, *(["--after", after] if after else [])]
        peaks.clear()
        status, errors, answer = rehearse(options, ["--gpu", CARD, "--steps", "all", "--quiet"], command, hear=hear)
        if begun:
            add(Row(GROUPS[group], begun, False, "", "", f"the process ended: {last_line(errors)}"))
            after, begun = begun, None
            continue
        if status not in (0, 3):
            add(Row(GROUPS[group], "(the rehearsal)", False, "", "", last_line(errors)))
        elif peaks and max(peaks) != answer["peak_allocated"]:
            why = f"PyTorch's meter says {max(peaks)} B at most and the answer {answer['peak_allocated']} B"
            add(Row(GROUPS[group], "(the answer)", False, "", "", why))
        return rows


def feature(options, name):
    wanted, _ = features.FEATURES[name]
    words = {"python": sys.executable, "script": str(HERE / "features.py"), "folder": str(HERE), "bin": str(Path(sys.executable).parent)}
    command = shlex.split(wanted.command.format(**words)) if wanted.command else [sys.executable, words["script"], name]
    return script(options, wanted, command)


def script(options, wanted, command):
    began = time.monotonic()
    status, errors, answer = rehearse(options, wanted.flags, command, wanted.environment)
    seconds = round(time.monotonic() - began, 1)
    works = status == wanted.status and wanted.says in errors
    why = "" if works and not wanted.status else last_line(errors)
    print(f"{wanted.group}: {wanted.title}: {'works' if works else why}", file=sys.stderr, flush=True)
    peak, reserved = answer.get("peak_allocated", ""), answer.get("peak_reserved", "")
    return [Row(wanted.group, wanted.title, works, peak, seconds, why, reserved=reserved)]


def written(options, of):
    """A row for each technique of a script: the lines that it is told by, pasted, ask for the bytes that it was measured with."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"
        path.write_text(of.source)
        command = [sys.executable, str(path)]
        _, errors, measured = rehearse(options, ["--quiet", "--what-if", "--only", ",".join(of.techniques)], command)
        for name in of.techniques:
            began = time.monotonic()
            row = next((row for row in measured or [] if row["techniques"] == [name]), {"reason": last_line(errors)})
            why = row.get("reason") or ""
            if not why:
                path.write_text(of.paste(of.source, row["snippet"]))
                _, errors, answer = rehearse(options, ["--quiet"], command)
                peaks = ("peak_allocated", "peak_reserved")
                differ = [f"{row[peak]} B by its hooks and {answer.get(peak)} B by its lines" for peak in peaks if row[peak] != answer.get(peak)]
                why = ", ".join(differ) if answer else last_line(errors)
            seconds = round(time.monotonic() - began, 1)
            peak, reserved = row.get("peak_allocated", ""), row.get("peak_reserved", "")
            rows.append(Row(LINES, f"{of.title}, {name}", not why, peak, seconds, why, reserved=reserved))
            print(f"{LINES}: {rows[-1].name}: {why or 'the bytes of its hooks'}", file=sys.stderr, flush=True)
    return rows


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
        "Face architecture in a plain loop and once more with its `Trainer` in bf16, or in 32 bits where its own code does not know bf16 and says",
        "so on a GPU, too; few layers, the library's own widths. A model that fails",
        "is tried on the CPU: the same error there is the library's, or that of the inputs that it is given here. Lines that `--what-if` gives",
        "for 8-bit optimizers and for a `Trainer` are pasted into the script, and work where it then asks for the bytes of the hooks.",
        "",
        "With " + ", ".join(f"{package} {version}" for package, version in found.items() if version != "none") + f"; Python {sys.version.split()[0]}.",
        "",
        "| what | works | fails on the CPU, too | fails | seconds |",
        "|---|---:|---:|---:|---:|",
    ]
    groups = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    for group, of in groups.items():
        seconds = sum(float(row.seconds or 0) for row in of)
        alike = sum(row.alike for row in of)
        works = sum(row.works for row in of)
        lines.append(f"| {group} | {works} | {alike or ''} | {len(of) - works - alike or ''} | {seconds:.0f} |")
    lines += ["", "## Scripts", "", "| | peak allocated | peak reserved | seconds |", "|---|---:|---:|---:|"]
    for row in rows:
        if row.group not in GROUPS.values():
            peaks = f"{size(row.peak)} | {size(row.reserved)}" if row.works else "does not work | "
            lines.append(f"| {row.group}: {cell(row.name)} | {peaks} | {row.seconds} |")
    failed = [row for row in rows if not row.works]
    for title, of in (
        ("What does not work", [row for row in failed if not row.alike]),
        ("What fails on the CPU with the same error", [row for row in failed if row.alike]),
    ):
        lines += ["", f"## {title}", "", *(["| | why |", "|---|---|"] if of else ["Nothing that was tried."])]
        lines += [f"| {row.group}: {cell(row.name)} | {cell(row.why)} |" for row in of]
    lines += ["", "## Peaks of two training steps", ""]
    for group, of in groups.items():
        if group in GROUPS.values():
            told = ", ".join(f"{cell(row.name)}{row.why and f' {row.why}'} {size(row.peak)}" for row in of if row.works)
            lines += [f"<details><summary>{group}</summary>", "", told, "", "</details>", ""]
    return "\n".join(lines).rstrip() + "\n"


def read():
    """The rows of results.csv, and the versions that they are of."""
    if not RESULTS.exists():
        return [], None
    with open(RESULTS) as file:
        rows = [Row(**{**row, "works": row["works"] == "True", "alike": row["alike"] == "True"}) for row in csv.DictReader(file)]
    return rows[1:], json.loads(rows[0].name)


def compare(rows, before, same):
    """What is worse than in the results from before."""
    before = {(row.group, row.name): row for row in before}
    worse = []
    for row in rows:
        then = before.get((row.group, row.name))
        if not then or not then.works:
            continue
        if not row.works:
            worse.append(f"{row.group}: {row.name} worked, and now: {row.why}")
        elif same and then.peak != str(row.peak):
            worse.append(f"{row.group}: {row.name} needed {then.peak} B and now {row.peak} B")
    return worse


def merge(before, rows, whole_groups):
    """What ran in the place of what is told of it from before."""
    whole = {row.group for row in rows if row.group in GROUPS.values()} if whole_groups else set()
    ran = {(row.group, row.name) for row in rows}
    # What is told of a group as a whole.
    ran |= {(row.group, name) for row in rows for name in ("(the rehearsal)", "(the answer)")}
    kept = [row for row in before if row.group not in whole and (row.group, row.name) not in ran]
    order = [*GROUPS.values(), *dict.fromkeys(wanted.group for wanted, _ in features.FEATURES.values()), LINES]
    return sorted((row for row in kept + rows if row.group in order), key=lambda row: (order.index(row.group), row.name))


def write(rows, found):
    with open(RESULTS, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerow(Row("versions", json.dumps(found), "", "", ""))
        writer.writerows(rows)
    PAGE.write_text(page(rows, found))


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--vramlab", required=True)
    options.add_argument("--only", default="", metavar="TEXT", help="groups and scripts whose name has this")
    options.add_argument("--only-model", default="", metavar="TEXT", help="models whose name has this, and no scripts")
    options.add_argument("--again", action="store_true", help="what did not work the last time")
    options.add_argument("--jobs", type=int, default=os.cpu_count())
    options.add_argument("--nanogpt", metavar="FOLDER", help="a checkout of karpathy/nanoGPT with data prepared")
    options.add_argument("--imagenet", metavar="FILE", help="main.py of pytorch/examples' imagenet")
    options = options.parse_args()
    found, (before, versions_before) = versions(), read()
    same = found == versions_before
    some = bool(options.only or options.only_model or options.again)
    if some and before and not same:
        sys.exit(f"run.py: {RESULTS} is of other versions of the libraries; run everything, without --only and --again")
    failed = {(row.group, row.name) for row in before if not row.works}
    rows = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        # The long ones first.
        waiting = []
        for group in sorted((group for group in GROUPS if options.only in group), key=lambda group: not group.startswith("transformers")):
            again = ["" if name.startswith("(") else name for of, name in failed if of == GROUPS[group]]
            if again or not options.again:
                waiting.append(pool.submit(models, options, group, again if options.again else [options.only_model]))
        if not options.only_model:
            for name, (wanted, _) in features.FEATURES.items():
                if options.only in name and (not options.again or (wanted.group, wanted.title) in failed):
                    waiting.append(pool.submit(feature, options, name))
            for of in lines.SCRIPTS:
                titles = {(LINES, f"{of.title}, {name}") for name in of.techniques}
                if options.only in LINES and (not options.again or titles & failed):
                    waiting.append(pool.submit(written, options, of))
            for wanted, command, folder in theirs(options):
                if options.only in wanted.title and (not options.again or (wanted.group, wanted.title) in failed):
                    waiting.append(pool.submit(script, options, wanted, ["env", "-C", folder, *command] if folder else command))
        for done in concurrent.futures.as_completed(waiting):
            rows += done.result()
            if some or not before:
                # A long run that is interrupted leaves what it has seen.
                write(merge(before, rows, not (options.only_model or options.again)), found)
    worse = compare(rows, before, same)
    if not some:
        write(merge([], rows, True), found)
    works = sum(row.works for row in rows)
    print(f"{works} of {len(rows)} work", file=sys.stderr)
    for line in worse:
        print(f"worse: {line}", file=sys.stderr)
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
