"""The twin of experiments/pin_memory.rs: an epoch of PyTorch's DataLoader with and without pin_memory, on a machine without a GPU."""

import os

# The claim is about machines without a GPU: where there is one, it is not shown.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import warnings

import lab
import torch
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH = 2048, 64


class Epoch:
    def __init__(self, pinning):
        data = TensorDataset(torch.randn(SAMPLES, 3, 64, 64), torch.randint(0, 10, (SAMPLES,)))
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
