"""torch.utils.data.DataLoader with several settings, for experiments/num_workers."""

import os
import time

import lab
import photographs
import presets
import torch
from torch.utils.data import DataLoader, Dataset, Subset

BATCH, CLASSES = 16, 8
# Samples whose order a check compares.
CHECKED = 64
WAIT = 0.002
WAITING_BATCHES = 16
# A sample of a rate: an epoch alone is over in 0.4 s, and moves by a sixth from one to the next.
LEAST_SECONDS = 2.5
GAPS = 5
# What the process may use, as Rust's available_parallelism counts it.
CORES = len(os.sched_getaffinity(0))


class Heavy(Dataset):
    """JPEG files: decoded, randomly cropped and resized to 224 with antialias, flipped, normalised. Its labels are the files' numbers."""

    def __init__(self, samples):
        transforms = lab.transforms()
        self.files = photographs.made(samples)
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(224, antialias=True),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        from PIL import Image

        with open(self.files[index], "rb") as file:
            return self.transform(Image.open(file).convert("RGB")), index


class Light(Dataset):
    """3 x 32 x 32 bytes in memory, normalised."""

    def __init__(self, samples):
        self.pixels = (torch.arange(samples * 3 * 32 * 32) * 31 % 251).to(torch.uint8).reshape(samples, 3, 32, 32)

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        return self.pixels[index].float() / 127.5 - 1.0, index


class Waits(Light):
    """Samples that wait, as for storage."""

    def __getitem__(self, index):
        time.sleep(0.005)
        return super().__getitem__(index)


class Waiting(Dataset):
    """Samples that wait as for storage: always as long, or one in sixteen very long and the others half as long."""

    def __init__(self, jittering, waits):
        self.jittering, self.waits = jittering, waits

    def __len__(self):
        return WAITING_BATCHES * BATCH

    def __getitem__(self, index):
        if self.waits:
            long = (index * 0x9E3779B1 & 0xFFFFFFFF) >> 28 == 0
            time.sleep(WAIT if not self.jittering else WAIT * 8.5 if long else WAIT / 2)
        return torch.full((3, 224, 224), float(index)), index


def workers(level):
    return int(level[:-1]) * CORES if level.endswith("x") else int(level)


def loader(data, count, kept, seed, **options):
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(
        data, batch_size=BATCH, shuffle=True, num_workers=count, persistent_workers=kept and count > 0, generator=generator, **options
    )


def seconds_of_epochs(epoch):
    """How long an epoch takes, in the mean of those of some seconds."""
    start, epochs, spent = time.perf_counter(), 0, 0.0
    while spent < LEAST_SECONDS:
        epoch()
        epochs, spent = epochs + 1, time.perf_counter() - start
    return spent / epochs


def read(batches):
    for batch in batches:
        # Its memory is free before the next one comes.
        del batch


class Loads:
    """What times its parts itself, and gives a check the samples in their order."""

    timing = lab.ONCE
    times_itself = True
    given = ()

    def outcome(self):
        return {"samples": self.given}


class Loading(Loads):
    def __init__(self, data, count, seed):
        self.data, self.count, self.seed = data, count, seed

    def gap(self, kept):
        """Seconds until the workers are there, and until the first batch is."""
        few = Subset(self.data, range(min(2 * BATCH * self.count, len(self.data))))
        batches = loader(few, self.count, kept, self.seed)
        read(batches)
        start = time.perf_counter()
        batches = iter(batches)
        there = time.perf_counter()
        next(batches)
        return there - start, time.perf_counter() - start

    def run(self, probe):
        if not probe.timing:
            few = Subset(self.data, range(min(CHECKED, len(self.data))))
            self.given = [labels for _, labels in loader(few, self.count, True, self.seed)]
            return
        start = time.perf_counter()
        batches = loader(self.data, self.count, True, self.seed)
        first = iter(batches)
        next(first)
        probe.sample("first_batch", "s", time.perf_counter() - start)
        read(first)
        seconds = seconds_of_epochs(lambda: read(batches))
        probe.sample("rate", "1", len(self.data) / seconds)
        third = iter(batches)
        held = next(third)
        probe.sample("proportional", "B", lab.proportional_of_tree())
        del held, third, first, batches
        # As in the experiment: starting more of them would take its time.
        if self.count == CORES:
            pairs = [(self.gap(False), self.gap(True)) for _ in range(GAPS)]
            for part, name in enumerate(["start", "gap"]):
                new, kept = (sum(gap[part] for gap in gaps) / GAPS for gaps in zip(*pairs))
                probe.sample(f"{name}_new", "s", new)
                probe.sample(f"{name}_kept", "s", kept)
                probe.sample(f"{name}_ratio", "x", kept / new)
            probe.sample("gap_share", "1", new / (new + seconds))


class Training(Loading):
    """An epoch of training, with loading as it comes."""

    # An epoch is long enough to be measured by itself.
    timing = lab.Timing(warm_up_steps=1, warm_up_seconds=0.0, samples=5, least_sample=0.0)
    times_itself = False

    def __init__(self, data, count, bench, network):
        super().__init__(data, count, bench.seed)
        self.device, self.net = bench.device, network().to(bench.device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 1e-3)
        self.batches = loader(data, count, True, bench.seed)

    def run(self, probe):
        self.given = []
        for samples, labels in self.batches:
            self.given.append(labels)
            targets = (labels % CLASSES).to(self.device)
            loss = torch.nn.functional.cross_entropy(self.net(samples.to(self.device)), targets)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


class Prefetching(Loads):
    def __init__(self, prefetch, seed):
        self.prefetch, self.seed = prefetch, seed

    def batches(self, jittering, waits):
        return loader(Waiting(jittering, waits), CORES, True, self.seed, prefetch_factor=self.prefetch)

    def rate(self, jittering):
        batches = self.batches(jittering, True)

        def epoch():
            for _ in batches:
                time.sleep(WAIT * BATCH / CORES)

        return len(batches.dataset) / seconds_of_epochs(epoch)

    def memory(self):
        """Bytes of all processes while one batch is in use and the next ones lie ready."""
        batches = iter(self.batches(False, False))
        held = next(batches)
        time.sleep(0.1)
        bytes = lab.proportional_of_tree()
        del held
        return bytes

    def run(self, probe):
        if not probe.timing:
            self.given = [labels for _, labels in self.batches(True, False)]
            return
        probe.sample("steady_rate", "1", self.rate(False))
        probe.sample("jittering_rate", "1", self.rate(True))
        probe.sample("proportional", "B", self.memory())


class Counted(Dataset):
    """Samples that count, over all workers, how many were loaded."""

    def __init__(self):
        self.loaded = torch.zeros(1, dtype=torch.int64).share_memory_()
        self.lock = torch.multiprocessing.Lock()

    def __len__(self):
        return 64 * BATCH

    def __getitem__(self, index):
        with self.lock:
            self.loaded += 1
        return index


class Ahead:
    """How many batches the workers load before the training takes the first."""

    def __init__(self, factor):
        self.options = {} if factor == "default" else {"prefetch_factor": int(factor)}

    def run(self, probe):
        data = Counted()
        batches = loader(data, CORES, False, 1, **self.options)
        waiting, seen = iter(batches), -1
        # Until a second brings no more.
        while seen != (seen := int(data.loaded)) or not seen:
            time.sleep(1.0)
        probe.figure("ahead", "1", seen / BATCH / CORES)
        probe.figure("asked", "1", self.options.get("prefetch_factor", 2))
        del waiting


class Recipe(Loads):
    """Guide 3's loader with all of its settings, or the plain one: three epochs from the start of the loader."""

    epochs = 3
    options = {
        "plain": {},
        "guide": {"num_workers": 8, "pin_memory": True, "persistent_workers": True, "prefetch_factor": 4},
    }

    def __init__(self, data, settings, seed):
        self.data, self.options, self.seed = data, self.options[settings], seed

    def batches(self, data):
        generator = torch.Generator().manual_seed(self.seed)
        return DataLoader(data, batch_size=64, shuffle=True, generator=generator, **self.options)

    def run(self, probe):
        if not probe.timing:
            few = Subset(self.data, range(min(CHECKED, len(self.data))))
            self.given = [labels for _, labels in self.batches(few)]
            return

        def from_the_start():
            batches = self.batches(self.data)
            for _ in range(self.epochs):
                read(batches)

        probe.sample("epochs_rate", "1", self.epochs * len(self.data) / seconds_of_epochs(from_the_start))
        held = iter(self.batches(self.data))
        first = next(held)
        probe.sample("proportional", "B", lab.proportional_of_tree())
        del first, held


def pooled():
    """So little that training waits for loading."""
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, CLASSES))


def convolutions():
    """So much on a CPU that loading waits for training."""
    layers = [(3, 32, 7, 4), (32, 64, 3, 1), (64, 128, 3, 2)]
    layers = [part for ins, outs, side, stride in layers for part in (torch.nn.Conv2d(ins, outs, side, stride, side // 2), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(128, CLASSES))


NETWORKS = {"pooled": pooled, "convolutions": convolutions, "resnet50": lambda: presets.train.MODELS["resnet50"]()}


def prepare(cell, bench):
    if "prefetch_factor" in cell:
        return Ahead(cell["prefetch_factor"])
    if "prefetch" in cell:
        return Prefetching(cell.number("prefetch"), bench.seed)
    if "loader" in cell:
        return Recipe(Heavy(cell.number("samples")), cell["loader"], bench.seed)
    data = {"heavy": Heavy, "light": Light, "waits": Waits}[cell["transform"]](cell.number("samples"))
    if "model" in cell:
        return Training(data, workers(cell["workers"]), bench, NETWORKS[cell["model"]])
    return Loading(data, workers(cell["workers"]), bench.seed)


if __name__ == "__main__":
    lab.main(prepare)
