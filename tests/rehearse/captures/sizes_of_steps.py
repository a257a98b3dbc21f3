"""Steps whose sizes come from a list, by an index or one after the other; some lists have larger ones further on."""

import sys

import torch

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def go(n):
    model(torch.randn(n, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


if sys.argv[1] == "texts":
    texts = ["ab"] * 8 + ["abcd"]
    for i in range(0, 9, 2):
        go(max(map(len, texts[i : i + 2])))
elif sys.argv[1] == "index":
    sizes = [8, 8, 8, 8, 64] if "larger" in sys.argv else [64, 8, 8, 8, 8]
    for i in range(5):
        go(sizes[i])
else:
    sizes = [4, 5, 6, 70] if "larger" in sys.argv else [9, 8, 7, 6]
    for n in sizes:
        go(n)
