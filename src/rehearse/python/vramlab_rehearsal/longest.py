"""`--longest`: the largest batch that a DataLoader gives, by the bytes of its samples, in place of the second that a training takes."""

import heapq
import itertools
import random
import time

import torch

from . import hosting
from .notes import note

# What is looked at of a data set, at most.
MOST_SAMPLES, MOST_SECONDS = 10000, 20.0

_taken = {}


def instead(iterator, batch):
    """What is given for a batch that the training takes."""
    which = id(iterator._dataset)
    _taken[which] = _taken.get(which, 0) + 1
    if _taken[which] != 2:
        return batch
    states = torch.get_rng_state(), random.getstate()
    try:
        found = _largest(torch, iterator)
    except Exception as error:
        note(note=f"--longest: the DataLoader's largest batch could not be asked for ({type(error).__name__}: {error})", about="unknown")
        return batch
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
    if found is None:
        note(note="--longest: a DataLoader of an iterable data set cannot be asked for its largest batch", about="unknown")
        return batch
    largest, looked = found
    kind, count = type(iterator._dataset).__name__, len(iterator._dataset)
    note(
        note=f"--longest: of {looked} of {count} samples of {kind} the largest batch, {hosting.bytes_of(largest)} B instead of "
        f"{hosting.bytes_of(batch)}, was given in the second step",
        about="longest",
    )
    return torch.utils.data._utils.pin_memory.pin_memory(largest) if iterator._pin_memory else largest


def _largest(torch, iterator):
    data = torch.utils.data
    if iterator._dataset_kind != data.dataloader._DatasetKind.Map or not iterator._auto_collation:
        return None
    dataset, sampler = iterator._dataset, iterator._index_sampler
    count, until = len(dataset), time.monotonic() + MOST_SECONDS
    sizes, best = {}, (0, [])

    def size(index):
        if index not in sizes:
            sizes[index] = hosting.bytes_of(dataset[index], of_others=_size)
        return sizes[index]

    shuffled = (data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler, data.distributed.DistributedSampler)
    if type(sampler) is data.BatchSampler and isinstance(sampler.sampler, shuffled):
        # Those that could come together, whether or not they do in this order.
        for index in range(0, count, -(-count // MOST_SAMPLES)):
            size(index)
            if time.monotonic() > until:
                break
        chosen = heapq.nlargest(sampler.batch_size, sizes, key=sizes.get)
    else:
        for indices in itertools.islice(sampler, MOST_SAMPLES):
            # Shorter ones are padded.
            best = max(best, (max(map(size, indices)) * len(indices), list(indices)))
            if len(sizes) >= MOST_SAMPLES or time.monotonic() > until:
                break
        chosen = best[1]
    return iterator._collate_fn([dataset[index] for index in chosen]), len(sizes)


def _size(value):
    return len(value) if isinstance(value, (str, bytes)) else 8 if isinstance(value, (int, float)) else 0
