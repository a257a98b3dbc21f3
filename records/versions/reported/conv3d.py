"""conv3d.py DTYPE: pytorch#166643: a hundred 3D convolutions of one input of 96 x 6 x 626 x 626, with the sizes of the thread's script."""
import sys

import torch
import torch.nn.functional as F


def made(*shape):
    return torch.randn(shape, device="cuda").to(getattr(torch, sys.argv[1]))


x, weight, bias = made(1, 96, 6, 626, 626), made(96, 96, 3, 3, 3), made(96)
before = torch.cuda.max_memory_allocated()
for step in range(100):
    y = F.conv3d(x, weight, bias)
print(f"{torch.__version__}: {before / 2**30:.4f} GiB before, {torch.cuda.max_memory_allocated() / 2**30:.4f} GiB after")
