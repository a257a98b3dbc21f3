"""Loading a checkpoint with torch.load, for experiments/load_checkpoint."""

import ctypes
import gc
import os
import tempfile

import lab
import models
import torch


# torch.save asks its registered packages for the tag of a storage's device, in the order of their numbers, until one answers. This one
# answers for a CPU's storage as a GPU's own would, where a file from a GPU is to be written without one.
TAG = None
torch.serialization.register_package(0, lambda storage: TAG, lambda storage, location: None)


def write(name, saved, bench, path):
    """Writes the model that the seed gives, tagged with the device that it is said to come from."""
    torch.manual_seed(bench.seed)
    on_gpu = saved == "device" and bench.device.type == "cuda"
    model = models.named(name).to(bench.device if on_gpu else "cpu")
    global TAG
    TAG = "cuda:0" if saved == "device" and not on_gpu else None
    torch.save(model.state_dict(), path)
    TAG = None


# What torch.load is given besides; nothing is read of the model that was saved.
READERS = {"as-saved": None, "load": {}, "load-unrestricted": {"weights_only": False}, "load-mmap": {"mmap": True}}


def trim_heap():
    """Has the C library give back to the kernel what it holds and nobody uses."""
    ctypes.CDLL(None).malloc_trim(0)


class Load:
    timing = lab.ONCE

    def __init__(self, cell, bench):
        self.folder = tempfile.TemporaryDirectory(prefix="vramlab-")
        self.path = os.path.join(self.folder.name, "weights.pt")
        self.reader = cell["reader"]
        self.map = {"none": None, "device": bench.device, "cpu": "cpu"}[cell["map"]]
        self.device = bench.device
        write(cell["model"], cell["saved"], bench, self.path)
        gc.collect()
        # What writing left in the C library's heap would hide what the load takes.
        trim_heap()
        self.before, self.resident_before = lab.proportional(), lab.resident()
        torch.manual_seed(bench.seed)
        self.model = models.named(cell["model"]).to(bench.device)
        if self.reader != "as-saved":
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.zero_()
        self.bytes = sum(parameter.nbytes for parameter in self.model.parameters())

    def load(self):
        options = READERS[self.reader]
        if options is None:
            return {}
        state = torch.load(self.path, map_location=self.map, **options)
        self.model.load_state_dict(state)
        return state

    def run(self, probe):
        if probe.timing:
            lab.reset_peak_resident()
        state = self.load()
        if probe.timing:
            peak, held = lab.peak_resident(), lab.proportional()
            probe.sample("process_peak", "1", (peak - self.resident_before) / self.bytes)
            probe.sample("process_held", "1", (held - self.before) / self.bytes)
        landed = sum(tensor.nbytes for tensor in state.values() if tensor.device.type == self.device.type)
        probe.figure("landed", "1", landed / self.bytes)
        probe.figure("load_peak", "1", probe.peak() / self.bytes)
        probe.figure("held", "1", probe.live() / self.bytes)
        del state
        if probe.timing:
            probe.sample("process_dropped", "1", (lab.proportional() - self.before) / self.bytes)
            trim_heap()
            probe.sample("process_trimmed", "1", (lab.proportional() - self.before) / self.bytes)
        probe.figure("dropped", "1", probe.live() / self.bytes)

    def outcome(self):
        return {"parameter": list(self.model.state_dict().values())}


class Fits(Load):
    """A load on a device of limited memory, and where the cell says what becomes of the state a training step after it."""

    def __init__(self, cell, bench):
        super().__init__(cell, bench)
        self.state = cell.get("state")

    def whole(self):
        loaded = self.load()
        if self.state == "drop":
            loaded = None
        if self.state:
            # With Adam, whose state is new: without it the next run begins as this one did.
            optimizer = torch.optim.Adam(self.model.parameters(), 0.0, foreach=False)
            inputs, targets = (tensor.to(self.device) for tensor in self.model.batch(8))
            models.loss(self.model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        del loaded

    def run(self, probe):
        probe.at_rest()
        try:
            self.whole()
            fits = 1
        except RuntimeError as error:
            if not lab.is_out_of_memory(error):
                raise
            fits = 0
        self.model.zero_grad()
        probe.figure("fits", "1", fits)


def prepare(cell, bench):
    return (Fits if "device-memory" in cell else Load)(cell, bench)


if __name__ == "__main__":
    lab.main(prepare)
