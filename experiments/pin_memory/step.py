"""The PyTorch reference for experiments/pin_memory: epochs of PyTorch's DataLoader with and without pin_memory, with a GPU and without one."""

import warnings

import lab
import torch
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH = 2048, 64


class Epoch:
    # Many epochs in a sample: one alone moves by a fifth.
    timing = lab.Timing(samples=15, least_sample=0.2)

    def __init__(self, pinning):
        # Batches are small enough for the C library to use their memory again: mapping it afresh takes as long as loading.
        data = TensorDataset(torch.randn(SAMPLES, 3, 32, 32), torch.randint(0, 10, (SAMPLES,)))
        self.loader = DataLoader(data, batch_size=BATCH, pin_memory=pinning)
        self.received = []

    def run(self, probe):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.received = [images.sum() for images, _ in self.loader]
        told = [warning for warning in caught if "pin_memory" in str(warning.message)]
        probe.sample("warned", "1", len(told))

    def outcome(self):
        return {"values": self.received}


class Sent:
    """An epoch whose batches go to the GPU as guide 5 has it, and what it locked of the host's memory."""

    timing = lab.Timing(samples=5, least_sample=0.06)

    def __init__(self, cell, bench):
        batch, self.device = cell.number("images"), bench.device
        data = TensorDataset(torch.randn(8 * batch, 3, 64, 64), torch.randint(0, 10, (8 * batch,)))
        workers = cell.number("workers")
        # Workers stay, so that their start is no part of a step.
        settings = {"num_workers": workers, "persistent_workers": workers > 0, "pin_memory": cell["pinning"] == "on"}
        self.loader, self.bytes, self.received = DataLoader(data, batch_size=batch, **settings), batch * (3 * 64 * 64 * 4 + 8), []

    def run(self, probe):
        self.received = []
        for images, _ in self.loader:
            self.received.append(images.to(self.device, non_blocking=True).sum())
        locked = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)
        probe.figure("locked_by_loader", "B", locked)
        probe.figure("locked_batches", "1", locked / self.bytes)

    def outcome(self):
        return {"values": self.received}


lab.main(lambda cell, bench: Sent(cell, bench) if "workers" in cell else Epoch(cell["pinning"] == "on"))
