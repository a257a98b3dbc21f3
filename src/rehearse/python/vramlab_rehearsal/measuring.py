"""A script on a real GPU, by PyTorch's own meters and a clock: what `--what-if --device cuda` compares."""

import statistics
import time

from .notes import note
from .session import settings


class Meter:
    def __init__(self, torch, stop):
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.torch, self.wanted, self.stop = torch, settings.steps, stop
        self.counts, self.moments, self.is_up = {}, [], False
        torch.cuda._queued_calls.insert(0, (self.begins, []))
        register_optimizer_step_post_hook(self.ends)

    def begins(self):
        """Before PyTorch's allocator has anything."""
        free, memory = self.torch.cuda.mem_get_info()
        self.is_up = True
        note(gpu=self.torch.cuda.get_device_name(), memory=memory, taken=memory - free)

    def ends(self, optimizer, *_):
        if not self.is_up:
            return
        self.counts[id(optimizer)] = self.counts.get(id(optimizer), 0) + 1
        # Several optimizers take turns: a step has ended when each has made it.
        steps = min(self.counts.values())
        if steps > len(self.moments) and (self.wanted is None or steps <= self.wanted):
            self.torch.cuda.synchronize()
            self.moments.append(time.perf_counter())
            self.tell()
        if self.wanted is not None and steps >= self.wanted:
            self.stop(steps)

    def tell(self):
        cuda = self.torch.cuda
        # From the end of a step to that of the next: the first step, which warms up, is none of them.
        times = [after - before for before, after in zip(self.moments, self.moments[1:])]
        seconds = statistics.median(times) if times else None
        note(meters=dict(peak_allocated=cuda.max_memory_allocated(), peak_reserved=cuda.max_memory_reserved(), seconds=seconds))
