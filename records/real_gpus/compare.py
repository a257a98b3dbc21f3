"""What others recorded on real GPUs, run again on a simulated GPU of the same kind: `compare.py CELL`, a cell of records/protocols/real_gpus-1.json,
prints its figures, a line each; or why there are none, with status 3. The tests in tests/experiments/real_gpus.rs start it."""

import importlib.util
import sys

import fine_tuning
import image_models
import megatron_lm
import peft_methods
import replay


class Unavailable(Exception):
    pass


def need(*packages):
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise Unavailable(f"this needs {package}; `just peers` installs it")


class Peak:
    """One row of peaks.csv: its process up to the row, and then a call of the row's benchmark for each step."""

    def __init__(self, rows, row):
        replay.prepare(rows)
        self.held = replay.before(rows)
        for earlier in rows[: rows.index(row)]:
            replay.peak(earlier)
        self.call, self.row = replay.benchmark(row), row

    def figures(self):
        replay.peak_of(self.call)
        yield "predicted", "B", replay.as_recorded(replay.peak_of(self.call))
        yield "measured", "B", int(self.row["peak_allocated_bytes"])
        yield "inferred", "B", sum(tensor.nbytes for tensor in self.held)


class Events:
    """A step of events/: each allocation and free."""

    def __init__(self, name):
        if name == "small_cnn":
            raise Unavailable("cuDNN's workspaces, which are among its allocations, are unknown; so are its GPU and its PyTorch")
        self.name = name
        replay.become_recorded(name)

    def figures(self):
        found = replay.events(self.name)
        for metric in ("predicted", "measured", "identical"):
            yield f"events_{metric}", "1", found[metric]
        for metric in ("predicted_peak", "measured_peak"):
            yield metric, "B", found[metric]


class PublishedRow:
    """A row of peft_methods.csv, fine_tuning.csv, image_models.csv or megatron_lm.csv: its figures, predicted and measured."""

    def __init__(self, gpu, needed, unit, measured, predict):
        need(*needed)
        self.unit, self.measured, self.predict = unit, measured, predict
        replay.become(gpu)
        replay.open_simulated_gpu()

    def figures(self):
        for (figure, measured), predicted in zip(self.measured.items(), self.predict()):
            yield f"predicted_{figure}", self.unit, predicted
            yield f"measured_{figure}", self.unit, measured


def prepare(cell):
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
                    need("liger_kernel")
                return Peak(rows, row)
    raise ValueError(f"peaks.csv has no row for {cell}")


if __name__ == "__main__":
    try:
        for metric, unit, value in prepare(dict(level.split("=", 1) for level in sys.argv[1].split(" "))).figures():
            print(metric, unit, value)
    except Unavailable as why:
        print(why)
        sys.exit(3)
