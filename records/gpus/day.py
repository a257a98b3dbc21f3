"""`vramlab gpu-day`: what a quarter of an hour on a machine with a GPU is worth most for, in that order, until the time is over.

First comes what is still open: cells that decide claims which no GPU has decided yet (report/data/verdicts.csv), each with the seconds that its
passes took or would take on an H100 and an H200. Every task writes its rows as they come.
"""

import argparse
import csv
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

QUARTER = 15 * 60
# The card that a rehearsed day has.
STAND_IN = "h200"
# A task with less time than this is not begun, and one that is asked to stop may take so long to; seconds.
LEAST, ASKED = 5, 20

# What is open: seconds, and the commands of a task: an experiment, its profile, rounds and filter; and the claims and published figures that it decides.
OPEN = {
    "open-convolutions": (170, [("convolutions", "full", 5, "model=resnet50 batch=128 precision=amp-bf16")],
                          ["channels-last-faster", "cudnn-benchmark", "channels-last-apex"]),
    "open-amp": (110, [("amp", "full", 5, "model=resnet50 batch=128 bound=compute|bound=recipe")], ["amp-faster", "amp-recipe"]),
    "open-as_written": (100, [("as_written", "quick", 1, "block=(1-pinned|2-device|2-move|2-free|2-accumulation|2-peak|3-amp|3-peak|3-profiler|5-pinned) torch=2.11")],
                        ["as-written", "device-as-written", "accumulate-memory-as-written"]),
    "open-checkpointing": (110, [("checkpointing", "full", 5, "model=(mlp|gpt) .*policy=(none|every-block)")], ["checkpoint-memory", "chen-sqrt"]),
    "open-empty_cache": (95, [("empty_cache", "full", 5, "steps=10 ")], ["empty-cache", "empty-cache-cost"]),
    "open-accumulation": (110, [("accumulation", "full", 5, "model=gpt-12x768 batch=256 hold=effective-batch k=(1|4)|hold=micro-batch k=8")],
                          ["accumulate-speed"]),
    "open-pin_memory": (150, [("pin_memory", "quick", 5, "tensors=|read="), ("pin_memory", "quick", 40, "bound=small-data")],
                        ["pin-nonblocking", "pin-stale", "pin-small"]),
}
# After it the most telling first, each with the seconds that it may take of the time: what it took on an H200, where that is known, and some more.
# smoke-: an experiment's smallest cells; decide-: its quick cells that claims rest on which only a GPU can decide; events-: each allocation of a
# step of a language model, on the GPU and simulated, by pass and length; an experiment's name alone: all of it.
DAY = {
    **{task: seconds for task, (seconds, _, _) in OPEN.items()},
    # After the quarter of an hour.
    "doctor": 60, "kernels": 600, "outside": 60, "programs": 400, "decide-pin_memory": 480, "decide-amp": 60, "decide-profiling": 200,
    "decide-backends": 120, "times": 300, "events-training-128": 90, "events-inference-128": 60,
    "events-training-512": 120, "reference-memory": 180, "smoke-pin_memory": 60, "smoke-agreement": 60, "smoke-amp": 60,
    "smoke-profiling": 60, "smoke-empty_cache": 60, "smoke-memory_model": 60, "smoke-ddp_buckets": 60, "smoke-free_tensors": 60,
    # What only a GPU can judge.
    "pin_memory": 240, "backends": 180, "load_checkpoint": 120, "amp": 180, "convolutions": 240,
    # What settles the assumed terms of a card.
    "memory_model": 300, "agreement": 300,
    # Times.
    "combined": 600, "accumulation": 300, "optimizer_state": 300, "checkpointing": 300, "transfer_learning": 300,
}  # fmt: skip
# The claims that an experiment's cells decide, and the filter that names these.
DECIDES = {
    "pin_memory": (["pin-faster", "pin-larger", "pin-training", "pin-small", "pin-host-memory"], "direction=|bound=|workers="),
    "amp": (["amp-faster"], "bound=compute"),
    "profiling": (["peak-statistics"], "tool=statistics"),
    "backends": (["to-device"], "where="),
}
# Cases of records/times/clock.py, the most telling first.
TIMED = ["gpt-plain", "convnet-plain", "gpt-checkpoint", "convnet-last", "gpt-batch", "gpt-fp32", "gpt-half", "convnet-half", "gpt-loop", "convnet-fp32"]

is_stopped = False


def experiment_of(task):
    """How the task runs an experiment, and which; None of other tasks."""
    kind, _, name = task.partition("-")
    if kind == "open":
        return OPEN[task][1][0][1], name
    if kind in ("smoke", "decide"):
        return {"smoke": "smoke", "decide": "quick"}[kind], name
    return None if name or task in ("doctor", "kernels", "outside", "programs", "times") else ("full", task)


class Day:
    def __init__(self, options):
        self.out, self.rehearse, self.card = Path(options.out).absolute(), options.rehearse, options.card
        self.programs, self.records = Path(options.programs), Path(__file__).resolve().parent.parent
        (self.out / "done").mkdir(parents=True, exist_ok=True)
        for program in (self.programs / found[1] for found in map(experiment_of, DAY) if found):
            if not program.exists():
                sys.exit(f"vramlab: there is no {program}: build all of the lab first (cargo build --release)")

    def log(self, task):
        return self.out / f"{task}.log"

    def commands(self, task, seconds):
        """What a task starts, one after the other."""
        vramlab, python = str(self.programs / "vramlab"), [sys.executable, "-B"]
        rehearse = [vramlab, "rehearse", "--quiet", "--gpu", self.card]
        simulated = [*rehearse, "--writes", "--steps", "all", "--"]
        # A program that knows of no stand-in.
        on_card = simulated if self.rehearse else []
        if task in OPEN:
            device = f"fake-cuda:{STAND_IN}" if self.rehearse else "cuda"
            common = ["--device", device, "--budget", str(max(1, int(seconds))), "--out", self.out / "open"]
            rounds = lambda number: str(1 if self.rehearse else number)
            return [[self.programs / name, *common, "--profile", profile, "--rounds", rounds(number), "--filter", cells] for name, profile, number, cells in OPEN[task][1]]
        if found := experiment_of(task):
            profile, name = found
            device, folder = f"fake-cuda:{STAND_IN}" if self.rehearse else "cuda", {"quick": "decided", "full": "results"}.get(profile, profile)
            command = [self.programs / name, "--device", device, "--profile", profile, "--budget", str(max(1, int(seconds))), "--out", self.out / folder]
            return [command + (["--filter", DECIDES[name][1]] if profile == "quick" else [])]
        if task == "doctor":
            return [[vramlab, "doctor"]]
        if task == "kernels":
            # Those of the programs in records/gpus/programs, the longest of each first.
            minutes = 0.05 if self.rehearse else max(0.5, seconds / 60 - 0.5)
            files = ["--for", self.records / "gpus/kernels.csv", "--minutes", f"{minutes:.2f}", "--out", self.out / "kernels.csv"]
            return [[*on_card, vramlab, "calibrate", "--gpu", self.card, "--python", sys.executable, *files]]
        if task == "outside":
            return [[*on_card, *python, self.records / "gpus/context.py"]]
        if task == "programs":
            return [[*on_card, *python, self.records / "gpus/measure.py", "run", "--out", self.out / "programs.csv"]]
        if task == "reference-memory":
            make = self.records.parent / "tests/reference/make/memory.py"
            return [[*python, make, "--out", self.out / "memory_cuda.json", "--device", "cuda"]]
        if task == "times":
            clock, commands = [*python, self.records / "times/clock.py"], []
            for case in TIMED[:1] if self.rehearse else TIMED:
                commands.append([*rehearse, "--json", self.out / f"{case}-predicted.json", "--", *clock, "step", case])
                commands += [] if self.rehearse else [[*clock, "step", case, self.out / f"{case}-clock.json"]]
            return [*commands, [*clock, "compare", self.out]]
        _, run, length = task.split("-")
        replay, (gpu, other) = [*python, self.records / "real_gpus/replay.py"], (self.out / f"{task}-{side}.csv.gz" for side in ("gpu", "simulated"))
        record = [*replay, "record", run, length]
        # What it records is written after the last step.
        return [[*on_card, *record, gpu], [*simulated, *record, other], [*replay, "compare", gpu, other]]

    def passes(self, task):
        """How many processes a task starts, where rounds are as few as they can be."""
        commands, found = self.commands(task, 1), experiment_of(task)
        if not found:
            return len(commands)
        # Memory is counted twice, times are taken in rounds.
        of = {"memory": 2, "time": {"smoke": 2, "quick": 3, "full": 5}[found[0]]}
        listed = subprocess.run([*commands[0], "--list"], stdout=subprocess.PIPE, text=True)
        if listed.returncode:
            sys.exit(f"vramlab: {task}: its cells cannot be listed")
        rows = (line.split("\t", 1)[1] for line in listed.stdout.splitlines() if "\t" in line)
        return sum(of.get(each, 1) for row in rows for each in row.split(" "))

    def announce(self, tasks):
        """What is planned, the passes of each task and their sum, and until where half an hour reaches."""
        passes = seconds = 0
        say(f"planned on {'a simulated GPU' if self.rehearse else self.card}:")
        for task in tasks:
            own, most = self.passes(task), DAY[task]
            claims = OPEN[task][2] if task in OPEN else DECIDES[task[7:]][0] if task.startswith("decide-") else []
            decides = f", decides {', '.join(claims)}" if claims else ""
            say(f"  {task}: {own} passes, at most {most} s{decides}")
            if seconds <= QUARTER < seconds + most:
                say(f"  -- a quarter of an hour reaches to here: {passes} passes, {seconds} s")
            passes, seconds = passes + own, seconds + most
        say(f"  in all {passes} passes, at most {-(-seconds // 60)} minutes")

    def run(self, task, seconds):
        """Why it failed; an empty text where it is done, and None where it was cut and goes on when the day is called again."""
        if self.rehearse and task == "reference-memory":
            self.log(task).write_text("It really runs on a GPU, so there is nothing to rehearse.\n")
            return ""
        end = time.monotonic() + seconds
        with open(self.log(task), "w") as log:
            for command in self.commands(task, seconds):
                status = wait(command, end, log)
                if status is None:
                    return None
                if status:
                    return f"{command[0]} ended with {status}"
        return ""

    def pack(self):
        """Everything in one archive. Once more when the day is called again."""
        packed = self.out.with_name(f"{self.out.name}.tar.xz")
        with tarfile.open(packed, "w:xz") as archive:
            archive.add(self.out, self.out.name)
        return packed


def wait(command, end, log):
    """Runs a command to its end, or asks it and what it started to stop when the time is over: None then."""
    child = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    asked = None
    while child.poll() is None:
        now = time.monotonic()
        if asked is None and (is_stopped or now >= end):
            asked = now
            signal_group(child.pid, signal.SIGINT)
        elif asked is not None and now - asked > ASKED:
            signal_group(child.pid, signal.SIGKILL)
        time.sleep(0.05)
    return child.returncode if asked is None else None


def signal_group(group, number):
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        # It has ended by itself.
        pass


def decided_on_gpus():
    """Claims that a GPU's figures have decided, by the report's table of verdicts."""
    table = Path(__file__).resolve().parents[2] / "report/data/verdicts.csv"
    rows = csv.DictReader(table.open()) if table.exists() else []
    settled = ("confirmed", "refuted", "depends", "falls short", "reproduced", "not reproduced")
    return {row["claim"] for row in rows if row["machine"].startswith("nvidia-") and row["carries"] == "true" and row["verdict"] in settled}


def say(text):
    print(text, flush=True)


def main():
    parser = argparse.ArgumentParser(prog="vramlab gpu-day")
    parser.add_argument("--minutes", type=int, default=15)
    parser.add_argument("--out", default="gpu-day")
    parser.add_argument("--only", default="")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--card", default=STAND_IN, help="the card that is there, whose rehearsals are put beside what it measures")
    parser.add_argument("--programs", required=True, help="the folder of vramlab and the experiments")
    options = parser.parse_args()
    end, only = time.monotonic() + 60 * options.minutes, [name for name in options.only.split(",") if name]
    for unknown in (name for name in only if name not in DAY):
        sys.exit(f"vramlab: there is no task '{unknown}'; there are {', '.join(DAY)}")
    decided = decided_on_gpus()
    is_open = lambda task: task not in OPEN or not decided.issuperset(OPEN[task][2])
    tasks, failed, left = [task for task in DAY if (task in only if only else is_open(task))], [], []
    if options.rehearse and not only:
        # What the first quarter of an hour does.
        tasks = [task for task in tasks if task in OPEN]

    def stop(*_):
        global is_stopped
        is_stopped = True

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    day = Day(options)
    day.announce(tasks)
    for task in tasks:
        # Two cores are slower than the machines that carry GPUs, and nothing is paid for them.
        most = 10 * DAY[task] if options.rehearse else DAY[task]
        done, seconds = day.out / "done" / task, min(most, end - time.monotonic())
        if done.exists():
            continue
        if is_stopped or seconds < LEAST:
            left.append(task)
            continue
        say(f"{task} (at most {int(seconds)} s)")
        why = day.run(task, seconds)
        if why is None:
            left.append(task)
        elif why:
            say(f"  {why}; see {day.log(task)}")
            failed.append(task)
        else:
            done.touch()
    say(f"{len(tasks) - len(failed) - len(left)} of {len(tasks)} done; {day.pack()} is what to carry home")
    if left:
        say(f"not done yet, the same command goes on: {', '.join(left)}")
    if failed:
        say(f"failed, tried again by the same command: {', '.join(failed)}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
