"""The PyTorch reference for experiments/pin_memory.rs: an epoch of PyTorch's DataLoader with and without pin_memory, on a machine without a GPU."""

import warnings

import lab
import torch
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH = 2048, 64


class Epoch:
    # Some epochs in a sample: one alone moves by a fifth.
    timing = lab.Timing(samples=5, least_sample=0.06)

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


lab.main(lambda cell, bench: Epoch(cell["pinning"] == "on"))
