"""Values, gradients and copies of a model in segments (`checkpoint-sqrt`) against those of the plain one, on the CPU; prints what was compared."""

import ast
import copy
import sys

import torch
from torch import nn

with open(sys.argv[1]) as file:
    found = [each for each in ast.parse(file.read()).body if getattr(each, "name", "") == "in_segments"]
exec(compile(ast.Module(found, []), sys.argv[1], "exec"))

for blocks in (1, 2, 5, 9):
    torch.manual_seed(0)
    plain = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(blocks)])
    segments = copy.deepcopy(plain)
    in_segments(segments)
    averaged = copy.deepcopy(segments)
    results = []
    for model in (plain, segments, averaged):
        x = torch.ones(4, 8, requires_grad=True)
        y = model(x)
        y.square().sum().backward()
        results.append([y, x.grad, *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(*pair) for other in results[1:] for pair in zip(results[0], other)), blocks
    for parameter in averaged.parameters():
        parameter.data.zero_()
    assert averaged(x).abs().max() == 0 and segments(x).abs().max() > 0, "a copy computes with its own weights"
print("agreed")
