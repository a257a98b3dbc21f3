"""A training step with what guides combine: an optimizer, half precision, micro-batches and checkpoints, by the levels of a cell."""

import presets
import torch
from presets import train

# PyTorch's defaults; rates are small, so that made-up data does not send the loss to infinity.
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 1e-3, momentum=0.9),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, 1e-5),
    "adam": lambda parameters: torch.optim.Adam(parameters, 1e-5),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-5),
}
HALVES = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}
# PyTorch's default of 65536 overflows in the first steps of many models; those steps are left out, and an optimizer that was not stepped has no
# state. From 1024 on the first step counts.
FIRST_LOSS_SCALE = 1024.0


class Trainer:
    """A model in training on made-up data: the same batch in each step."""

    def __init__(self, cell, bench, drops=True):
        self.cell = cell
        self.model, self.batch = presets.prepared(cell, bench.device, drops)
        self.kind, self.accumulate = HALVES.get(cell.get("precision")), int(cell.get("accumulate", 1))
        length = train.SEGMENTS[cell.get("checkpoint", "none")](len(self.model.block))
        if length:
            self.model.block = train.Segments(self.model.block, length)
        self.optimizer = OPTIMIZERS[cell["optimizer"]](self.model.parameters())
        self.scaler = torch.amp.GradScaler(bench.device.type, FIRST_LOSS_SCALE, enabled=self.kind is torch.float16)
        self.zeroes = False

    def step(self, ended=lambda phase: None):
        """`ended` is called with the name of each phase when it is over: after forward the loss lives and what it leads to."""
        self.optimizer.zero_grad(set_to_none=not self.zeroes)
        for micro in zip(*(tensor.chunk(self.accumulate) for tensor in self.batch)):
            with torch.autocast(self.batch[0].device.type, self.kind, enabled=self.kind is not None):
                loss = presets.loss_of(self.model, micro)
            loss = self.scaler.scale(loss / self.accumulate if self.accumulate > 1 else loss)
            ended("forward")
            loss.backward()
            del loss
            ended("backward")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        ended("optimizer")

    def run(self, probe, ended=lambda phase: None):
        # Gradients are compared with batch norms that normalise by their running statistics: with a batch's own, ResNet-50's gradient at its random
        # start is another one in bf16, or from a quarter of the batch, by more than its own norm, and nothing could be told by it.
        self.model.train(probe.reading or probe.timing)
        self.step(ended)

    def outcome(self):
        return {"gradient": presets.gradients(self.model)}


def size(tensors):
    """Bytes of tensors."""
    return sum(tensor.nbytes for tensor in tensors)
