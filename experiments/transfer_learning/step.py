"""Training with a frozen backbone, for experiments/transfer_learning."""

import lab
import presets
import torch
from training import size


class Cut(torch.nn.Module):
    """Blocks, of which the first belong to the backbone: where that records nothing, recording begins again behind it."""

    def __init__(self, blocks, cut):
        super().__init__()
        self.backbone, self.rest = blocks[:cut], blocks[cut:]

    def forward(self, x):
        x = self.backbone(x)
        torch.set_grad_enabled(True)
        return self.rest(x)


class Transfer:
    def __init__(self, cell, bench):
        self.model, self.batch = presets.prepared(cell, bench.device)
        blocks, rest = self.model.block, cell["rest"]
        self.model.block = Cut(blocks, len(blocks) - (cell["part"] == "last-block"))
        # The part that is trained in any case gets a gradient where everything before it is cut off.
        self.records = False
        self.loss().backward()
        everything = list(self.model.parameters())
        self.part = [parameter for parameter in everything if parameter.grad is not None]
        self.records = rest != "frozen-no-grad"
        for parameter in everything:
            parameter.requires_grad_(rest in ("trained", "left-out") or parameter.grad is not None)
        self.model.zero_grad()
        self.optimizer = torch.optim.Adam(everything if rest == "trained" else self.part, 1e-4)

    def loss(self):
        with torch.set_grad_enabled(self.records):
            loss = presets.loss_of(self.model, self.batch)
        return loss

    def run(self, probe):
        self.optimizer.zero_grad()
        probe.at_rest()
        loss = probe.forward(self.loss)
        loss.backward()
        del loss
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        probe.figure("gradients", "B", size(parameter.grad for parameter in parameters))
        probe.figure("trained_share", "1", size(self.optimizer.param_groups[0]["params"]) / size(self.model.parameters()))
        self.optimizer.step()
        state = [tensor for of in self.optimizer.state.values() for tensor in of.values()]
        probe.figure("state", "B", size(tensor for tensor in state if tensor.device == self.batch[0].device))

    def outcome(self):
        return {"gradient": [parameter.grad for parameter in self.part]}


if __name__ == "__main__":
    lab.main(Transfer)
