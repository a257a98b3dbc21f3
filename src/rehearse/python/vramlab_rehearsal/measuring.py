"""A script on a real GPU, by PyTorch's own meters and a clock: what `--what-if --device cuda` compares."""

import atexit
import statistics
import time

from . import calls
from .notes import note
from .session import settings


class Meter:
    def __init__(self, torch, stop):
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.torch, self.wanted, self.stop = torch, settings.steps, stop
        self.counts, self.moments, self.passes, self.is_up = {}, [], [], False
        torch.cuda._queued_calls.insert(0, (self.begins, []))
        register_optimizer_step_post_hook(self.ends)
        calls.around_outermost(self.enters)
        atexit.register(self.never_trained)

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

    def enters(self, _):
        if self.is_up and not self.moments and not self.torch.cuda.is_current_stream_capturing():
            event = self.torch.cuda.Event(enable_timing=True)
            event.record()
            self.passes.append(event)

    def never_trained(self):
        """At the end of a script without an optimizer step: its time is that from forward pass to forward pass."""
        if self.is_up and self.passes and not self.moments:
            self.torch.cuda.synchronize()
            self.tell_peaks([before.elapsed_time(after) / 1e3 for before, after in zip(self.passes, self.passes[1:])][1:], trains=False)

    def tell(self):
        # From the end of a step to that of the next: the first step, which warms up, is none of them.
        self.tell_peaks([after - before for before, after in zip(self.moments, self.moments[1:])], trains=True)

    def tell_peaks(self, times, trains):
        cuda, seconds = self.torch.cuda, statistics.median(times) if times else None
        peaks = dict(peak_allocated=cuda.max_memory_allocated(), peak_reserved=cuda.max_memory_reserved())
        note(meters=dict(**peaks, seconds=seconds, trains=trains))
