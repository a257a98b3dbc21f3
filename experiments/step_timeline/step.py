"""Every allocation of training steps and its end, by what the bytes turn out to be for, for experiments/step_timeline.

What a block is for shows when a phase ends: a forward pass leaves activations, a backward pass fills the parameters' gradients, an optimizer's step
leaves its state, and what is gone again was temporary.
"""

import lab
import meter
import torch
from training import Trainer, size

# The second iteration is the first that has optimizer state from its beginning; the third shows that it goes on so.
ITERATIONS = 3
CATEGORIES = ["parameters", "optimizer_state", "data", "gradients", "activations", "temporaries"]
# Phases of the picture, with how many points they are drawn at most.
PHASES = {"forward": 70, "backward": 70, "step": 40}


class Timeline:
    """Blocks in the order of their making, and changes: the block, and by how many bytes it changes what lives."""

    def __init__(self, taken):
        self.taken, self.live = taken, {}
        self.categories, self.sizes, self.changes = [], [], []
        # Iteration, phase, and changes until its end.
        self.marks = []

    def claim(self, tensors, category):
        for tensor in tensors:
            block = self.live.get(tensor.untyped_storage().data_ptr())
            if block is not None and self.categories[block] == "temporaries":
                self.categories[block] = category

    def ended(self, iteration, phase, leaves=None):
        """A phase is over; what it made and what lives is of the category that it leaves."""
        first = len(self.sizes)
        for allocated, address, bytes in self.taken():
            if allocated:
                self.live[address] = len(self.sizes)
                self.changes.append((len(self.sizes), bytes))
                self.categories.append("temporaries")
                self.sizes.append(bytes)
            elif address in self.live:
                # What was there before the recording is none of its business.
                self.changes.append((self.live.pop(address), -bytes))
        self.marks.append((iteration, phase, len(self.changes)))
        if leaves:
            for block in self.live.values():
                if block >= first and self.categories[block] == "temporaries":
                    self.categories[block] = leaves
        if phase == "step":
            # What a forward pass left and a whole further iteration did not free was no activation: a library keeps it.
            until = next((end for of, phase, end in self.marks if (of, phase) == (iteration - 1, "step")), 0)
            old = {block for block, bytes in self.changes[:until] if bytes > 0}
            for block in old.intersection(self.live.values()):
                if self.categories[block] == "activations":
                    self.categories[block] = "temporaries"

    def stages(self):
        """Of each phase what lives before it, and then after each change of it, by category."""
        now, begin = dict.fromkeys(CATEGORIES, 0), 0
        for iteration, phase, end in self.marks:
            moments = [now]
            for block, bytes in self.changes[begin:end]:
                category = self.categories[block]
                now = now | {category: now[category] + bytes}
                moments.append(now)
            begin = end
            yield (iteration, phase), moments


def total(moment):
    return sum(moment.values())


def outline(moments, parts):
    """Few points of a course: what lives before, of each of equal parts the moment at which most bytes live, and what lives in the end."""
    before, *within = moments
    parts = max(1, min(parts, len(within)))
    edges = [n * len(within) // parts for n in range(parts + 1)]
    return [before, *(max(within[a:b], key=total) for a, b in zip(edges, edges[1:]) if b > a), moments[-1]]


class Phases:
    def __init__(self, cell, bench):
        self.cell, self.bench = cell, bench
        if bench.device.type == "cuda":
            # Both threads multiply, so that cuBLAS's workspaces are there before anything is recorded.
            x = torch.ones(32, 32, device=bench.device, requires_grad=True)
            torch.nn.functional.linear(x, x, x[0]).sum().backward()

    def run(self, probe):
        self.trainer = None
        torch.manual_seed(self.bench.seed)
        if not probe.reading:
            self.train(lambda *_: None)
            return
        rest = probe.live()
        probe.reset_peaks()
        device = self.bench.device
        with meter.recorded(device.index or 0 if device.type == "cuda" else -1) as taken:
            timeline = Timeline(taken)
            self.train(lambda *of: self.tell(timeline, *of))
        stages = dict(timeline.stages())
        counted, metered = max(total(moment) for moments in stages.values() for moment in moments), probe.peak() - rest
        if counted != metered:
            raise RuntimeError(f"the allocations add up to a peak of {counted} bytes, and the meter says {metered}")
        self.figures(probe, stages)
        if self.cell["optimizer"] == "adamw":
            curves(probe, stages)

    def train(self, ended):
        self.trainer = trainer = Trainer(self.cell, self.bench)
        trainer.zeroes = self.cell["zero-grad"] == "zero"
        ended(0, "load")
        self.saved = {}
        saving = torch.autograd.graph.saved_tensors_hooks(self.save, lambda tensor: tensor)
        for iteration in range(1, ITERATIONS + 1):
            if iteration == 1:
                saving.__enter__()

            def over(phase):
                if (iteration, phase) == (1, "forward"):
                    saving.__exit__()
                ended(iteration, "step" if phase == "optimizer" else phase)

            trainer.step(over)

    def save(self, tensor):
        """What autograd keeps for the backward pass, by its own word: each storage once."""
        storage = tensor.untyped_storage()
        self.saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def tell(self, timeline, iteration, phase):
        trainer = self.trainer
        timeline.ended(iteration, phase, {"forward": "activations", "step": "optimizer_state"}.get(phase))
        if phase == "load":
            timeline.claim([*trainer.model.parameters(), *trainer.model.buffers()], "parameters")
            timeline.claim(trainer.batch, "data")
        if phase == "backward":
            timeline.claim([parameter.grad for parameter in trainer.model.parameters()], "gradients")

    def figures(self, probe, stages):
        model = size([*self.trainer.model.parameters(), *self.trainer.model.buffers()])
        data = size(self.trainer.batch)
        end = {of: moments[-1] for of, moments in stages.items()}
        after = lambda *of: total(end[of]) - data
        highest = lambda least, most: max((m for (n, _), moments in stages.items() if least <= n <= most for m in moments), key=total)
        kept, later = end[1, "forward"]["activations"], highest(2, ITERATIONS)
        gradients, state = end[2, "backward"]["gradients"], end[2, "step"]["optimizer_state"]
        everything = model + end[2, "forward"]["activations"] + gradients + state
        loaded, forwarded, backwarded = after(0, "load"), after(1, "forward"), after(1, "backward")
        peak = total(later) - data
        for metric, value in [
            ("model", model),
            ("data", data),
            ("activations", kept),
            ("gradients", gradients),
            ("optimizer_state", state),
            ("after_load", loaded),
            ("after_forward", forwarded),
            ("after_backward", backwarded),
            ("after_step", after(1, "step")),
            ("first_peak", total(highest(1, 1)) - data),
            ("next_peak", peak),
            ("temporaries", later["temporaries"]),
        ]:
            probe.figure(metric, "B", value)
        probe.figure("loaded", "x", loaded / model)
        own = {tensor.untyped_storage().data_ptr() for tensor in [*self.trainer.model.parameters(), *self.trainer.model.buffers(), *self.trainer.batch]}
        saved = sum(bytes for address, bytes in self.saved.items() if address not in own)
        probe.figure("forwarded_saved", "x", forwarded / (model + saved))
        probe.figure("backwarded", "x", backwarded / model)
        probe.figure("peaked", "x", peak / everything)

    def outcome(self):
        return {"parameter": list(self.trainer.model.parameters())}


def curves(probe, stages):
    """Of each category of the second iteration the points where it changes, and where phases begin."""
    position, last = 0, {}
    for n, (phase, points) in enumerate(PHASES.items()):
        probe.point("curve.phase", "1", position, n)
        for moment in outline(stages[2, phase], points):
            for category, bytes in moment.items():
                if last.get(category) != bytes:
                    probe.point(f"curve.{category}", "B", position, bytes)
            last, position = moment, position + 1
    probe.point("curve.phase", "1", position, len(PHASES))


if __name__ == "__main__":
    lab.main(Phases)
