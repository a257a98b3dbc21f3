"""The PyTorch reference for experiments/real_gpus: what others recorded on real GPUs (peers/real_gpus), run again on a simulated GPU of the same kind."""

import sys
from pathlib import Path

import lab

sys.path.append(str(Path(__file__).resolve().parents[1] / "real_gpus"))
import replay  # noqa: E402


class Peak:
    """One row of peaks.csv: its process up to the row, and then a call of the row's benchmark for each step."""

    tells_all = True

    def __init__(self, rows, row):
        replay.prepare(rows)
        self.held = replay.before(rows)
        for earlier in rows[: rows.index(row)]:
            replay.peak(earlier)
        self.call, self.row = replay.benchmark(row), row

    def run(self, probe):
        predicted = replay.as_recorded(replay.peak_of(self.call))
        probe.figure("predicted", "B", predicted)
        probe.figure("measured", "B", int(self.row["peak_allocated_bytes"]))
        probe.figure("inferred", "B", sum(tensor.nbytes for tensor in self.held))


class Events:
    """A step of events/: each allocation and free."""

    tells_all = True

    def __init__(self, name):
        if name == "small_cnn":
            raise lab.Unavailable("cuDNN's workspaces, which are among its allocations, are unknown; so are its GPU and its PyTorch")
        self.name = name
        replay.become_recorded(name)

    def run(self, probe):
        # It warms up by itself.
        if not probe.reading:
            return
        found = replay.events(self.name)
        identical = found["identical"]
        for metric in ("predicted", "measured", "identical"):
            probe.figure(f"events_{metric}", "1", found[metric])
        for metric in ("predicted_peak", "measured_peak"):
            probe.figure(metric, "B", found[metric])
        probe.figure("match.identical", "1", identical)
        probe.figure("match.different", "1", max(found["predicted"], found["measured"]) - identical)


def prepare(cell, bench):
    if "record" in cell:
        return Events(cell["record"])
    for rows in replay.all_series():
        for row in rows:
            if replay.is_row(row, cell):
                return Peak(rows, row)
    raise ValueError(f"peaks.csv has no row for {cell}")


lab.main(prepare, opens_gpu=False)
