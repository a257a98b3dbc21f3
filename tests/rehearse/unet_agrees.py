"""The preset `sd-unet` on the CPU: it has the published number of parameters, and checkpoints, whose blocks hand on what others keep, leave its
gradients as they are, to the bit."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(sys.argv[1]).parent))
import train  # noqa: E402

with torch.device("meta"):
    whole = train.Unet()
# "DiffusionWrapper has 859.52 M params.", as CompVis/stable-diffusion prints it.
assert sum(p.numel() for p in whole.parameters()) == 859_520_964

torch.manual_seed(0)
model = train.Unet(image=64, width=32, context=16)
batch = model.batch(2)
assert model(*batch[:-1]).shape == batch[-1].shape


def gradients():
    model.zero_grad()
    train.step(model, torch.optim.SGD(model.parameters(), 0.0), batch)
    return [p.grad.clone() for p in model.parameters()]


plain = gradients()
assert all(gradient.any() for gradient in plain)
model.block = train.Segments(model.block, 5)
assert all(map(torch.equal, plain, gradients()))
print("plain and checkpointed agree")
