"""The twin of experiments/loader.rs: the same files and the same job with torchvision and torch.utils.data.DataLoader."""

import os
import time
from pathlib import Path

import lab
import torch
from torch.utils.data import DataLoader

BATCH = 64


def cache():
    """As cache_folder() in src/data/textured.rs."""
    for name, below in [("VRAMLAB_DATA", ""), ("XDG_CACHE_HOME", "vramlab"), ("HOME", ".cache/vramlab")]:
        if os.environ.get(name):
            return Path(os.environ[name]) / below
    return Path("/tmp/vramlab")


def images(count, size):
    try:
        from torchvision import datasets, transforms
    except ImportError as error:
        raise lab.Unavailable(f"this needs torchvision; `just peers` installs it ({error})")
    folder = Path(os.environ.get("VRAMLAB_IMAGES") or cache() / f"textured-v1-{count}x{size}-in-8")
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there; the experiment's own cells make it, run those first")
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(224, antialias=True),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    return datasets.ImageFolder(folder, transform)


class Loading:
    """Two epochs and the beginning of a third."""

    timing = lab.ONCE

    def __init__(self, count, size, workers, seed):
        self.images, self.workers, self.seed = images(count, size), workers, seed

    def run(self, probe):
        start = time.perf_counter()
        loader = DataLoader(
            self.images,
            batch_size=BATCH,
            shuffle=True,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            generator=torch.Generator().manual_seed(self.seed),
        )
        batches = iter(loader)
        batch = next(batches)
        probe.sample("first_batch", "s", time.perf_counter() - start)
        for batch in batches:
            pass
        del batch, batches
        start, count = time.perf_counter(), 0
        for samples, labels in loader:
            if count == 0:
                probe.sample("gap", "s", time.perf_counter() - start)
            count += len(samples)
        probe.sample("rate", "1", count / (time.perf_counter() - start))
        del samples, labels
        batches = iter(loader)
        held = next(batches)
        probe.sample("proportional", "B", lab.proportional_of_tree())
        del held, batches


lab.main(lambda cell, bench: Loading(cell.number("images"), cell["size"], cell.number("workers"), bench.seed))
