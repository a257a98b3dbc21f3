import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
inputs = [torch.randn(4, 16, 1024, 64, device='cuda', dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
    result = torch.nn.functional.scaled_dot_product_attention(*inputs)
gradient = torch.ones_like(result)
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
result.backward(gradient)
print('backward', torch.cuda.max_memory_allocated() - before)
