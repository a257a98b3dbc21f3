"""The PyTorch reference for experiments/real_gpus: what others recorded on real GPUs (records/real_gpus), run again on a simulated GPU of the same kind."""

import sys
from pathlib import Path

import lab

sys.path.append(str(Path(__file__).resolve().parents[2] / "records/real_gpus"))
import fine_tuning  # noqa: E402
import peft_methods  # noqa: E402
import image_models  # noqa: E402
import megatron_lm  # noqa: E402
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
        for metric in ("predicted", "measured", "identical"):
            probe.figure(f"events_{metric}", "1", found[metric])
        for metric in ("predicted_peak", "measured_peak"):
            probe.figure(metric, "B", found[metric])


class PublishedRow:
    """A row of peft_methods.csv, fine_tuning.csv, image_models.csv or megatron_lm.csv: its figures, predicted and measured."""

    tells_all = True

    def __init__(self, gpu, needed, unit, measured, predict):
        lab.need(*needed)
        self.unit, self.measured, self.predict = unit, measured, predict
        replay.become(gpu)
        replay.open_simulated_gpu()

    def run(self, probe):
        if not probe.reading:
            return
        for (figure, measured), predicted in zip(self.measured.items(), self.predict()):
            probe.figure(f"predicted_{figure}", self.unit, predicted)
            probe.figure(f"measured_{figure}", self.unit, measured)


def prepare(cell, bench):
    if "record" in cell:
        return Events(cell["record"])
    if "peft-method" in cell:
        row = peft_methods.rows()[cell["peft-method"]]
        measured = {"allocated": round(float(row["allocated_bytes"]))}
        return PublishedRow(peft_methods.GPU, ["transformers", "peft"], "B", measured, lambda: [peft_methods.allocated(row)])
    if "texts" in cell:
        row = next(row for row in fine_tuning.rows() if all(row[factor] == cell[factor] for factor in ("weights", "texts", "batch")))
        measured = {"kept": int(row["kept_bytes"])}
        if row["weights"] == "fp16":
            # The other depends on the longest text, which is not published.
            measured["highest"] = int(row["peak_bytes"])
        return PublishedRow(fine_tuning.GPU, ["transformers"], "B", measured, lambda: fine_tuning.memory(row))
    if "image-layout" in cell:
        row = next(row for row in image_models.rows() if (row["model"], row["layout"]) == (cell["image-model"], cell["image-layout"]))
        return PublishedRow(image_models.GPU, ["timm"], "1", {"batch": int(row["batch"])}, lambda: [image_models.largest_batch(row)])
    if "megatron-test" in cell:
        row = megatron_lm.rows()[cell["megatron-test"], cell["card"]]
        megatron_lm.prepare()
        measured = {"allocated": int(row["allocated_bytes"]), "max_allocated": int(row["max_allocated_bytes"])}
        return PublishedRow(megatron_lm.TITLES[row["gpu"]], ["megatron", "megatron.core"], "B", measured, lambda: megatron_lm.memory(row))
    for rows in replay.all_series():
        for row in rows:
            if replay.is_row(row, cell):
                if row["benchmark"].startswith("liger_"):
                    lab.need("liger_kernel")
                return Peak(rows, row)
    raise ValueError(f"peaks.csv has no row for {cell}")


lab.main(prepare, opens_gpu=False)
