"""torchvision's ResNet-50 under DistributedDataParallel over NCCL, one rank, bf16 autocast and channels last."""

import os

import torch
import torchvision

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}
torch.cuda.set_device(0)
torch.distributed.init_process_group("nccl")
model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0], gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(20):
    images = torch.randn(96, 3, 224, 224, device="cuda").contiguous(memory_format=torch.channels_last)
    with torch.autocast("cuda", torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(images), torch.randint(1000, (96,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.distributed.destroy_process_group()
