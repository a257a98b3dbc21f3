"""A benchmark that prints its own rate."""

import torch

a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
begin.record()
for _ in range(10):
    a @ a
end.record()
torch.cuda.synchronize()
print(f"{10 * 2 * 8192**3 / begin.elapsed_time(end) / 1e9:.0f} TFLOP/s")
