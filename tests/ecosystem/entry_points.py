"""Rehearses entry points of other people's frameworks, unmodified, each started as its documentation says: entry_points.toml has them.

    entry_points.py --folder FOLDER --prepare                          prints the shell commands that clone, install and make the inputs
    entry_points.py --folder FOLDER --vramlab PROGRAM [--only TEXT]    rehearses, and writes entry_points.csv and docs/ecosystem.md
    entry_points.py --page                                             writes docs/ecosystem.md alone

FOLDER has clones/OWNER/NAME, envs/ENVIRONMENT and data; it fetches nothing itself. With --only what was not run stays as it was. Needs nothing
that is not Python's own.
"""

import argparse
import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIST, RESULTS, PAGE = HERE / "entry_points.toml", HERE / "entry_points.csv", HERE.parent.parent / "docs" / "ecosystem.md"
FIELDS = ["name", "project", "version", "torch", "gpu", "command", "status", "verdict", "steps", "allocated", "reserved", "metered", "rate", "seconds", "why"]
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
    "MPLBACKEND": "agg",
    "DO_NOT_TRACK": "1",
}
TIMEOUT = 400


def prepare(listed, folder):
    """Shell commands that bring everything."""
    q = shlex.quote
    for project in listed["projects"]:
        if "commit" not in project:
            continue
        name, commit = project["name"], project["commit"]
        clone = folder / "clones" / name
        yield f"[ -d {q(str(clone))} ] || git clone -q https://github.com/{name} {q(str(clone))}"
        yield f"git -C {q(str(clone))} checkout -q {commit}"
    for name, environment in listed["environments"].items():
        python = q(str(folder / "envs" / name / "bin" / "python"))
        yield f"[ -x {python} ] || {environment.get('python', 'python3')} -m venv {q(str(folder / 'envs' / name))}"
        yield f"{python} -m pip install -q {' '.join(map(q, environment['packages'].split()))}"
        for project in environment.get("from_clones", []):
            yield f"{python} -m pip install -q --no-build-isolation {q(str(folder / 'clones' / project))}"
    yield f"{q(str(folder / 'envs' / 'hf' / 'bin' / 'python'))} {q(str(HERE / 'inputs.py'))} {q(str(folder / 'data'))}"


def rehearse(entry, options):
    """The row of an entry point."""
    folder, project = options.folder, entry["project"]
    environment, out = folder / "envs" / entry["environment"], folder / "out" / "".join(c if c.isalnum() else "-" for c in entry["name"])
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    places = {"clone": folder / "clones" / project, "clones": folder / "clones", "data": folder / "data", "hub": folder / "data" / "hub", "out": out, "here": HERE}

    def placed(text):
        for name, place in places.items():
            text = text.replace("{" + name + "}", str(place))
        return text

    variables = {**os.environ, **OFFLINE, **{name: placed(value) for name, value in entry.get("variables", {}).items()}}
    variables |= {"PATH": f"{environment / 'bin'}:{variables['PATH']}", "HF_HOME": str(folder / "data" / "hf"), "TORCH_HOME": str(folder / "data" / "torch")}
    variables |= {"PYTHONPATH": f"{HERE / 'meters'}:{variables.get('PYTHONPATH', '')}", "ENTRY_POINT_METERS": str(out)}
    where = placed(entry.get("folder", "{out}"))
    if "before" in entry:
        subprocess.run(placed(entry["before"]), shell=True, check=True, cwd=out, env=variables)
    answer, log, command = out / "answer.json", folder / "out" / f"{out.name}.log", " ".join(entry["command"].split())
    words = [options.vramlab, "rehearse", "--gpu", entry["gpu"], "--timeout", str(options.timeout), "--json", str(answer), "--keep-writes", str(out / "written"), *entry.get("flags", "").split(), "--"]
    began = time.monotonic()
    with open(log, "w") as file:
        status = subprocess.run(
            words + shlex.split(placed(command)), cwd=where, env=variables, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        ).returncode
    seconds = round(time.monotonic() - began, 1)
    found = json.loads(answer.read_text()) if answer.exists() else {}
    processes = found.get("processes") or [{}]
    # Of the process that the answer's figures are of.
    meters = [int(file.read_text()) for file in out.rglob(f"{processes[0].get('process')}.meters")]
    rate = round((found.get("time") or {}).get("tokens_per_second") or 0) or ""
    version = entry.get("commit") or installed(environment, project)
    exception = next((one["exception"] for one in processes if one.get("exception")), None)
    why = "" if status in (0, 3) else last_line(log.read_text(errors="replace"), exception)
    for place, path in [*places.items(), ("env", environment)]:
        why = why.replace(str(path.resolve()), "{" + place + "}").replace(str(path), "{" + place + "}")
    return {
        "name": entry["name"], "project": project, "version": version, "torch": processes[0].get("torch", ""), "gpu": entry["gpu"], "command": command,
        "status": status, "verdict": found.get("verdict", ""), "steps": found.get("steps", ""), "allocated": found.get("peak_allocated", ""),
        "reserved": found.get("peak_reserved", ""), "metered": max(meters, default=""), "rate": rate, "seconds": seconds, "why": why,
    }  # fmt: skip


def last_line(text, exception):
    """What is to blame, in a line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(("vramlab: ", "ENDED BY "))]
    errors = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception"))]
    if exception:
        return f"{exception['type']}: {exception['message']}".splitlines()[0][:300]
    return next(iter((errors or ours or lines)[-1:]), "")[:300]


def installed(environment, package):
    python = environment / "bin" / "python"
    done = subprocess.run([python, "-c", f"import importlib.metadata as m; print(m.version({package!r}))"], capture_output=True, text=True)
    return done.stdout.strip()


# ---- what is written -------------------------------------------------------------------------------------------------------------------


def gib(size):
    return f"{int(size) / 2**30:.2f}" if size not in ("", None) else ""


def cell(text):
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def answered(row):
    """What fits and what does not; a script that failed or was cut has no peak to tell."""
    return row.get("status") in ("0", "3")


def compared(entry, row):
    """What a real GPU took, and how far off the rehearsal is."""
    published = entry.get("published")
    if not published or not answered(row):
        return ""
    if entry["measure"] == "fits":
        return f"said to fit {published:g} GB: {'yes' if int(row['reserved']) < published * 1e9 else 'no'}"
    figures = {entry["measure"]: published} | ({"reserved": entry["published_reserved"]} if "published_reserved" in entry else {})
    return ", ".join(f"{theirs:.4g} GiB {kind}: {int(row[kind]) / 2**30 / theirs - 1:+.1%}" for kind, theirs in figures.items())


def starts(project):
    """A project's entry points, the steps of its ladders among them."""
    for start in project.get("starts", []):
        yield {**project, "project": project["name"], **start}
    for ladder in project.get("ladders", []):
        command = ladder["command"]
        for step in ladder["steps"]:
            command = step.get("command", f"{command.replace(step.get('drops', ''), '')} {step.get('adds', '')}")
            own = {"ladder": ladder["name"], "step": step["name"], "name": f"{ladder['name']}: {step['name']}", "command": command}
            yield {**project, "project": project["name"], **ladder, **step, **own}


def ladder(found):
    """A table of the steps of one ladder."""
    entry = found[0][0]
    lines = [
        f"## {entry['project'].split('/')[-1]}: {entry['ladder']}, step by step", "",
        f"Theirs: {cell(entry['source'])}.", "",
        "| step | theirs, GiB | rehearsed, GiB | | theirs, tokens/s | predicted, tokens/s | |", "|---|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for entry, row in found:
        cells = [cell(entry["step"]), f"{entry['published']:g}"]
        cells += [gib(row[entry["measure"]]), f"{int(row[entry['measure']]) / 2**30 / entry['published'] - 1:+.1%}"] if answered(row) else ["", ""]
        cells += [f"{entry['published_rate']:g}"]
        cells += [row["rate"], f"{int(row['rate']) / entry['published_rate'] - 1:+.0%}"] if row["rate"] else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def page(entries, rows):
    found = [(entry, rows[entry["name"]]) for entry in entries if entry["name"] in rows]
    works = [row for _, row in found if answered(row)]
    metered = [row for row in works if row.get("metered")]
    same = [row for row in metered if row["metered"] == row["allocated"]]
    versions = sorted({row["torch"] for row in works if row["torch"]})
    changed = [entry for entry, _ in found if entry.get("changed")]
    lines = [
        "# Other people's programs under rehearsal",
        "",
        f"{len(works)} of {len(found)} entry points of other people's frameworks give an answer under rehearsal: unmodified, started as their documentation says",
        f"or, {len(changed)} of them, with another flag, model or data, which is named below; with local inputs and zero weights in checkpoints; PyTorch " + ", ".join(versions) + ".",
        "`just test-ecosystem` writes this page (`tests/ecosystem/entry_points.toml` has the list, `entry_points.csv` every row in bytes).",
        f"PyTorch's own meter of allocated bytes, which was read as each process of {len(metered)} of them ended, said the same to the byte in {len(same)}.",
        "The first table has those with a published figure from a real GPU; the reasons for differences are below.",
        "",
    ]
    alone = [(entry, row) for entry, row in found if "ladder" not in entry]
    head = ["| entry point | GPU | answer | peak allocated, GiB | reserved, GiB | seconds | compared with a real GPU |", "|---|---|---|---:|---:|---:|---|"]

    def line(entry, row):
        verdict = row["verdict"].replace("_", " ") or f"none, status {row['status']}"
        peaks = f"{gib(row['allocated'])} | {gib(row['reserved'])}" if answered(row) else " | "
        return f"| {entry['project'].split('/')[-1]}: {cell(entry['name'])} | {row['gpu']} | {verdict} | {peaks} | {float(row['seconds']):.0f} | {compared(entry, row)} |"

    lines += [*head, *(line(entry, row) for entry, row in alone if compared(entry, row)), ""]
    others = [line(entry, row) for entry, row in alone if not compared(entry, row)]
    lines += [f"<details><summary>{len(others)} more, without a published figure</summary>", "", *head, *others, "", "</details>", ""]
    for name in dict.fromkeys(entry["ladder"] for entry, _ in found if "ladder" in entry):
        lines += ladder([(entry, row) for entry, row in found if entry.get("ladder") == name])
    lines += ["<details><summary>Why some figures differ from those of real GPUs</summary>", "", "| entry point | published by | why |", "|---|---|---|"]
    explained = [entry for entry, _ in found if "source" in entry and ("why" in entry or "ladder" not in entry)]
    for entry in explained:
        source = "above" if "ladder" in entry else cell(entry["source"])
        lines.append(f"| {cell(entry['name'])} | {source} | {cell(entry.get('why', ''))} |")
    lines += ["", "</details>", "", "<details><summary>What does not work, and what was not run</summary>", ""]
    failed = [(entry, cell(rows[entry["name"]]["why"]) if entry["name"] in rows else "not run yet") for entry in entries if not answered(rows.get(entry["name"], {}))]
    lines += ["| entry point | what it says | why |", "|---|---|---|"] if failed else ["Nothing."]
    lines += [f"| {cell(entry['name'])} | {said} | {cell(entry.get('fails', ''))} |" for entry, said in failed]
    lines += ["", "</details>", "", "<details><summary>The commands, and their changes from the documentation</summary>", ""]
    lines += [
        "`{hub}` is a folder with models and data sets under the names of the Hugging Face hub, `{data}` has other inputs, `{clone}` is the repository, `{out}` is empty.",
        "", "| entry point | of | command | changed |", "|---|---|---|---|",
    ]  # fmt: skip
    for entry, row in found:
        # A ladder's steps say what they change of the one before.
        command = f"`… {cell(entry['adds'])}`" if "adds" in entry else f"`{cell(row['command'])}`"
        lines.append(f"| {cell(entry['name'])} | {row['project']} {row['version']} | {command} | {cell(entry.get('changed', ''))} |")
    return "\n".join([*lines, "", "</details>", ""])


def read():
    """Rows from before, by name."""
    if not RESULTS.exists():
        return {}
    with open(RESULTS) as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--folder", type=lambda text: Path(text).resolve())
    options.add_argument("--vramlab")
    options.add_argument("--only", default="", metavar="TEXT", help="entry points whose name or project has this, from the beginning of a word")
    options.add_argument("--timeout", type=int, default=TIMEOUT, metavar="SECONDS")
    options.add_argument("--again", action="store_true", help="those that gave no answer the last time, and those that were never run")
    options.add_argument("--prepare", action="store_true")
    options.add_argument("--page", action="store_true")
    options = options.parse_args()
    listed = tomllib.loads(LIST.read_text())
    entries = [entry for project in listed["projects"] for entry in starts(project)]
    rows = read()
    if options.prepare:
        print("set -euo pipefail", *prepare(listed, options.folder), sep="\n")
        return
    if not options.page:
        for entry in entries:
            name = entry["name"]
            is_wanted = re.search(rf"(?<!\w){re.escape(options.only)}", f"{entry['project']} {name}")
            if not is_wanted or (options.again and name in rows and answered(rows[name])):
                continue
            row = rehearse(entry, options)
            rows = read()
            rows[name] = {key: str(value) for key, value in row.items()}
            print(f"{name}: status {row['status']}, {row['verdict']}, {gib(row['allocated'])} GiB, {row['seconds']} s {row['why']}", file=sys.stderr, flush=True)
            with open(RESULTS, "w", newline="") as file:
                writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows[entry["name"]] for entry in entries if entry["name"] in rows)
    PAGE.write_text(page(entries, rows))


if __name__ == "__main__":
    main()
