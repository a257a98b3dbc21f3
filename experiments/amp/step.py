"""The PyTorch reference for experiments/amp, of what needs PyTorch's dispatcher: the bytes that the operations of a step read and write."""

import lab
import models
import torch
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


class Bandwidth:
    tells_all = True

    def __init__(self, cell, bench):
        name, batch = cell["model"], cell.number("batch")
        self.model = models.named(name).to(bench.device)
        kind, size, *_ = name.split("-")
        width = int(size.split("x")[1])
        shape = {"mlp": (batch, width), "resnet": (batch, 3, 32, 32), "gpt": (batch, 64)}[kind]
        if kind == "gpt":
            self.inputs = torch.randint(0, models.VOCABULARY, shape, device=bench.device)
            self.targets = torch.randint(0, models.VOCABULARY, shape, device=bench.device)
        else:
            self.inputs = torch.randn(*shape, device=bench.device)
            self.targets = torch.randint(0, models.CLASSES, (batch,), device=bench.device)
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


if __name__ == "__main__":
    lab.main(Bandwidth)
