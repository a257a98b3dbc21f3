"""What each step leaves in a variable: outputs, or losses whose graphs stay."""

import collections
import sys

import torch
from torch import nn

what = sys.argv[1]
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())


class Meter:
    def __init__(self):
        self.values = []


class Trainer:
    def __init__(self):
        self.history, self.meter = [], Meter()


def report(output):
    return lambda: output.mean().item()


trainer, logs, kept, total, queue = Trainer(), {"losses": []}, [], 0, collections.deque(maxlen=100)
for step in range(20):
    x = torch.randn(2048, 1024, device="cuda")
    output = model(x)
    loss = (output - x).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=what in ("sum", "mean", "attribute", "pairs", "losses"))
    if what == "outputs":
        kept.append(output)
    elif what == "detached":
        kept.append(output.detach())
    elif what == "pairs":
        kept.append((step, loss))
    elif what == "sum":
        total += loss
    elif what == "evaluations":
        total = total + (model(x) - x).square().mean()
    elif what == "mean":
        total = loss if step == 0 else 0.9 * total + 0.1 * loss
    elif what == "attribute":
        trainer.history.append(loss)
    elif what == "losses":
        logs["losses"].append(loss)
    elif what == "queue":
        queue.append(output)
    optimizer.step()
    # What follows a step is of the next one's time.
    if what == "meter":
        trainer.meter.values.append((model(x) - x).square().mean())
    elif what == "closure":
        kept.append(report(output))
