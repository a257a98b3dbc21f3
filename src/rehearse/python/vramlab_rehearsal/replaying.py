"""A script's allocations asked for again of PyTorch's own allocator, in the sizes that another batch would give them; nothing else runs."""

import json

ALLOCATE, FREE, EMPTY_CACHE = range(3)


def largest(path):
    """Writes beside the file the largest number below `high` whose allocations fit; `low` does."""
    import torch

    # The allocator is all that is wanted, with nobody who watches it.
    torch.cuda._queued_calls.clear()
    with open(path) as file:
        told = json.load(file)
    torch.cuda.set_device(told["device"])
    others = [torch.cuda.Stream() for _ in range(told["streams"] - 1)]
    streams = [0, *(stream.cuda_stream for stream in others)]
    (less, more), low, high = told["numbers"], told["low"], told["high"]

    def fits(number):
        sizes = [max(before + (after - before) * (number - less) // (more - less), 1) for before, after in told["sizes"]]
        return _fit(torch, told["requests"], sizes, streams)

    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    with open(path + ".largest", "w") as file:
        file.write(str(low))


def _fit(torch, requests, sizes, streams):
    allocate = torch._C._cuda_cudaCachingAllocator_raw_alloc
    free = torch._C._cuda_cudaCachingAllocator_raw_delete
    blocks = []
    try:
        for kind, which in requests:
            if kind == ALLOCATE:
                blocks.append(allocate(sizes[len(blocks)], streams[which]))
            elif kind == FREE:
                free(blocks[which])
                blocks[which] = 0
            else:
                torch.cuda.empty_cache()
        return True
    except torch.OutOfMemoryError:
        return False
    finally:
        for block in filter(None, blocks):
            free(block)
        torch.cuda.empty_cache()
