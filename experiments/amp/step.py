"""The bytes that a step under autocast keeps, and those that its operations read and write; and what PyTorch's GradScaler protects from, for
experiments/amp."""

import copy
import math

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


# Of the task that is learned, and its training: features, samples, and those of a step.
FEATURES, SAMPLES, BATCH, HELD_OUT, RATE = 32, 2048, 128, 512, 5e-3


class Task:
    """Which of ten directions a vector points to most, learned from made-up samples."""

    def __init__(self, cell, bench):
        self.cell, self.kind = cell, training.HALVES.get(cell.get("precision", "amp-fp16"))
        self.device, self.scales = bench.device.type, cell.get("scaling") == "scaler" or cell.get("precision") == "amp-fp16"
        with bench.device:
            self.model = models.named("mlp-3x32")
            inputs = torch.randn(SAMPLES + HELD_OUT, FEATURES)
            targets = (inputs @ torch.randn(FEATURES, models.CLASSES)).argmax(-1)
        self.samples, self.held_out = (inputs[:SAMPLES], targets[:SAMPLES]), (inputs[SAMPLES:], targets[SAMPLES:])
        self.start = copy.deepcopy(self.model.state_dict())
        self.begin()

    def begin(self):
        self.model.load_state_dict(self.start)
        self.optimizer = torch.optim.Adam(self.model.parameters(), RATE)

    def scaler(self, **settings):
        return torch.amp.GradScaler(self.device, enabled=self.scales, **settings)

    def gradients(self):
        return [parameter.grad for parameter in models.parameters(self.model)]

    def batch(self, step):
        begin = step * BATCH % SAMPLES
        return [of[begin : begin + BATCH] for of in self.samples]

    def backward(self, batch, kind, scaler, weight=1.0):
        self.optimizer.zero_grad()
        with torch.autocast(self.device, kind, enabled=kind is not None):
            loss = models.loss(self.model(batch[0]), batch[1])
        scaler.scale(loss * weight).backward()

    def train(self, steps, kind, scaler, batch):
        """From the start; gives the scale before each step and after the last."""
        self.begin()
        scales = [scaler.get_scale()]
        for step in range(steps):
            self.backward(batch(step), kind, scaler)
            scaler.step(self.optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales

    def loss(self):
        with torch.no_grad():
            return models.loss(self.model(self.held_out[0]), self.held_out[1]).item()

    def tell(self, scales, probe):
        if math.isfinite(loss := self.loss()):
            probe.figure("loss", "1", loss)
        if self.scales:
            probe.figure("skipped", "1", sum(after < before for before, after in zip(scales, scales[1:])))
            probe.figure("lowest_scale", "1", min(scales))
            probe.figure("last_scale", "1", scales[-1])
        finite, all = (sum(of(p) for p in self.model.parameters()) for of in (lambda p: p.isfinite().sum().item(), torch.numel))
        probe.figure("ruined", "1", 1 - finite / all)

    def run(self, probe):
        if probe.reading:
            return self.measure(probe)
        self.begin()
        scaler = self.scaler(init_scale=1024.0)
        self.backward(self.batch(0), self.kind, scaler)
        scaler.unscale_(self.optimizer)

    def outcome(self):
        return {"gradient": self.gradients()}

    def measure(self, probe):
        scaler = self.scaler()
        self.tell(self.train(self.cell.number("steps"), self.kind, scaler, self.batch), probe)


class Guarded(Task):
    # The steps in fp32 that `converged` begins after, those of the other cases, and where the bad batch comes.
    TO_CONVERGE, STEPS, BAD = 1500, 60, 25

    def measure(self, probe):
        case = self.cell["case"]
        if case in ("converged", "small-loss"):
            return self.small_gradients(probe, *((self.TO_CONVERGE, 1.0) if case == "converged" else (0, 1e-4)))
        # Where the scale is to grow again within so few steps; PyTorch's interval is 2000. A start that is low enough leaves the bad batch as the only
        # one to overflow.
        scaler = self.scaler(init_scale=1024.0 if case == "bad-batch" else 2.0**24, growth_interval=10)
        scales = self.train(self.STEPS, self.kind, scaler, self.bad_batch if case == "bad-batch" else self.batch)
        self.tell(scales, probe)
        if self.scales and case == "bad-batch":
            probe.figure("recovered", "1", scales[-1] / scales[self.BAD])

    def bad_batch(self, step):
        """Those of one step are more than fp16 can hold."""
        inputs, targets = self.batch(step)
        return (inputs * 1e5 if step == self.BAD else inputs), targets

    def small_gradients(self, probe, steps, weight):
        """Gradients of all samples against those in fp32, after so many steps in fp32 and with a weight on the loss."""
        none = torch.amp.GradScaler(self.device, enabled=False)
        self.train(steps, None, none, self.batch)
        probe.figure("loss", "1", self.loss())
        self.backward(self.samples, None, none, weight)
        exact, scaler = [gradient.clone() for gradient in self.gradients()], self.scaler()
        for skipped in range(64):
            self.backward(self.samples, self.kind, scaler, weight)
            scaler.unscale_(self.optimizer)
            scaler.update()
            if all(gradient.isfinite().all() for gradient in self.gradients()):
                break
        else:
            raise RuntimeError("small gradients overflow")
        lost = sum(((gradient == 0) & (of != 0)).sum().item() for gradient, of in zip(self.gradients(), exact))
        probe.figure("zeros", "1", lost)
        probe.figure("not_zero", "1", sum((of != 0).sum().item() for of in exact))
        probe.figure("fp32_error", "1", lab.distance(self.gradients(), exact))
        if self.scales:
            probe.figure("skipped", "1", skipped)
            probe.figure("last_scale", "1", scaler.get_scale())


class Recipe:
    """PyTorch's AMP recipe: three linear layers of 4096 with ReLU between them, mean squared error, SGD."""

    def __init__(self, cell, bench):
        self.kind = training.HALVES.get(cell["precision"])
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = cell["precision"] == "tf32"
        with bench.device:
            layers = [torch.nn.Linear(4096, 4096) for _ in range(3)]
            self.model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
            self.inputs, self.targets = torch.randn(2, cell.number("batch"), 4096)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3)
        self.scaler = torch.amp.GradScaler(bench.device.type, enabled=self.kind is torch.float16)

    def run(self, probe):
        self.optimizer.zero_grad()
        with torch.autocast(self.inputs.device.type, self.kind, enabled=self.kind is not None):
            loss = torch.nn.functional.mse_loss(self.model(self.inputs), self.targets)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def outcome(self):
        # An error is relative, and the scaler's own step has unscaled them.
        return {"gradient": [parameter.grad for parameter in models.parameters(self.model)]}


def prepare(cell, bench):
    if "case" in cell or cell.get("bound") == "recipe":
        return (Guarded if "case" in cell else Recipe)(cell, bench)
    return (Memory if "optimizer" in cell else Task if "steps" in cell else Bandwidth)(cell, bench)


if __name__ == "__main__":
    lab.main(prepare)
