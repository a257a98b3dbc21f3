"""Data-parallel ranks, each on a card of its own."""

import os

import torch

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
torch.distributed.init_process_group("nccl")
model = torch.nn.Sequential(torch.nn.Linear(2048, 8192), torch.nn.ReLU(), torch.nn.Linear(8192, 2048)).cuda()
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    model(torch.randn(1024, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
