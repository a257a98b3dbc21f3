"""What the references share: the cell that they are asked for, how they are measured, and the rows that they answer with.

A reference is a script with one function, prepare(cell, bench), and `lab.main(prepare)`. The function sets up a cell and gives back a step:
an object with run(probe), and where they matter outcome(), items, timing, times_itself, and tells_all where the meter's own figures say
nothing. It is started by the experiment's own program, one process for each cell and pass, as the program's own children are, and measures
by the same rules (METHODOLOGY.md).
"""

import gc

# Nothing that is imported is garbage, and looking for some takes a tenth of the time of importing it; main() looks again.
gc.disable()

import contextlib
import ctypes
import importlib.util
import json
import math
import multiprocessing
import os
import signal
import sys
import time
import types
from dataclasses import dataclass, field

import conditions
import exchange
import meter
import torch


class Cell(dict):
    """The levels of one combination, by factor."""

    @staticmethod
    def parse(text):
        return Cell(term.split("=", 1) for term in text.split(" "))

    def number(self, factor):
        return int(self[factor])


@dataclass
class Bench:
    """Where a cell is set up."""

    device: torch.device
    seed: int
    threads: int
    # What the experiment's own program begins this cell with, by name: parameters, buffers, inputs. None where it hands over nothing.
    start: dict = None


@dataclass
class Timing:
    """How long to warm up (both must be over) and how much to sample; steps shorter than least_sample are timed several at once."""

    warm_up_steps: int = 2
    warm_up_seconds: float = 0.02
    samples: int = 5
    least_sample: float = 5e-3


# What happens once in a process: no warm-up, one sample.
ONCE = Timing(warm_up_steps=0, warm_up_seconds=0.0, samples=1)


@dataclass
class Probe:
    """What a step tells about itself while it runs."""

    # What counts the device's bytes; none where memory is not what is measured.
    meter: object = None
    timing: bool = False
    figures: dict = field(default_factory=dict)
    samples: list = field(default_factory=list)
    points: list = field(default_factory=list)
    rest: int = None

    @property
    def reading(self):
        """Whether memory is what is measured."""
        return self.meter is not None

    def live(self):
        """Bytes that live tensors asked for, now; 0 where memory is not what is measured."""
        return self.meter.live() if self.meter else 0

    def peak(self):
        """Most bytes that lived at once since the peaks were reset; 0 where memory is not what is measured."""
        return self.meter.peak() if self.meter else 0

    def reset_peaks(self):
        """Sets the meter's peaks to what lives now."""
        if self.meter:
            self.meter.reset_peaks()

    def at_rest(self):
        """Says that nothing of the step lives now: what does is parameters, optimizer state and data. Gives its bytes."""
        self.rest = self.live()
        return self.rest

    def forward(self, forward):
        """Runs a forward pass and records what it leaves alive as saved activations."""
        before = self.live()
        result = forward()
        self.record("activations", self.live() - before)
        return result

    def record(self, metric, bytes):
        """Gives a figure in bytes; of several under one name the largest counts."""
        if self.reading:
            largest = max(bytes, self.figures.get(metric, ("B", bytes))[1])
            self.figures[metric] = ("B", largest)

    def figure(self, metric, unit, value):
        """Gives a counted figure of the memory pass; of several the last counts."""
        if self.reading:
            self.figures[metric] = (unit, value)

    def point(self, metric, unit, position, value):
        """Gives a point of the curve that a metric is, in the memory pass."""
        if self.reading:
            self.points.append((metric, unit, value, position))

    def sample(self, metric, unit, value):
        """Gives a figure that moves from run to run, in the time pass."""
        if self.timing:
            self.samples.append((metric, unit, value))


class OutOfMemory(Exception):
    """Memory ran out: an outcome, not a failure."""


class Unavailable(Exception):
    """Something that this cell needs is not installed: the cell is skipped, with what to do about it."""


def need(*packages):
    """Skips the cell where one of them is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise Unavailable(f"this needs {package}; `just peers` installs it")


def transforms():
    """torchvision's transforms without its models and operators, which bring the compiler along and with it a second of start-up. For the references
    that are about speed; one that is about the memory of a program imports all of torchvision, as programs do."""
    need("torchvision")
    for name in ("torchvision.models", "torchvision.ops"):
        sys.modules.setdefault(name, types.ModuleType(name))
    from torchvision import transforms as found

    return found


def main(prepare):
    """Runs the pass that the command line asks for and writes its rows to what was standard output. A template runs one in each copy of
    itself. A simulated GPU is opened first."""
    gc.enable()
    asked, what = sys.argv[1:] if len(sys.argv) == 3 else (None, None)
    if asked == "--child":
        _run(prepare, json.loads(what))
    elif asked == "--template":
        _serve(prepare, int(what))
    else:
        sys.exit(f"{sys.argv[0]} is run by the experiment of the same name, not by hand")


def _open_simulated_gpu():
    sys.path.append(os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../records/real_gpus"))
    from replay import open_simulated_gpu

    open_simulated_gpu()


def _serve(prepare, parent):
    """Makes a copy of this process for each request, and says how it ended; see src/harness/src/runner/template.rs."""
    _end_with_parent(parent)
    # What optimizers and checkpointing import when they are first used.
    import torch._dynamo  # noqa: F401

    # What is here stays: a copy that looks for cycles in all of it would copy its pages, which takes longer than most steps.
    gc.collect()
    gc.freeze()

    def tell(answer):
        print(json.dumps(answer), flush=True)

    for line in sys.stdin:
        request = json.loads(line)
        said = [os.open(request[name], os.O_WRONLY) for name in ("stdout", "stderr")]
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            for stream, end in enumerate([os.open(os.devnull, os.O_RDONLY), *said]):
                os.dup2(end, stream)
                os.close(end)
            return _run(prepare, request["spec"])
        for end in said:
            os.close(end)
        with contextlib.suppress(OSError):
            # Both sides set the group, so that it is there before anyone ends it. The copy may have been faster, and may be gone.
            os.setpgid(pid, pid)
        tell({"Copied": pid})
        tell({"Ended": os.waitpid(pid, 0)[1]})


def _run(prepare, spec):
    pipe = os.fdopen(os.dup(1), "w")
    # Whatever a library prints goes to standard error from here on.
    os.dup2(2, 1)

    def tell(message):
        pipe.write(json.dumps(message) + "\n")
        pipe.flush()

    def prepare_alike(cell, bench):
        step = prepare(cell, bench)
        _refuse_other_settings(spec["reference"], same_library=bool(spec["exchange"]))
        return step

    try:
        _end_with_parent(spec["parent"])
        if spec["waits"]:
            tell("ready")
            if not sys.stdin.readline():
                sys.exit("the parent does not want the pass any more")
        torch.set_num_threads(spec["threads"])
        # As the lab's program: TF32 only where it is what a step is about.
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        meter.open_library(spec["reference"]["meter"])
        # To PyTorch a simulated GPU is a GPU.
        device = "cuda" if spec["device"].startswith("dry") else spec["device"]
        if device != spec["device"]:
            _open_simulated_gpu()
        bench = Bench(torch.device(device), spec["seed"], spec["threads"])
        if bench.device.type == "cuda" and bench.device.index is not None:
            # Events, synchronisation and what a guide's `.cuda()` means are the current device's.
            torch.cuda.set_device(bench.device)
        if spec["exchange"]:
            bench.start = exchange.read(spec["exchange"]["start"])
            # As src/torch/src/native/heap.rs.
            mallopt = ctypes.CDLL(None).mallopt
            if not (mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)):
                raise RuntimeError("malloc does not keep what is freed, and both sides of a comparison must do the same")
        run = _witness if spec["witness"] is not None else _PASSES[spec["pass"]]
        status, reason, rows = run(prepare_alike, spec, bench)
    except Exception as error:  # Whatever it was becomes a row.
        status, reason, rows = _failed(error)
    for metric, unit, value, index, *why in rows:
        tell({"sample": {"metric": metric, "unit": unit, "value": float(value), "sample": index, "reason": "".join(why)}})
    tell({"end": {"status": status, "reason": reason}})
    gc.collect()
    if not multiprocessing.active_children():
        # As our own children end: nothing is torn down, which takes longer than most steps.
        os._exit(0)


def is_out_of_memory(error):
    told = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "unable to find an engine")
    return isinstance(error, (torch.OutOfMemoryError, OutOfMemory, MemoryError)) or any(text in str(error) for text in told)


def _failed(error):
    if isinstance(error, Unavailable):
        return "skipped", str(error), []
    status = "oom" if is_out_of_memory(error) else "error"
    reason = f"{type(error).__name__}: {error}"
    if "Original Traceback" in reason:
        # A DataLoader's worker says last what it failed with.
        reason = reason.strip().splitlines()[-1]
    return status, reason[:400], []


def _end_with_parent(parent):
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent is gone")


def _refuse_other_settings(reference, same_library):
    """Figures are comparable under the same settings alone: what differs here from the lab's program is named. Where both sides do the very
    same step, they run it on one libtorch."""
    own = {**meter.settings(), **{name: value for name, value in os.environ.items() if name in reference["settings"]}}
    differing = [
        f"{name} is {own.get(name, 'not set')} here and {value} in the lab's program"
        for name, value in sorted(reference["settings"].items())
        if own.get(name) != value
    ]
    library = os.path.realpath(meter.libtorch())
    if same_library and library != os.path.realpath(reference["libtorch"]):
        differing.append(f"libtorch is {library} here and {os.path.realpath(reference['libtorch'])} in the lab's program")
    if differing:
        raise RuntimeError("the two sides cannot be compared: " + "; ".join(differing))


def _set_up(prepare, cell, bench):
    # As the lab does: data and parameters depend on the seed alone.
    torch.manual_seed(bench.seed)
    step = prepare(Cell.parse(cell), bench)
    torch.manual_seed(bench.seed + 1)
    return step


def _check(prepare, spec, bench):
    def outcome(cell):
        step = _set_up(prepare, cell, bench)
        step.run(Probe())
        return step.outcome()

    if spec["exchange"]:
        # The lab's own cell compares its outcome with this one.
        exchange.write(spec["exchange"]["outcome"], outcome(spec["cell"]))
        return "ok", "", []
    reference = outcome(spec["baseline"])
    relation = spec["expected"]
    (kind, bounds), = relation.items() if isinstance(relation, dict) else [(relation, {})]
    kind = kind.lower()
    try:
        found = outcome(spec["cell"])
    except Exception as error:
        if kind != "raises":
            raise
        raised = bounds["message"] in str(error)
        reason = "" if raised else f"expected an error with '{bounds['message']}', got: {error}"
        return ("ok" if raised else "invalid"), reason[:400], [("raised", "1", float(raised), 0)]
    if kind == "raises":
        return "invalid", f"expected an error with '{bounds['message']}', and none was raised", [("raised", "1", 0.0, 0)]
    rows = [("raised", "1", 0.0, 0)]
    errors = [(name, distance(tensors, reference[name])) for name, tensors in found.items()]
    rows += [(f"{name}_error", "1", error, 0) for name, error in errors]
    name, error = errors[0]
    holds = {
        "equal": lambda: error <= bounds["tolerance"],
        "differs": lambda: bounds["at_least"] <= error <= bounds["at_most"],
        "missing": lambda: bounds["at_least"] <= error <= 1.0 + 1e-6,
    }
    if kind not in holds:
        raise ValueError(f"a reference knows no relation '{kind}'")
    if kind != "missing" and not any(float(t.detach().double().square().sum()) > 0.0 for t in found[name]):
        return "invalid", f"{name}: all of it is zero", rows
    if holds[kind]():
        return "ok", "", rows
    return "invalid", f"{name}: expected {kind} ({bounds}), found a relative error of {error:.3e}", rows


def distance(found, reference):
    """|a - b| / |b| in the Euclidean norm over all values of all tensors, summed in double precision."""
    if len(found) != len(reference):
        raise ValueError(f"{len(found)} tensors to compare with {len(reference)}")
    difference = norm = 0.0
    for a, b in zip(found, reference):
        a, b = a.detach().double().cpu(), b.detach().double().cpu()
        difference += float((a - b).square().sum())
        norm += float(b.square().sum())
    if norm == 0.0:
        raise ValueError("the baseline's outcome is zero, which every relation would fit")
    return math.sqrt(difference / norm)


def _memory(prepare, spec, bench):
    # Before anything of the step is allocated.
    device = meter.Cuda(bench.device) if bench.device.type == "cuda" else meter.Cpu(spec["memory_limit"])
    step = _set_up(prepare, spec["cell"], bench)
    for _ in range(2):
        step.run(Probe())
    probe = Probe(meter=device)
    device.reset_peaks()
    step.run(probe)
    # What a step replays of others has figures of its own.
    read = {} if getattr(step, "tells_all", False) else device.read()
    rows = [(metric, "B", value, 0) for metric, value in read.items()]
    if probe.rest is not None:
        rows.append(("step_peak", "B", device.read()["requested_peak"] - probe.rest, 0))
    rows += [(metric, unit, value, 0) for metric, (unit, value) in probe.figures.items()] + probe.points
    return "ok", "", rows


def _witness(prepare, spec, bench):
    device = meter.Cuda(bench.device) if bench.device.type == "cuda" else meter.Cpu(spec["memory_limit"])
    step = _set_up(prepare, spec["cell"], bench)
    for _ in range(2):
        step.run(Probe())
    device.reset_peaks()
    number = (bench.device.index or 0) if bench.device.type == "cuda" else -1
    return "ok", "|".join(meter.witness(number, spec["witness"], lambda: step.run(Probe(meter=device)))), []


def _time(prepare, spec, bench):
    step = _set_up(prepare, spec["cell"], bench)
    timing = getattr(step, "timing", Timing())
    probe = Probe(timing=True)
    steps, spent, last = 0, 0.0, math.inf
    # A GPU that was idle takes its time to reach its clock, and boosts for some tenths of a second under load: as of steps in Rust.
    least = max(timing.warm_up_seconds, 1.0) if bench.device.type == "cuda" and timing.warm_up_steps else timing.warm_up_seconds
    while steps < timing.warm_up_steps or spent < least:
        last = _seconds(lambda: step.run(probe), bench.device)
        spent += last
        steps += 1
    probe.samples.clear()
    batch = max(1, math.ceil(timing.least_sample / max(last, 1e-9)))
    items = batch * getattr(step, "items", 1.0)
    rows, watch, throttled = [], conditions.Conditions(bench.device), 0
    for index in range(timing.samples):

        def body():
            for _ in range(batch):
                step.run(probe)

        _, before, joules = watch.read()
        seconds = _seconds(body, bench.device)
        readings, after, more = watch.read()
        why = before or after
        throttled += bool(why)
        rows += [(metric, unit, value, index) for metric, unit, value in readings]
        if joules is not None and more is not None:
            # What is read after a sample is an idle device's power.
            rows.append(("sample_power", "W", (more - joules) / seconds, index))
        # A procedure that gives the times of its parts itself has no time of its own.
        if not getattr(step, "times_itself", False):
            rows.append(("time", "s", seconds / items, index, f"throttled: {why}" if why else ""))
    counts = {}
    for metric, unit, value in probe.samples:
        rows.append((metric, unit, value, counts.setdefault(metric, 0)))
        counts[metric] += 1
    if throttled == timing.samples:
        return "invalid", "every sample was taken while the device was throttled", rows
    return "ok", "", rows


def _seconds(body, device):
    """Seconds by the device's clock, synchronised at the two edges and nowhere else."""
    if device.type != "cuda":
        start = time.perf_counter()
        body()
        return time.perf_counter() - start
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    body()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000.0


# Parameters of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4

_PASSES = {"check": _check, "memory": _memory, "time": _time}


# Memory of whole processes as the kernel counts it, in bytes; see src/process.rs.


def _field(path, name):
    with open(path) as lines:
        for line in lines:
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    raise OSError(f"{path} has no line '{name}'")


def resident():
    return _field("/proc/self/status", "VmRSS")


def peak_resident():
    return _field("/proc/self/status", "VmHWM")


def reset_peak_resident():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def proportional(pid="self"):
    return _field(f"/proc/{pid}/smaps_rollup", "Pss")


def proportional_of_tree():
    """Proportional set size of this process and of all that descend from it."""
    children = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
        children.setdefault(parent, []).append(int(name))
    total, waiting = proportional(), list(children.get(os.getpid(), []))
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        try:
            total += proportional(pid)
        except OSError:
            continue  # It ended meanwhile.
    return total
