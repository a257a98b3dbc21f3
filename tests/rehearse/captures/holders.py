"""What a variable's name is said of, and what a copy is called."""

import copy
import sys

import torch
from torch import nn

what = sys.argv[1]
blocks = nn.ModuleList([nn.Linear(1024, 1024, bias=False) for _ in range(8)]).cuda()
x = torch.randn(64, 1024, device="cuda")


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = blocks, copy.deepcopy(blocks).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            for of, to in zip(self.query.parameters(), self.key.parameters()):
                to.data = to.data * 0.9 + of.data * 0.1
        return self.query[0](x).square().mean()


def through(x):
    for block in blocks:
        x = block(x)
    return x


if what == "autocast":
    with torch.no_grad(), torch.autocast("cuda", torch.float16):
        for block in blocks:
            x = block(x)
elif what == "scripted":
    scripted = torch.jit.script(blocks[0])
    with torch.no_grad():
        for _ in range(3):
            scripted(x)
elif what == "batch":
    with torch.no_grad():
        for _ in range(3):
            kept = {"front.image": torch.randn(2048, 1024, device="cuda")}
            x = through(kept["front.image"])
elif what == "graphs":
    kept = []
    for _ in range(6):
        x = torch.randn(4096, 1024, device="cuda")
        kept.append(blocks[0](blocks[1](x).relu()))
elif what == "half":
    blocks.half()
    with torch.no_grad():
        for block in blocks:
            block(x.half())
elif what == "momentum":
    both = Both()
    optimizer = torch.optim.SGD(both.query.parameters(), 0.1)
    for _ in range(3):
        both(x).backward()
        optimizer.step()
        optimizer.zero_grad()
elif what == "history":
    optimizer = torch.optim.LBFGS(blocks[0].parameters(), max_iter=2, history_size=40)

    def loss():
        optimizer.zero_grad()
        lost = blocks[0](x).square().mean()
        lost.backward()
        return lost

    for _ in range(6):
        optimizer.step(loss)
elif what == "create_graph":
    for _ in range(6):
        blocks[0](x).norm().backward(create_graph=True)
else:
    optimizer = torch.optim.SGD(blocks.parameters(), 0.1, momentum=0.9)
    for step in range(3):
        through(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            states = blocks.state_dict()
            best = copy.deepcopy([states, optimizer.state_dict()]) if what == "deepcopy" else {name: each.clone() for name, each in states.items()}
