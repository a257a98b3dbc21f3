"""LoRA and DoRA beside frozen weights, in plain PyTorch, for experiments/adapters."""

import lab
import presets
import torch
from torch import nn


class Adapted(nn.Module):
    """A frozen linear layer, and beside it a product of two matrices of a low rank, which alone are trained."""

    def __init__(self, layer, rank, scale=2.0):
        super().__init__()
        self.layer, self.scale = layer, scale
        of = {"dtype": layer.weight.dtype, "device": layer.weight.device}
        self.a = nn.Parameter(torch.randn(rank, layer.in_features, **of) / layer.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank, **of))

    def forward(self, x):
        return self.layer(x) + nn.functional.linear(nn.functional.linear(x, self.a), self.b) * self.scale

    def merged(self):
        with torch.no_grad():
            self.layer.weight += self.scale * self.b @ self.a
        return self.layer


class Directed(Adapted):
    """DoRA as PEFT has it: of weights and product together the direction, and a length of its own for each row, which is trained, too."""

    def __init__(self, layer, rank):
        super().__init__(layer, rank)
        self.lengths = nn.Parameter(layer.weight.norm(dim=1))

    def stretch(self):
        with torch.no_grad():
            of = (self.layer.weight + self.scale * self.b @ self.a).norm(dim=1)
        return self.lengths / of

    def forward(self, x):
        stretch, base = self.stretch(), self.layer(x)
        without_bias = base if self.layer.bias is None else base - self.layer.bias
        product = nn.functional.linear(nn.functional.linear(x, self.a), self.b)
        return base + ((stretch - 1) * without_bias + stretch * product * self.scale)

    def merged(self):
        stretch = self.stretch()
        super().merged()
        with torch.no_grad():
            self.layer.weight *= stretch[:, None]
        return self.layer


# The linear layers of attention, as the models call them.
ATTENTION = ("qkv", "query", "key", "value", "projection")


def linears(model, kind, names=None):
    for parent in model.block.modules():
        for name, child in list(parent.named_children()):
            if isinstance(child, kind) and (names is None or name in names):
                yield parent, name, child


def adapt(model, rank, names=None, kind=Adapted):
    model.requires_grad_(False)
    for parent, name, layer in list(linears(model, nn.Linear, names)):
        setattr(parent, name, kind(layer, rank))


class Training:
    def __init__(self, cell, bench):
        self.model, self.batch = presets.prepared(cell, bench.device)
        form, _, rank = cell["trained"].rpartition("-")
        if form:
            adapt(self.model, int(rank), ATTENTION if form == "attention" else None, Directed if form == "dora" else Adapted)
        if cell["recompute"] == "every-block":
            self.model.block = presets.train.Segments(self.model.block, 1)
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, 1e-3)

    def run(self, probe):
        self.optimizer.zero_grad()
        probe.at_rest()
        loss = probe.forward(lambda: presets.loss_of(self.model, self.batch))
        loss.backward()
        del loss
        self.optimizer.step()
        probe.figure("trained", "1", sum(map(torch.numel, self.trained)))
        state = [value for of in self.optimizer.state.values() for value in of.values()]
        probe.figure("training_bytes", "B", sum(tensor.nbytes for tensor in state + presets.gradients(self.model)))

    def outcome(self):
        return {"gradient": presets.gradients(self.model)}


class Merged:
    """Trains adapters, and gives what the model says with them beside its weights or merged into them."""

    def __init__(self, cell, bench):
        self.step = Training(lab.Cell(cell | {"trained": {"lora": "all-8", "dora": "dora-8"}[cell["adapter"]], "recompute": "nothing"}), bench)
        self.merges = cell["form"] == "merged"

    def run(self, probe):
        for _ in range(3):
            self.step.run(probe)
        model, (inputs, _) = self.step.model, self.step.batch
        if self.merges:
            for parent, name, adapted in list(linears(model, Adapted)):
                setattr(parent, name, adapted.merged())
        with torch.no_grad():
            self.output = model(inputs)

    def outcome(self):
        return {"output": [self.output]}


def prepare(cell, bench):
    return Merged(cell, bench) if "form" in cell else Training(cell, bench)


if __name__ == "__main__":
    lab.main(prepare)
