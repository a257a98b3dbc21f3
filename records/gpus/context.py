"""What a process takes of the card outside of PyTorch's allocator, after each thing that may take more: used (nvidia-smi) less reserved, less what was used before.

    context.py    on a GPU that nobody else uses; a row for each: what, MiB outside of the allocator, MiB reserved
"""

import os
import subprocess

import torch
from torch import nn


def used():
    return int(subprocess.check_output(["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]))


before = used()


def tell(what):
    torch.cuda.synchronize()
    reserved = torch.cuda.memory_reserved()
    print(f"{what},{used() - before - reserved / 2**20:.0f},{reserved / 2**20:.0f}", flush=True)


print("after,outside,reserved")
torch.cuda.init()
torch.cuda.mem_get_info()
tell("context")
x = torch.randn(1024, 1024, device="cuda", requires_grad=True)
tell("random numbers")
(x @ x).sum().backward()
tell("fp32 product and its backward pass")
with torch.autocast("cuda", torch.bfloat16):
    (x @ x).sum().backward()
tell("bf16 product")
layer = nn.Linear(1024, 1024).cuda()
with torch.autocast("cuda", torch.bfloat16):
    layer(x).sum().backward()
tell("product with a bias (cuBLASLt)")
images = torch.randn(8, 64, 56, 56, device="cuda", requires_grad=True)
convolution = nn.Conv2d(64, 64, 3, padding=1).cuda()
convolution(images).sum().backward()
tell("convolution")
with torch.autocast("cuda", torch.float16):
    convolution(images).sum().backward()
tell("fp16 convolution")
q = torch.randn(4, 16, 1024, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
tell("attention")
rnn = nn.LSTM(256, 256).cuda()
rnn(torch.randn(16, 8, 256, device="cuda"))[0].sum().backward()
tell("LSTM of cuDNN")
torch.linalg.svd(torch.randn(256, 256, device="cuda"))
tell("cuSOLVER")
torch.fft.fft(torch.randn(1 << 20, device="cuda"))
tell("cuFFT")
torch.optim.AdamW(layer.parameters()).step()
tell("optimizer")
graph = torch.cuda.CUDAGraph()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    layer(x)
with torch.cuda.graph(graph):
    layer(x)
graph.replay()
tell("CUDA graph")
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
torch.distributed.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
torch.distributed.all_reduce(torch.ones(1 << 20, device="cuda"))
tell("NCCL, one rank")
