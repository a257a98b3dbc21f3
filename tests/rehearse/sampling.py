"""A detector's training: kernels that are not PyTorch's keep boxes, and a sampler chooses of those."""
import ctypes
import sys

import torch
from torch import nn

boxes = torch.ones(2000, dtype=torch.bool, device="cuda")
# As an extension's own operator makes its result: zeros, which its kernel writes to.
keep = torch.zeros(2000, dtype=torch.bool, device="cuda")
assert boxes[keep].shape == (0,)
ctypes.PyDLL(sys.argv[1]).strangers_kernel(ctypes.c_void_p(keep.data_ptr()))
assert boxes[keep].shape == (2000,), boxes[keep].shape

# Zeros of many are kept without memory for them, until some are written.
counts = torch.zeros(1 << 20, dtype=torch.int64, device="cuda")
counts[5] = 3
assert counts.sum().item() == 3 and counts[6].item() == 0
counts.zero_()
assert counts.sum().item() == 0

model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
labels_of_truth = torch.tensor([3, 5]).cuda()
for step in range(5):
    # torchvision's matcher and sampler of 512 proposals, a quarter of them objects.
    overlaps = torch.rand(2, 2000, device="cuda") @ torch.eye(2000, device="cuda")
    best, matched = overlaps.max(dim=0)
    below = best < 0.5
    matched[below] = -1
    labels = labels_of_truth[matched.clamp(min=0)]
    labels[matched == -1] = 0
    positive, negative = torch.where(labels >= 1)[0], torch.where(labels == 0)[0]
    positive = positive[torch.randperm(positive.numel(), device="cuda")[:128]]
    negative = negative[torch.randperm(negative.numel(), device="cuda")[: 512 - positive.numel()]]
    sampled = torch.zeros(2000, dtype=torch.uint8, device="cuda")
    sampled[positive] = 1
    sampled[negative] = 1
    chosen = torch.where(sampled)[0]
    assert chosen.shape == (512,), chosen.shape
    assert torch.where(labels[chosen] > 0)[0].shape == (128,)
    # Labels of many anchors are of floating point, and are known all the same.
    many = (torch.arange(100_000, device="cuda") % 10 == 0).to(torch.float32)
    many[torch.where(many == 0)[0]] = -1.0
    assert torch.where(many >= 1)[0].numel() == 10_000
    model(torch.randn(512, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
