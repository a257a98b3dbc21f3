"""A GPT of plain PyTorch sharded with FSDP2 (one rank), bf16 parameters and fp32 reduction, blocks checkpointed."""

import os

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512", "RANK": "0", "WORLD_SIZE": "1"}
torch.cuda.set_device(0)
torch.distributed.init_process_group("nccl")


class Model(torch.nn.Module):
    def __init__(self, width=1536, layers=12, words=32000):
        super().__init__()
        self.embed = torch.nn.Embedding(words, width)
        layer = lambda: torch.nn.TransformerEncoderLayer(width, 12, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = torch.nn.ModuleList(checkpoint_wrapper(layer()) for _ in range(layers))
        self.head = torch.nn.Linear(width, words, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


model, policy = Model().cuda(), MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model.blocks:
    fully_shard(block, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(12):
    ids = torch.randint(32000, (8, 1024), device="cuda")
    loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
