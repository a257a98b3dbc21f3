"""Programs as people write them, rehearsed and then run on a real GPU: each writes what PyTorch's own meters and a clock say, side by side.

    measure.py rehearse --vramlab PROGRAM --card CARD [--python PYTHON] [NAME...]    into CARD-rehearsed.csv; needs no GPU
    measure.py today --vramlab PROGRAM --card CARD [--python PYTHON] [--keep DIR] [NAME...]    the same again into CARD-today.csv, with each one's witness
    measure.py run [--python PYTHON] [--out FILE] [NAME...]                          on the GPU that is there
    measure.py compare CARD                                                          CARD-rehearsed.csv beside CARD-measured.csv: README's table
    measure.py what-if CARD NAME REHEARSED MEASURED                                  adds to CARD-what-if.csv from two answers of --what-if --json

The rehearsal comes first and is committed before the GPU is seen. It stops after three steps, as it does for a user; the real run goes on to
its end, so that growth that the rehearsal did not see would show. Processes wait for each other before they touch the GPU: what one takes of
the card is the difference in what is used. The meters share no code with the program that they judge.
"""

import argparse
import concurrent.futures
import csv
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
# A rehearsal goes to the end where what comes after three steps is the point, or where there are no steps.
TO_THE_END = {"segmentation", "llama_generate", "gpt2_generate", "whisper_generate", "t5_generate", "bert_encode", "vit_validate", "resnet50_serve",
              "llama_prefill", "forgotten_no_grad"}
# What of a rehearsal is the same again as long as the program asks for the same: `vramlab show --witness`.
TODAY = ["program", "witness", "peak_requested", "peak_allocated", "peak_reserved", "outside", "step_seconds", "low_seconds", "high_seconds", "placeholders"]
REHEARSED = ["program", "peak_requested", "peak_allocated", "peak_reserved", "outside", "step_seconds", "low_seconds", "high_seconds", "placeholders"]
# `early` is after three steps.
MEASURED = ["program", *(f"{what}{when}" for when in ("_early", "") for what in ("peak_requested", "peak_allocated", "peak_reserved")), "outside",
            "step_seconds", "shortest", "longest", "error"]


def programs(names):
    return [Path(name) if name.endswith(".py") else PROGRAMS / f"{name}.py" for name in names] or sorted(PROGRAMS.glob("*.py"))


def write(path, columns, rows):
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, columns, restval="", extrasaction="ignore", lineterminator="\n")
        out.writeheader()
        out.writerows(rows)


def rehearse(options):
    path = HERE / f"{options.card}-{'today' if options.today else 'rehearsed'}.csv"
    rows = {row["program"]: row for row in csv.DictReader(path.open())} if path.exists() else {}
    for program in programs(options.names):
        name = program.stem
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "answer.json"
            flags = ["--steps", "all"] if name in TO_THE_END else []
            kept = (options.keep or Path(folder)) / f"{name}.cap"
            words = [options.vramlab, "rehearse", "--quiet", "--gpu", options.card, *flags, "--json", answer, "--keep", kept, "--", options.python, program]
            done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
            if not answer.exists():
                print(f"{name}: {done.stderr[-2000:]}")
                continue
            found = json.loads(answer.read_text())
            shown = subprocess.run([options.vramlab, "show", kept, "--witness"], capture_output=True, text=True, check=True)
        process = max(found["processes"], key=lambda one: one["peak_reserved"])
        timed = found.get("time") or {}
        witness = shown.stdout.split()[0]
        if options.today and name in rows and rows[name]["witness"] != witness:
            print(f"{name} asks for something else than when it was rehearsed last: vramlab show --witness OTHER names it")
        rows[name] = {"program": name, "witness": witness, **{key: process[key] for key in ("peak_requested", "peak_allocated", "peak_reserved")},
                      "outside": found["peak_on_device"] - process["peak_reserved"], "placeholders": len(process["placeholders"]),
                      **{key: timed.get(key, "") and f"{timed[key]:.4g}" for key in ("step_seconds", "low_seconds", "high_seconds")}}
        print(f"{name}: {process['peak_allocated']} B allocated, {process['peak_reserved']} B reserved, {timed.get('step_seconds')} s", flush=True)
        write(path, TODAY if options.today else REHEARSED, (rows[name] for name in sorted(rows)))


METERS = """
import atexit, fcntl, json, os, runpy, subprocess, sys
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

script, out, lock = sys.argv[1:4]
sys.argv = [script]
sys.path[0] = os.path.dirname(script)
marks, passes, counts, taken, early = [], [], {}, [], {}
PEAKS = {"peak_requested": "requested_bytes.all.peak", "peak_allocated": "allocated_bytes.all.peak", "peak_reserved": "reserved_bytes.all.peak"}
initialize = torch.cuda._lazy_init


def used():
    # It needs no context, as PyTorch would for this.
    return int(subprocess.check_output(["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"])) << 20


def take_turns():
    if not taken:
        fcntl.flock(int(lock), fcntl.LOCK_EX)
        taken.append(used())
    initialize()


torch.cuda._lazy_init = take_turns


def mark(optimizer, *_):
    # An event of a captured step tells no time.
    if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
        return
    counts[id(optimizer)] = counts.get(id(optimizer), 0) + 1
    # Several optimizers take turns: a step has ended when each has made it.
    if min(counts.values()) > len(marks):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        marks.append(event)
        if len(marks) == 3:
            early.update(peaks())


register_optimizer_step_post_hook(mark)


def begin(module, *_):
    # A hook on every module would take time of its own: it is off until the outermost module has ended.
    armed.pop().remove()
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        passes.append(event)
    ending.append(module.register_forward_hook(arm, always_call=True))


def arm(*_):
    if ending:
        ending.pop().remove()
    armed.append(torch.nn.modules.module.register_module_forward_pre_hook(begin))


armed, ending = [], []
arm()


def peaks():
    stats = torch.cuda.memory_stats()
    return {name: stats[key] for name, key in PEAKS.items()}


def tell():
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    # A script that does not train goes from one forward pass to the next.
    begun = marks or passes
    seconds = [before.elapsed_time(after) / 1e3 for before, after in zip(begun, begun[1:])]
    memory = torch.cuda.get_device_properties(0).total_memory
    json.dump({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "memory": memory, "steps": seconds,
               "outside": used() - taken[0] - stats["reserved_bytes.all.current"],
               **peaks(), **{f"{name}_early": value for name, value in (early or peaks()).items()},
               "cudnn": torch.backends.cudnn.version()}, open(out, "w"))


atexit.register(tell)
runpy.run_path(script, run_name="__main__")
"""


def run_one(program, python, folder):
    out, log = folder / f"{program.stem}.json", folder / f"{program.stem}.log"
    # Its lock is ours, too, so that the next one begins when this one has ended.
    with log.open("w") as said, (folder / "lock").open() as lock:
        words = [python, "-c", METERS, program, out, lock.fileno()]
        done = subprocess.run(list(map(str, words)), stdin=subprocess.DEVNULL, stdout=said, stderr=said, pass_fds=[lock.fileno()], timeout=300)
    if done.returncode or not out.exists():
        return {"program": program.stem, "error": log.read_text()[-1500:]}
    found = json.loads(out.read_text())
    steps = found.pop("steps")[3:]
    timed = {name: f"{of(steps):.4g}" for name, of in (("step_seconds", statistics.median), ("shortest", min), ("longest", max)) if steps}
    return {"program": program.stem, **found, **timed}


def run(options):
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "lock").touch()
        with concurrent.futures.ThreadPoolExecutor(options.at_once) as several:
            rows = []
            for row in several.map(lambda program: run_one(program, options.python, Path(folder)), programs(options.names)):
                rows.append(row)
                print(json.dumps(row), flush=True)
                # As they come: what is cut short leaves those that are done.
                write(options.out, MEASURED, rows)
    ran = next((row for row in rows if "gpu" in row), {})
    about = {key: ran.get(key) for key in ("gpu", "torch", "memory", "cudnn")}
    about |= {"date": datetime.date.today().isoformat(), "cuda": os.environ.get("CUDA_VERSION"), "seconds": round(time.time() - began)}
    options.out.with_suffix(".json").write_text(json.dumps(about) + "\n")


def compare(options):
    rehearsed, measured = ({row["program"]: row for row in csv.DictReader((HERE / f"{options.card}-{side}.csv").open())} for side in ("rehearsed", "measured"))
    table = "| program | allocated | reserved | allocated after 3 steps | reserved after 3 steps | a step, predicted | measured | in the band |\n|---|" + "---:|" * 7 + "\n"
    for name, row in rehearsed.items():
        real, cells = measured[name], []
        for key in ("peak_allocated", "peak_reserved", "peak_allocated_early", "peak_reserved_early"):
            by = int(row[key.removesuffix("_early")]) - int(real[key] or 0)
            cells.append((f"{by / int(real[key]):+.2%}" if by else "equal") if real[key] else "")
        timed = [row["step_seconds"], real["step_seconds"]]
        cells += [f"{1000 * float(seconds):.1f} ms" if seconds else "" for seconds in timed]
        cells.append("" if not all(timed) else "yes" if float(row["low_seconds"]) <= float(timed[1]) <= float(row["high_seconds"]) else "no")
        table += f"| {' | '.join([name, *cells])} |\n"
    page, begin, end = HERE / "README.md", f"<!-- {options.card}: written by measure.py compare -->\n\n", "<!-- end -->"
    before, rest = page.read_text().split(begin)
    page.write_text(before + begin + table + "\n" + end + rest.split(end, 1)[1])


def what_if(options):
    path = HERE / f"{options.card}-what-if.csv"
    known = list(csv.DictReader(path.open())) if path.exists() else []
    rehearsed, measured = ({"+".join(row["techniques"]): row for row in json.loads(file.read_text())} for file in (options.rehearsed, options.measured))
    rows = [row for row in known if row["program"] != options.name]
    for name, real in measured.items():
        row = rehearsed.get(name, {})
        if real.get("reason") or row.get("reason") or not row:
            continue
        change = row["predicted_change"] or {}
        peaks = {f"{key}{side}": one[key] for side, one in (("", row), ("_measured", real)) for key in ("peak_allocated", "peak_reserved")}
        seconds = {"seconds": row["predicted_seconds"], "seconds_measured": real["seconds"], "change": change.get("share"), "change_low": change.get("low"),
                   "change_high": change.get("high"), "change_measured": real["seconds"] / measured[""]["seconds"] - 1 if name else None}
        rows.append({"program": options.name, "techniques": name, **peaks, **{key: "" if value is None else f"{value:.4g}" for key, value in seconds.items()}})
    write(path, list(rows[0]), rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_subparsers(required=True)
    for name, call in (("rehearse", rehearse), ("today", rehearse), ("run", run), ("compare", compare), ("what-if", what_if)):
        one = what.add_parser(name)
        one.set_defaults(call=call, today=name == "today")
        if name in ("compare", "what-if"):
            one.add_argument("card")
            if name == "what-if":
                one.add_argument("name")
                one.add_argument("rehearsed", type=Path)
                one.add_argument("measured", type=Path)
            continue
        one.add_argument("--python", default=sys.executable)
        one.add_argument("names", nargs="*", metavar="NAME")
        if name in ("rehearse", "today"):
            one.add_argument("--vramlab", required=True)
            one.add_argument("--card", required=True)
            one.add_argument("--keep", type=Path, help="the rehearsals themselves, for vramlab calibrate --for")
        else:
            one.add_argument("--out", type=Path, default=Path("measured.csv"))
            one.add_argument("--at-once", type=int, default=4)
    options = parser.parse_args()
    options.call(options)


if __name__ == "__main__":
    main()
