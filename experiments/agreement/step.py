"""The PyTorch reference for experiments/agreement: the same steps in plain PyTorch, from the same parameters on the same data."""

import lab
import models
import torch
import torch.nn.functional as F

# What accumulation splits a batch into.
MICRO_BATCHES = 4


def optimizer(kind, parameters):
    # In a loop, as libtorch's.
    return torch.optim.SGD(parameters, lr=1e-2, foreach=False) if kind == "sgd" else torch.optim.AdamW(parameters, lr=1e-3, foreach=False)


def tell(probe, metric):
    """Gives what lives now; ours differs from it by what is stated there and by nothing else."""
    live = probe.live()
    probe.record(metric, live)
    probe.record(f"matched_{metric}", live)


class Training:
    """A whole training step."""

    def __init__(self, cell, bench):
        device = bench.device
        self.technique = cell["technique"]
        self.model = models.start(cell["model"], bench.start).to(device)
        self.inputs = bench.start["inputs"].to(device, copy=True)
        self.targets = bench.start["targets"].to(device, copy=True)
        self.optimizer = optimizer(cell["optimizer"], self.model.parameters())
        self.loss = None

    def logits(self, inputs):
        if self.technique == "inplace":
            x = inputs
            for layer in self.model.block:
                x = F.relu_(F.linear(x, layer.weight, layer.bias))
            return self.model.head(x)
        return self.model(inputs)

    def forward(self, inputs, targets, parts):
        if self.technique == "autocast":
            with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
                return models.loss(self.logits(inputs), targets)
        loss = models.loss(self.logits(inputs), targets)
        return loss / parts if parts > 1 else loss

    def run(self, probe):
        self.optimizer.zero_grad()
        self.loss = None
        probe.at_rest()
        parts = MICRO_BATCHES if self.technique == "accumulate" else 1
        size = len(self.inputs) // parts
        for first in range(0, len(self.inputs), size):
            inputs, targets = self.inputs[first : first + size], self.targets[first : first + size]
            self.loss = self.forward(inputs, targets, parts)
            tell(probe, "live_forward")
            self.loss.backward()
        tell(probe, "live_backward")
        self.optimizer.step()
        tell(probe, "live_step")
        probe.record("matched_requested_peak", probe.peak())

    def outcome(self):
        parameters = models.parameters(self.model)
        return {
            "gradient": [parameter.grad for parameter in parameters],
            "loss": [self.loss],
            "parameter": parameters,
        }


class Inference(Training):
    """A forward pass that keeps nothing for a backward one."""

    def run(self, probe):
        self.loss = None
        probe.at_rest()
        with torch.no_grad():
            self.loss = models.loss(self.model(self.inputs), self.targets)
        tell(probe, "live_forward")
        probe.record("matched_requested_peak", probe.peak())

    def outcome(self):
        return {"loss": [self.loss]}


class OptimizerStep(Training):
    """The optimizer's step alone, on gradients that stay."""

    def __init__(self, cell, bench):
        super().__init__(cell, bench)
        self.forward(self.inputs, self.targets, 1).backward()

    def run(self, probe):
        probe.at_rest()
        self.optimizer.step()
        tell(probe, "live_step")
        probe.record("matched_requested_peak", probe.peak())

    def outcome(self):
        return {"parameter": models.parameters(self.model)}


def prepare(cell, bench):
    return {"no-grad": Inference, "optimizer-step": OptimizerStep}.get(cell["technique"], Training)(cell, bench)


lab.main(prepare)
