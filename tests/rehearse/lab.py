"""A model of the lab's in training, as the lab trains it, in plain PyTorch: what --what-if makes of it is held against `vramlab predict`."""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "peers" / "pytorch"))
import models  # noqa: E402

SEQUENCE, SIDE = 64, 32

arguments = argparse.ArgumentParser()
arguments.add_argument("--model", required=True)
arguments.add_argument("--batch", type=int, required=True)
arguments.add_argument("--accumulate", type=int, default=1)
arguments = arguments.parse_args()

with torch.device("cuda"):
    model = models.named(arguments.model, SEQUENCE)
    samples = arguments.batch * arguments.accumulate
    if arguments.model.startswith("gpt"):
        inputs, targets = (torch.randint(models.VOCABULARY, (samples, SEQUENCE)) for _ in range(2))
    else:
        inputs = torch.randn(samples, 3, SIDE, SIDE)
        targets = torch.randint(models.CLASSES, (samples,))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
while True:
    optimizer.zero_grad()
    for first in range(0, samples, arguments.batch):
        micro = [tensor.narrow(0, first, arguments.batch) for tensor in (inputs, targets)]
        loss = models.loss(model(micro[0]), micro[1])
        if arguments.accumulate > 1:
            loss = loss / arguments.accumulate
        loss.backward()
        del loss
    optimizer.step()
