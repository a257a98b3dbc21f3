"""Muon and Lion, which libtorch does not have, for experiments/optimizer_state."""

import lab
import presets
import torch

RATE = 1e-3
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
            bytes = sum(tensor.nbytes for tensor in [*self.parameters, *self.model.buffers()])
            state = [value for optimizer in self.optimizers for of in optimizer.state.values() for value in of.values()]
            # AdamW counts its steps on the CPU.
            kept = sum(tensor.nbytes for tensor in state if tensor.device == self.parameters[0].device)
            probe.figure("state", "B", kept)
            probe.figure("state_ratio", "1", kept / bytes)
            probe.figure("temporary_ratio", "1", (probe.peak() - rest) / bytes)

    def outcome(self):
        return {"update": [parameter.detach() - start for parameter, start in zip(self.own, self.start)]}


if __name__ == "__main__":
    lab.main(Stepping)
