"""What experiments/profiling measures: the tools as the guides' readers use them, torch.profiler and torch.cuda.memory."""

import contextlib
import glob
import inspect
import json
import os
import tempfile
import time
from collections import Counter

import lab
import presets
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Steps that are recorded at once (guide 3's active=3), and recordings before the samples begin.
ACTIVE, WARM_UP = 3, 2
# Iterations of guide 3's recipe, of which its schedule records the last three.
RECIPE = 5


class Allocations(TorchDispatchMode):
    """Counts the bytes of the tensors that operations return and that are no views or outputs written in place: on a CPU nothing else does."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        known = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        new = {}
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().data_ptr() not in known:
                new[leaf.untyped_storage().data_ptr()] = leaf.untyped_storage().nbytes()
        self.total += sum(new.values())
        return result


class Looked:
    # Warm-up is so many recordings, and each is a sample of its own.
    timing = lab.Timing(warm_up_steps=WARM_UP, warm_up_seconds=0.0, samples=16, least_sample=0.0)

    def __init__(self, cell, bench):
        self.tool, self.device = cell["tool"], bench.device
        self.active = RECIPE if self.tool == "recipe" else ACTIVE
        self.items = float(self.active)
        if self.tool in ("statistics", "history") and bench.device.type != "cuda":
            raise lab.Unavailable("PyTorch keeps statistics and a history of a CUDA device's memory only")
        # Its profiler resets the peaks at each line, so that the meter's own figures would be those of the last.
        self.tells_all = self.tool == "memlab"
        self.model, (self.inputs, self.targets) = presets.prepared(cell, bench.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.recordings = self.host = 0

    def step(self):
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()

    def synchronise(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @contextlib.contextmanager
    def looking(self, folder, told):
        """Starts the tool; when the steps are done, stops it and has it write its file."""
        if self.tool.startswith("profiler"):
            memory, full = self.tool != "profiler-shapes", self.tool == "profiler-full"
            with torch.profiler.profile(
                record_shapes=True, profile_memory=memory, with_flops=full, with_stack=full
            ) as profiler:
                yield
            told["profiler"], told["file"] = profiler, os.path.join(folder, "trace.json")
            profiler.export_chrome_trace(told["file"])
        elif self.tool == "recipe":
            with torch.profiler.profile(
                schedule=torch.profiler.schedule(wait=1, warmup=1, active=3),
                on_trace_ready=torch.profiler.tensorboard_trace_handler(folder),
                record_shapes=True,
            ) as profiler:
                told["stepped"] = profiler.step
                yield
            traces = glob.glob(os.path.join(folder, "*.pt.trace.json"))
            if traces:
                told["profiler"], told["file"] = profiler, traces[0]
        elif self.tool == "history":
            torch.cuda.memory._record_memory_history(max_entries=1_000_000)
            try:
                yield
                told["file"] = os.path.join(folder, "snapshot.pickle")
                torch.cuda.memory._dump_snapshot(told["file"])
            finally:
                torch.cuda.memory._record_memory_history(enabled=None)
        else:
            yield

    def look(self, folder, steps):
        """What the tool told of some steps, and the seconds until the last of them was done."""
        told = {}
        with self.looking(folder, told):
            self.synchronise()
            start = time.perf_counter()
            for _ in range(steps):
                self.step()
                if "stepped" in told:
                    told["stepped"]()
                if self.tool == "statistics":
                    torch.cuda.memory_stats()
            self.synchronise()
            seconds = time.perf_counter() - start
        return told, seconds

    def run(self, probe):
        with tempfile.TemporaryDirectory(prefix="vramlab-") as folder:
            if probe.reading:
                self.count(probe, folder)
            elif probe.timing:
                self.time(probe, folder)
            else:
                self.look(folder, 1)

    def by_line(self, probe):
        """What pytorch_memlab tells of a step, against a step without it."""
        lab.need("pytorch_memlab")
        from pytorch_memlab import LineProfiler

        statistic = lambda name: torch.cuda.memory_stats()[name]
        self.step()
        torch.cuda.reset_peak_memory_stats()
        before = statistic("requested_bytes.all.allocated")
        self.step()
        allocated, peak = statistic("requested_bytes.all.allocated") - before, statistic("requested_bytes.all.peak")
        with LineProfiler(Looked.step) as profiler:
            self.step()
        lines = profiler.display(None, ("requested_bytes.all.allocated", "requested_bytes.all.peak"))._line_records
        of_lines, peaks = lines["requested_bytes"]["all"]["allocated"], lines["requested_bytes"]["all"]["peak"]
        probe.figure("memory_told", "1", float(of_lines.sum()) / allocated)
        probe.figure("peak_told", "1", float(peaks.max()) / peak)
        source, first = inspect.getsourcelines(Looked.step)
        for (_, line), bytes in of_lines.items():
            if bytes > 0:
                probe.figure(f"allocated.{source[line - first].strip()}", "B", float(bytes))

    def count(self, probe, folder):
        if self.tool == "memlab":
            return self.by_line(probe)
        if self.device.type == "cuda":
            allocated = lambda: torch.cuda.memory_stats()["requested_bytes.all.allocated"]
            before = allocated()
            self.step()
            counted = allocated() - before
        else:
            with Allocations() as counter:
                self.step()
            counted = counter.total
        recipe = self.tool == "recipe"
        told, _ = self.look(folder, RECIPE if recipe else 1)
        if recipe:
            names = traced(told.get("file"))
            probe.figure("traced_steps", "1", sum(name.startswith("ProfilerStep#") for name in set(names)))
            probe.figure("traced_memory", "1", names.count("[memory]"))
        elif "profiler" in told:
            # An operation's own bytes, less what it freed again.
            own = Counter()
            for event in operations(told["profiler"]):
                own[named(event)] += max(event.self_device_memory_usage if self.device.type == "cuda" else event.self_cpu_memory_usage, 0)
            probe.figure("memory_told", "1", sum(own.values()) / counted)
            for name, bytes in own.items():
                if bytes > 0:
                    probe.figure(f"allocated.{name}", "B", bytes)
        if self.tool == "statistics":
            statistics = torch.cuda.memory_stats()
            free, total = torch.cuda.mem_get_info()
            for metric, name in [("allocated_of_device", "allocated_bytes"), ("reserved_of_device", "reserved_bytes")]:
                probe.figure(metric, "1", statistics[f"{name}.all.peak"] / (total - free))

    def time(self, probe, folder):
        first = self.recordings == 0
        if first:
            # The step's own memory is none of the tool's.
            self.step()
            lab.reset_peak_resident()
            before = lab.resident()
        told, seconds = self.look(folder, self.active)
        if first:
            self.host = max(lab.peak_resident() - before, 0)
        probe.sample("recording", "s", seconds / self.active)
        if self.recordings == WARM_UP:
            probe.sample("host_memory", "B", self.host)
            if "file" in told:
                probe.sample("file_size", "B", os.path.getsize(told["file"]) / ACTIVE)
            if "profiler" in told and self.tool != "recipe":
                probe.sample("events", "1", len(told["profiler"].profiler.kineto_results.events()) / ACTIVE)
                own = Counter()
                for event in operations(told["profiler"]):
                    own[named(event)] += event.self_cpu_time_total * 1e-6
                probe.sample("time_told", "1", sum(own.values()) / seconds)
                for name, own_seconds in own.items():
                    probe.sample(f"self_time.{name}", "s", own_seconds / ACTIVE)
        self.recordings += 1

    def outcome(self):
        return {"gradient": [parameter.grad for parameter in self.model.parameters()]}


def traced(path):
    """Names of the events in a trace; none where no trace was written."""
    if path is None:
        return []
    with open(path) as trace:
        return [event.get("name", "") for event in json.load(trace)["traceEvents"]]


def named(event):
    """An operation's name; what the autograd engine takes around the nodes that it runs is one operation."""
    return "autograd engine" if event.name.startswith("autograd::engine::") else event.name


def operations(profiler):
    """Operations as the CPU ran or launched them, with CUDA's calls inside of them: neither kernels, allocations nor ranges."""
    on_cpu = torch.autograd.DeviceType.CPU
    others = ("[memory]", "cudaDeviceSynchronize")
    return [e for e in profiler.events() if e.device_type == on_cpu and not e.is_user_annotation and e.name not in others]


if __name__ == "__main__":
    lab.main(Looked)
