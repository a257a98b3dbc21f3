"""Steps of optimizers, for experiments/optimizer_state."""

import lab
import presets
import torch
from training import size

RATE = 1e-3
METHODS = {
    "sgd": lambda own, **how: torch.optim.SGD(own, RATE, **how),
    "momentum": lambda own, **how: torch.optim.SGD(own, RATE, momentum=0.9, **how),
    "rmsprop": lambda own, **how: torch.optim.RMSprop(own, RATE, **how),
    "adam": lambda own, **how: torch.optim.Adam(own, RATE, **how),
    "adamw": lambda own, **how: torch.optim.AdamW(own, RATE, **how),
}
HOW = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
# Numbers of state for each parameter, and state over model as guide 4 says, where it does.
KEPT = {"sgd": 0, "momentum": 1, "rmsprop": 1, "adam": 2, "adamw": 2}
CLAIMED = {"rmsprop": 1, "adam": 2}
# Steps before the one that is measured, so that there is a past to remember.
BEFORE = 3
# Of a check: gradients differ from step to step, so that moments matter.
STEPS = 3


class Lion(torch.optim.Optimizer):
    """Chen et al., arXiv 2302.06675, over all tensors at once. PyTorch has none."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        parameters = self.param_groups[0]["params"]
        for parameter in parameters:
            self.state[parameter] = self.state[parameter] or {"moment": torch.zeros_like(parameter)}
        moments, gradients = [self.state[parameter]["moment"] for parameter in parameters], [parameter.grad for parameter in parameters]
        updates = torch._foreach_lerp(moments, gradients, 0.1)
        torch._foreach_sign_(updates)
        torch._foreach_add_(parameters, updates, alpha=-RATE)
        torch._foreach_lerp_(moments, gradients, 0.01)


class Formula:
    """Both by their formulas in double precision, of one parameter: Muon's five Newton-Schulz steps are a polynomial of the singular values."""

    def __init__(self, method, parameter):
        self.update, self.parameter, self.moment = getattr(self, method), parameter, 0.0

    def step(self):
        with torch.no_grad():
            self.parameter.copy_(self.update(self.parameter.double(), self.parameter.grad.double()))

    def lion(self, parameter, gradient):
        update = torch.sign(0.9 * self.moment + 0.1 * gradient)
        self.moment = 0.99 * self.moment + 0.01 * gradient
        return parameter - RATE * update

    def muon(self, parameter, gradient):
        self.moment = 0.95 * self.moment + 0.05 * gradient
        u, s, v = torch.linalg.svd(0.95 * self.moment + 0.05 * gradient, full_matrices=False)
        s /= s.norm()
        for _ in range(5):
            s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
        rows, columns = parameter.shape
        return parameter * (1 - 0.1 * RATE) - RATE * max(1, rows / columns) ** 0.5 * (u * s) @ v


class Alone:
    """A step of PyTorch's own optimizers alone, with gradients that stay; or copies between as many buffers as it has tensors for each parameter, until
    as many bytes have moved as a step must read and write: the parameter, its gradient and its state in, all but the gradient out."""

    def __init__(self, cell, bench):
        self.method, how = cell["optimizer"], cell["implementation"]
        if "model" in cell:
            model, _ = presets.prepared(lab.Cell(cell | {"batch": "1"}), bench.device)
            self.parameters, self.bytes = list(model.parameters()), size([*model.parameters(), *model.buffers()])
        else:
            each = cell.number("parameters") // cell.number("tensors")
            values = lambda: (torch.randn(each, device=bench.device) * 0.02).requires_grad_()
            self.parameters = [values() for _ in range(cell.number("tensors"))]
            self.bytes = size(self.parameters)
        for parameter in self.parameters:
            parameter.grad = torch.randn_like(parameter)
        self.start = [parameter.detach().clone() for parameter in self.parameters]
        self.moved, numbers = 2 * (1 + KEPT[self.method]) + 1, sum(map(torch.numel, self.parameters))
        self.traffic = 4 * self.moved * numbers
        self.buffers = self.optimizer = None
        if how == "copy":
            # No parameter moves, and nothing but one of each is held beside the buffers.
            self.start = self.parameters
            for parameter in self.parameters:
                parameter.grad = None
            self.buffers = [torch.zeros(numbers, device=bench.device) for _ in range(2 + KEPT[self.method])]
            return
        self.optimizer = METHODS[self.method](self.parameters, **HOW[how])
        for _ in range(BEFORE):
            self.optimizer.step()

    def copy(self):
        # A copy reads a number and writes one.
        for n in range(self.moved // 2):
            self.buffers[(n + 1) % len(self.buffers)].copy_(self.buffers[n % len(self.buffers)])
        if self.moved % 2:
            half = lambda buffer: buffer[: len(buffer) // 2]
            half(self.buffers[0]).copy_(half(self.buffers[-1]))

    def run(self, probe):
        rest = probe.at_rest()
        self.optimizer.step() if self.optimizer else self.copy()
        probe.figure("traffic", "B", self.traffic)
        if self.optimizer and probe.reading:
            tell(probe, [self.optimizer], self.bytes, rest, self.parameters[0].device)
            if self.method in CLAIMED:
                probe.figure("claimed", "B", CLAIMED[self.method] * self.bytes)

    def outcome(self):
        return {"update": [parameter.detach() - start for parameter, start in zip(self.parameters, self.start)]}


def tell(probe, optimizers, bytes, rest, device):
    """What optimizers keep on a device, and what their step took beyond what had been there, over the model's bytes."""
    state = [value for optimizer in optimizers for of in optimizer.state.values() for value in of.values() if torch.is_tensor(value)]
    # Some count their steps on the CPU.
    kept = size(tensor for tensor in state if tensor.device == device)
    probe.figure("state", "B", kept)
    probe.figure("state_ratio", "1", kept / bytes)
    probe.figure("temporary_ratio", "1", (probe.peak() - rest) / bytes)


class Stepping:
    """Muon trains the blocks' matrices, and AdamW the rest; Lion and AdamW train all."""

    def __init__(self, cell, bench):
        self.model, _ = presets.prepared(lab.Cell(cell | {"batch": "1"}), bench.device)
        self.parameters, method = list(self.model.parameters()), cell["method"]
        self.own = [p for p in self.model.block.parameters() if p.ndim == 2] if method == "muon" else self.parameters
        rest = [p for p in self.parameters if all(p is not own for own in self.own)]
        if cell.get("written") == "formula":
            self.optimizers = [Formula(method, parameter) for parameter in self.own]
        else:
            made = {"adamw": lambda of: torch.optim.AdamW(of, RATE), "lion": Lion, "muon": lambda of: torch.optim.Muon(of, RATE)}
            self.optimizers = [made[method](self.own)] + ([torch.optim.AdamW(rest, RATE)] if rest else [])
        self.start = [parameter.detach().clone() for parameter in self.own] if "written" in cell else None

    def run(self, probe):
        for _ in range(1 if self.start is None else STEPS):
            for parameter in self.parameters:
                parameter.grad = torch.randn_like(parameter)
            rest = probe.at_rest()
            for optimizer in self.optimizers:
                optimizer.step()
        if probe.reading:
            tell(probe, self.optimizers, size([*self.parameters, *self.model.buffers()]), rest, self.parameters[0].device)

    def outcome(self):
        return {"update": [parameter.detach() - start for parameter, start in zip(self.own, self.start)]}


def prepare(cell, bench):
    return (Alone if "implementation" in cell else Stepping)(cell, bench)


if __name__ == "__main__":
    lab.main(prepare)
