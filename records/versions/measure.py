"""What scripts take with each version of a package: writes rows.csv and jumps.csv beside this file. Goes on where it was stopped.

    measure.py --vramlab PROGRAM [--python PYTHON] [--again] [--version VERSION]... [CASE...]

The Python is one that has PyTorch and the packages that a case does not vary. A case may be a group's name. A row with figures is kept, but with
--again. All cases of a version are rehearsed before the next version, so that few environments have to be there at once. What a case has of a clone
(`owner/name`, whose versions are tags, or a commit with its time before it) is taken from the folder `name` in --clones.
"""

import argparse
import csv
import datetime
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "target/versions"
PRESETS = ROOT / "src/rehearse/python/presets/train.py"
JUMP, SMALL = 0.05, 8 << 20
# In the order in which they are rehearsed: what lies far apart first.
TORCH = "2.8.0 2.13.0 2.10.0 2.6.0 2.15.0 2.12.1 2.9.1 2.7.1 2.14.1 2.11.0"
COLUMNS = ["case", "version", "peak_allocated", "peak_reserved", "needs_at_least", "step_seconds", "kv_cache", "tokens", "verdict", "missing", "date"]
CHANGED = ["case", "before", "after", "bytes", "change", "line", "source", "module", "category"]


class Case:
    """A script, and the versions of a package or of a clone that it is rehearsed with, beside one version of another; a sweep prints
    'peak NAME: BYTES' for each of its parts."""

    def __init__(self, package, versions, script, *words, flags=("--steps", "all"), gpu="a100-80g", is_sweep=False, beside="", launch=()):
        self.package, self.versions, self.is_sweep, self.beside = package, versions.split(), is_sweep, beside
        self.command = [*launch, script if isinstance(script, Path) else HERE / script, *words]
        self.flags = ["--gpu", gpu, *flags]

    def pins(self, version):
        """Of packages, and of clones."""
        pins = [pin for pin in [f"{self.package}={version}", self.beside] if pin]
        return [pin for pin in pins if "/" not in pin], [pin for pin in pins if "/" in pin]

    def kept_as(self, version):
        """The name, without its ending, of what is kept of a version."""
        packages, clones = self.pins(version)
        return "_".join(packages or clones).replace("=", "-").replace("/", "-")


# What PyTorch 2.8 to 2.10 for CUDA 12 ask for; an environment has it only if it is asked for.
CUDNN = "nvidia-cudnn-cu12=9.10.2.21"
TRANSFORMERS = "4.50.3 5.24.0 4.57.6 5.0.0 4.53.3 5.8.1 4.55.4 5.16.1"
VLLM = "0.20.2 0.21.0 0.25.1 0.26.0 0.28.0 0.30.0 0.31.0 0.32.0 0.33.0"
CASES = {
    "int8_function compiled": Case("torch", TORCH, "int8_function.py", "compile", gpu="rtx-4090"),
    "int8_function eager": Case("torch", TORCH, "int8_function.py", gpu="rtx-4090"),
    "layers": Case("torch", TORCH, "layers.py", is_sweep=True),
    **{
        f"{model} {mode}": Case("torch", TORCH, PRESETS, "--model", model, "--batch", batch, *flags, flags=())
        for mode, flags in [
            ("eager", []), ("eager autocast", ["--bf16"]), ("compiled", ["--compile", "default"]),
            ("compiled autocast", ["--compile", "default", "--bf16"]),
        ]
        for model, batch in [("gpt2", "8"), ("bert-base", "8"), ("vit-l16", "16"), ("resnet50", "32"), ("llama-1b", "1"), ("sd-unet", "1")]
    },
    # One training of each package, with its last releases. The others have PyTorch 2.11.0 and the packages of current/requirements.txt beside them.
    "GPT-2 in bfloat16": Case("torch", "2.13.0 2.14.0 2.14.1 2.15.0", PRESETS, "--model", "gpt2", "--batch", "8", "--bf16"),
    "Trainer, Qwen3 0.6B": Case("transformers", "5.21.1 5.22.0 5.22.1 5.22.2 5.23.0 5.24.0", "current/trainer.py"),
    "SFTTrainer, Qwen3 0.6B": Case("trl", "1.13.0 1.14.0 1.14.1 1.14.2 1.15.0 1.16.0", "current/sft.py", flags=("--steps", "all", "--no-init")),
    "FSDP2, Llama": Case(
        "accelerate", "1.12.0 1.13.0 1.14.0 1.15.0", "current/fsdp.py", flags=("--steps", "all", "--gpus", "2", "--no-init"),
        launch=("-m", "accelerate.commands.launch", "--num_processes", "2"),
    ),
    # vLLM names the versions of all that it takes, for a Python with nothing in it; but cuda-python 12 has files of cuda-bindings 12.
    "vLLM, gated delta net": Case("vllm", VLLM, "current/vllm_serve.py", "gdn", flags=("--with", "cuda-python>=13"), gpu="rtx-4090"),
    "vLLM, Qwen3 0.6B": Case("vllm", "0.25.1 0.26.0", "current/vllm_serve.py", "qwen3", flags=("--with", "cuda-python>=13"), gpu="rtx-4090"),
    "Flux LoRA": Case("diffusers", "0.40.0 0.41.0 0.42.0 0.42.1", "current/flux_lora.py"),
    # Threads of others. They want packages of their time: --python with reported/requirements.txt, those of transformers with
    # requirements-transformers.txt, those of clones with requirements-clones.txt or -fms.txt; pytorch#177406 wants diffusers 0.42.
    "pytorch#166643": Case("torch", "2.8.0 2.9.0 2.9.1 2.10.0", "reported/conv3d.py", "bfloat16", gpu="h100", beside=CUDNN),
    "pytorch#166643 float32": Case("torch", "2.8.0 2.9.1", "reported/conv3d.py", "float32", gpu="h100", beside=CUDNN),
    "pytorch#166643 cuDNN 9.15": Case("torch", "2.9.1", "reported/conv3d.py", "bfloat16", beside="nvidia-cudnn-cu12=9.15.1.9"),
    "pytorch#183387": Case("torch", "2.8.0 2.9.1 2.10.0", "reported/alloc_conf.py"),
    "pytorch#177406": Case("torch", "2.8.0 2.9.1 2.10.0", "reported/qwen_vae.py", gpu="rtx-4090", beside=CUDNN),
    "pytorch#166790": Case("torch", "2.8.0 2.9.0 2.10.0", "reported/registration.py", beside=CUDNN),
    "transformers#25709": Case("transformers", "4.31.0 4.32.0 4.33.3", "reported/mask2former.py"),
    "transformers#28024": Case("transformers", "4.34.1 4.35.0 4.35.2 4.36.0 4.36.2", "reported/checkpointed.py", gpu="a10g"),
    "transformers#28339": Case("transformers", "4.36.2 4.37.0", "reported/mixtral.py", flags=()),
    "transformers#30010": Case("transformers", "4.37.2 4.38.2 4.39.3 4.40.2", "reported/qlora.py", flags=(), gpu="rtx-4090"),
    "trl#876": Case("trl", "0.7.1 0.7.2", "reported/sft.py", "mistral", "4", gpu="a100-40g", flags=()),
    "trl#999": Case("trl", "0.5.0 0.7.4", "reported/sft.py", "gpt2", "4", gpu="a100-80g", flags=()),
    "trl#1168": Case("trl", "0.7.1 0.7.7", "reported/sft.py", "llama", "4", gpu="a100-40g", flags=()),
    "peft#1613": Case("peft", "0.3.0 0.10.0", "reported/lora.py"),
    "transformers#24420": Case(
        "huggingface/transformers", "2023-06-21T11:24-1815d1865 2023-06-21T15:04-285a48011 2023-06-22T14:11-3ce3385c4", "reported/whisper.py"
    ),
    "torchtitan#191": Case(
        "pytorch/torchtitan", "2024-03-27T23:10-ab5d91823 2024-03-28T18:54-83c879f18 2024-04-10T17:57-e62573d4c", "reported/titan.py",
        flags=("--steps", "all", "--world-size", "8", "--rank", "0", "--lag", "500"), gpu="96GiB",
    ),
    "sd-scripts#661": Case(
        "kohya-ss/sd-scripts", "2023-06-25T23:07-747af145 2023-07-18T14:17-6d2d8dfd 2023-07-18T23:33-7875ca8f", "reported/sdxl.py", "lora",
        flags=("--steps", "all", "--no-init"), gpu="rtx-3090",
    ),
    "sd-scripts#1141": Case(
        "kohya-ss/sd-scripts", "2023-12-03T09:27-0908c541 2024-02-27T09:23-2d738918", "reported/sdxl.py", "whole", flags=("--no-init",)
    ),
    "fms-acceleration#128": Case(
        "huggingface/transformers", "v4.45.2 v4.49.0", "reported/mixtral_full.py", flags=("--world-size", "8", "--rank", "1"), gpu="192GiB"
    ),
    "ai-toolkit#990": Case(
        "torch", "2.11.0 2.12.1 2.13.0", "reported/krea2.py", gpu="rtx-a6000", beside="ostris/ai-toolkit=2026-07-31-038f24e8"
    ),
    "diffusers#10035": Case("diffusers", "0.30.3 0.31.0", "reported/cogvideox.py"),
    # Jumps that nobody had reported.
    "gemma2": Case("transformers", "5.20.2 5.21.0", "found/gemma2.py"),
    "mamba2": Case("transformers", "5.17.0 5.20.0", "found/mamba2.py"),
    "t5": Case("transformers", "5.17.0 5.20.0 5.20.2 5.21.0 5.24.0", "found/t5.py"),
    "bart generates": Case("transformers", "4.57.6 5.0.0", "found/bart_generates.py"),
    "llama_long": Case("transformers", "4.37.2 4.38.2 4.39.3 4.40.2", "llama_long.py"),
    "architectures": Case("transformers", TRANSFORMERS, "architectures.py", is_sweep=True),
}
# Parts of a sweep by themselves, where their lines are wanted: `measure.py 'layers rms_norm'`.
SWEEPS = {name: case for name, case in CASES.items() if case.is_sweep}


def find(name):
    """The cases of a name or of a group's."""
    if name in CASES:
        return {name: CASES[name]}
    for sweep, case in SWEEPS.items():
        if name.startswith(sweep + " "):
            return {name: Case(case.package, " ".join(case.versions), *case.command, name.removeprefix(sweep + " "))}
    found = {key: case for key, case in CASES.items() if key.endswith(" " + name) or key.startswith(name + " ")}
    return found or sys.exit(f"there is no case '{name}': {', '.join(CASES)}")


class Records:
    """rows.csv, and jumps.csv beside it."""

    def __init__(self):
        read = lambda name: list(csv.DictReader((HERE / name).open())) if (HERE / name).exists() else []
        self.rows, self.jumps = read("rows.csv"), read("jumps.csv")

    def write(self):
        for name, columns, rows in [("rows.csv", COLUMNS, self.rows), ("jumps.csv", CHANGED, self.jumps)]:
            aside = HERE / f"{name}.new"
            with aside.open("w", newline="") as file:
                writer = csv.DictWriter(file, columns, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
            aside.replace(HERE / name)

    def of(self, case, version=None):
        return [row for row in self.rows if row["case"] == case and version in (None, row["version"])]

    def put(self, row):
        """In the order of the cases' versions, so that a later one does not stand before."""
        self.rows = [other for other in self.rows if (other["case"], other["version"]) != (row["case"], row["version"])]
        self.rows.append({name: row.get(name) if row.get(name) is not None else "" for name in COLUMNS})
        self.rows.sort(key=lambda row: (row["case"], numbers(row["version"])))


def folder(name):
    """Where `vramlab versions` keeps a case's answers, of one command with one set of flags."""
    return OUT / name.replace(" ", "-").replace("/", "-")


def numbers(version):
    return [int(part) for part in re.findall(r"\d+", version.partition("==")[2])]


def taken(options, pin):
    """The folder with the files of a clone's commit."""
    clone, version = pin.split("=")
    commit = version.rpartition("-")[2]
    place = OUT / "clones" / f"{clone.replace('/', '-')}-{commit}"
    if not place.exists():
        # Python and TOML; a clone may lack large files.
        words = ["git", "-C", options.clones / clone.split("/")[1], "archive", commit, "*.[pt][yo]*"]
        files = subprocess.run(words, stdout=subprocess.PIPE, check=True)
        tarfile.open(fileobj=io.BytesIO(files.stdout)).extractall(place, filter="data")
    return place


def rehearsed(options, name, case, version):
    """The rows of a case with a version: one, or of a sweep one for each part."""
    out = folder(name)
    packages, clones = case.pins(version)
    places = [taken(options, pin) for pin in clones]
    paths = [path for place in places for path in (place / "src", place)]
    around = {"env": os.environ | {"PYTHONPATH": ":".join(map(str, paths))}, "cwd": places[0]} if places else {}
    kept = out / case.kept_as(version)
    if packages:
        words = [options.vramlab, "versions", *case.flags, "--out", out, "--cache-size", options.cache_size]
        words += [word for pin in packages for word in ("--package", pin)]
    else:
        out.mkdir(parents=True, exist_ok=True)
        words = [options.vramlab, "rehearse", *case.flags, "--quiet", "--json", f"{kept}.json", "--keep", f"{kept}.cap"]
    answer, began = out / "versions.json" if packages else Path(f"{kept}.json"), time.time_ns()
    done = subprocess.run([*map(str, words), "--", options.python, *map(str, case.command)], stdout=subprocess.DEVNULL, **around)
    # There are figures, or there are none for this version; an answer from before is of another version.
    is_new = answer.exists() and answer.stat().st_mtime_ns >= began
    if done.returncode not in (0, 2, *([] if packages else [3])) or not is_new:
        sys.exit(f"{name} with {case.package} {version} was not rehearsed; is {out} of another command?")
    found = json.loads(answer.read_text())
    found = found["rows"][0] if packages else found
    row = {**found, **found.get("serves", {}), "case": name, "version": f"{case.package}=={version}", "date": datetime.date.today()}
    yield row
    log = Path(f"{kept}.log")
    if case.is_sweep and not found.get("missing"):
        for part, said in re.findall(r"^peak (.+?): (.+)$", log.read_text(), re.M):
            peak, missing = (int(said), "") if said.isdigit() else (None, said.removeprefix("none, "))
            yield {**row, "case": f"{name}: {part}", "peak_allocated": peak, "peak_reserved": None, "verdict": "", "missing": missing}


def jumped(before, after):
    """Whether one of the figures differs as much as a jump does; of a step's time the share alone says so."""
    for name, small in [("peak_allocated", SMALL), ("peak_reserved", SMALL), ("needs_at_least", SMALL), ("step_seconds", 0), ("tokens", 0)]:
        old, new = (float(row.get(name) or 0) for row in (before, after))
        if old and new and abs(new / old - 1) >= JUMP and abs(new - old) >= small:
            return True
    return False


def explain(options, records, name, case):
    """The lines of each jump, of answers that are there; others stay as they are while their versions follow each other."""
    out = folder(name)
    ended = [row for row in records.of(name) if row["peak_allocated"] and row["verdict"] != "does_not_fit"]
    lines = {(row["version"], after["version"]): [] for row, after in zip(ended, ended[1:])}
    for row in records.jumps:
        if row["case"] == name and (pair := (row["before"], row["after"])) in lines:
            lines[pair].append(row)
    for before, after in zip(ended, ended[1:]):
        answers = [out / (case.kept_as(row["version"].partition("==")[2]) + ".json") for row in (before, after)]
        if not jumped(before, after) or not all(file.exists() for file in answers):
            continue
        told = json.loads(subprocess.run([options.vramlab, "diff", "--json", "-", *answers], capture_output=True, text=True, check=True).stdout)
        pair = {"case": name, "before": before["version"], "after": after["version"]}
        # Without the folder that a package lies in, which is another one on another machine.
        found = [{**row, **pair, "line": re.sub(r".*/(site-packages|versions|python|clones/[^/]+/src|clones/[^/]+)/", "", row["line"])} for row in told["rows"][:4]]
        # A server's pool fills the card with every version: what it is made of says more than its lines.
        if "parts" in told:
            was, is_now = told.get("token") or (0, 0)
            cache, *others = told["parts"]
            parts = [cache, ("for each token", is_now - was), *others]
            found = [{**pair, "bytes": bytes, "line": what} for what, bytes in parts if bytes]
        lines[pair["before"], pair["after"]] = [{column: row.get(column) or "" for column in CHANGED} for row in found]
    others = [row for row in records.jumps if row["case"] != name]
    records.jumps = sorted(others + sum(lines.values(), []), key=lambda row: row["case"])


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--vramlab", required=True)
    options.add_argument("--python", default=sys.executable)
    options.add_argument("--cache-size", default="12GiB")
    options.add_argument("--clones", type=Path)
    options.add_argument("--again", action="store_true")
    options.add_argument("--version", action="append", help="of the cases' versions these alone")
    options.add_argument("cases", nargs="*", metavar="CASE", default=list(CASES))
    options = options.parse_args()
    # Some run in a clone's folder.
    options.vramlab, options.python = map(os.path.abspath, (options.vramlab, options.python))
    wanted = {key: case for name in options.cases for key, case in find(name).items()}
    for name in wanted if options.again else ():
        shutil.rmtree(folder(name), ignore_errors=True)
    turns = list(dict.fromkeys((case.package, version) for case in wanted.values() for version in case.versions))
    turns = [turn for turn in turns if options.version is None or turn[1] in options.version]
    for package, version in turns:
        for name, case in wanted.items():
            records = Records()
            is_there = any(not row["missing"] for row in records.of(name, f"{package}=={version}"))
            if case.package != package or version not in case.versions or (is_there and not options.again):
                continue
            rows = list(rehearsed(options, name, case, version))
            # Others may have written meanwhile.
            records = Records()
            for row in rows:
                records.put(row)
            explain(options, records, name, case)
            records.write()
    records = Records()
    for name, case in wanted.items():
        explain(options, records, name, case)
    records.write()


if __name__ == "__main__":
    main()
