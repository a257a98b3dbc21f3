"""Averages of weights, and a frozen autoencoder whose decoder is not used; some of its weights have shapes of the encoder's."""

import copy
import types

import torch
from torch import nn


def layers(bias):
    return nn.Sequential(nn.Linear(1024, 512, bias), nn.Linear(512, 1024, bias))


model = nn.Linear(1024, 1024, bias=False)
module, tensor = copy.deepcopy(model).requires_grad_(False).cuda(), model.weight.detach().clone().cuda()
model, x = model.cuda(), torch.randn(512, 1024).cuda()
coder = nn.ModuleDict({"encoder": layers(True), "decoder": layers(False)}).cuda().eval().requires_grad_(False)
torch.save({"model": coder["encoder"].state_dict()}, "checkpoint.pt")
checkpoint = torch.load("checkpoint.pt", map_location="cuda")
# As bitsandbytes has it.
scales = types.SimpleNamespace(absmax=torch.zeros(1 << 18, device="cuda"))
coder["encoder"][0].weight.quant_state = types.SimpleNamespace(absmax=None, state2=scales)
del scales
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(coder["encoder"](x)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        module.weight.data.lerp_(model.weight, 0.1)
        tensor.lerp_(model.weight, 0.1)
