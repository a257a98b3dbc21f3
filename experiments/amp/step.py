"""The bytes that a step under autocast keeps, and those that its operations read and write, for experiments/amp."""

import lab
import models
import presets
import torch
import training
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Traffic(TorchDispatchMode):
    """Adds up the bytes of what operations read and write. A view does neither."""

    def __init__(self):
        super().__init__()
        self.total = self.casts = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        result = function(*args, **(kwargs or {}))
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        known = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        shares = all(tensor.untyped_storage().data_ptr() in known for tensor in outputs)
        if outputs and shares and not function._schema.is_mutable:
            return result
        moved = sum(map(touched, distinct(inputs))) + sum(map(touched, distinct(outputs)))
        self.total += moved
        if function is torch.ops.aten._to_copy.default:
            self.casts += moved
        return result


def distinct(tensors):
    return {id(tensor): tensor for tensor in tensors}.values()


def touched(tensor):
    """Bytes of a tensor; what is expanded is read once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


class Memory(training.Trainer):
    def __init__(self, cell, bench):
        super().__init__(cell, bench, drops=False)

    def run(self, probe):
        # A step begins by dropping the gradients of the one before.
        rest, activations = probe.live() - training.size(presets.gradients(self.model)), 0

        def ended(phase):
            nonlocal activations
            if phase == "forward":
                activations = probe.live() - rest

        super().run(probe, ended)
        if not probe.reading:
            return
        device = self.batch[0].device
        state = [tensor for of in self.optimizer.state.values() for tensor in of.values() if tensor.device == device]
        for metric, bytes in [
            ("activations", activations),
            ("parameters", training.size(self.model.parameters())),
            ("gradients", training.size(presets.gradients(self.model))),
            ("optimizer_state", training.size(state)),
            ("others", probe.peak() - rest - activations),
            ("casts", self.casts(probe) if self.kind else 0),
        ]:
            probe.figure(metric, "B", bytes)

    def casts(self, probe):
        """What a region of autocast holds by itself at its end: without gradients nothing else keeps the parameters' copies."""
        self.model.eval()
        with torch.autocast(self.batch[0].device.type, self.kind), torch.no_grad():
            self.model(*self.batch[:-1])
            inside = probe.live()
        return inside - probe.live()


class Bandwidth:
    tells_all = True

    def __init__(self, cell, bench):
        with bench.device:
            self.model = models.named(cell["model"])
            self.inputs, self.targets = self.model.batch(cell.number("batch"))
        self.half = cell["precision"] != "fp32"

    def run(self, probe):
        for parameter in self.model.parameters():
            parameter.grad = None
        with Traffic() as traffic:
            with torch.autocast(self.inputs.device.type, torch.bfloat16, enabled=self.half):
                loss = models.loss(self.model(self.inputs), self.targets)
            loss.backward()
        probe.figure("traffic", "B", traffic.total)
        probe.figure("cast_traffic", "B", traffic.casts)

    def outcome(self):
        return {"gradient": [parameter.grad for parameter in models.parameters(self.model)]}


def prepare(cell, bench):
    return (Memory if "optimizer" in cell else Bandwidth)(cell, bench)


if __name__ == "__main__":
    lab.main(prepare)
