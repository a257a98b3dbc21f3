"""The PyTorch reference for experiments/loader.rs: the same files and the same job with torchvision and torch.utils.data.DataLoader."""

import io
import os
import time
from pathlib import Path

import lab
import torch
from torch.utils.data import DataLoader, default_collate

BATCH = 64


def cache():
    """As cache_folder() in src/loader/src/textured.rs."""
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
    return datasets.ImageFolder(folder, transform, is_valid_file=is_jpeg, allow_empty=True)


def is_jpeg(path):
    """Of other files this lab's loader knows nothing, and both must load the same."""
    return path.lower().endswith((".jpg", ".jpeg"))


class Loading:
    """Two epochs and the beginning of a third."""

    timing = lab.ONCE
    times_itself = True

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
        del held, batches, loader
        if self.workers == 0:
            self.stages(probe)

    def stages(self, probe):
        """Does to single images what the loader does, with a clock between the stages."""
        from PIL import Image

        crop, *others = self.images.transform.transforms
        names = ["read", "decode", "crop and resize", "flip and normalise", "collate"]
        seconds = dict.fromkeys(names, 0.0)
        samples = []

        def timed(stage, work):
            start = time.perf_counter()
            done = work()
            seconds[stage] += time.perf_counter() - start
            return done

        def finish(image):
            for other in others:
                image = other(image)
            return image

        paths = self.images.samples[: 2 * BATCH]
        for path, label in paths:
            file = timed("read", lambda: io.BytesIO(Path(path).read_bytes()))
            image = timed("decode", lambda: Image.open(file).convert("RGB"))
            image = timed("crop and resize", lambda: crop(image))
            samples.append((timed("flip and normalise", lambda: finish(image)), label))
            if len(samples) == BATCH:
                timed("collate", lambda: default_collate(samples))
                samples.clear()
        for stage, spent in seconds.items():
            probe.sample(f"stage.{stage}", "s", spent / len(paths))


lab.main(lambda cell, bench: Loading(cell.number("images"), cell["size"], cell.number("workers"), bench.seed))
