"""`lora` on the CPU: what it adds changes nothing before training, and merged into the weights gives what it gave beside them."""

import ast
import sys
from pathlib import Path

import torch
from torch import nn

source = Path(sys.argv[1]).read_text()
(function,) = (node for node in ast.parse(source).body if getattr(node, "name", "") == "add_lora")
exec(ast.get_source_segment(source, function))

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(3)))
x = torch.randn(5, 16)
plain = model(x)
add_lora(model, model)  # noqa: F821
assert torch.equal(model(x), plain)

frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(3):
    model(x).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
assert len(optimizer.state) == 12 == len(frozen)
assert all(torch.equal(p, frozen[name]) for name, p in model.named_parameters() if name in frozen)

beside = model(x)
assert not torch.allclose(beside, plain)
with torch.no_grad():
    for layer in (layer for block in model for layer in block if type(layer) is nn.Linear):
        layer.weight += 2 * layer.lora_b @ layer.lora_a
        layer.lora_b.zero_()
torch.testing.assert_close(model(x), beside, rtol=1e-5, atol=1e-6)
print("merged and unmerged agree")
