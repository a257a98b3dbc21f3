
import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).cuda()
torch._inductor.config.coordinate_descent_tuning = True
replayed = torch.compile(model, mode='reduce-overhead')
with torch.no_grad():
    for _ in range(4):
        replayed(torch.randn(512, 256, device='cuda'))
# Each block by itself, more of them than Dynamo compiles a function anew: it sees nothing of the hooks.
class Block(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.layer_norm(x.sin(), (256,))
for block in [Block() for _ in range(10)]:
    torch.compile(block, fullgraph=True)(torch.randn(512, 256, device='cuda'))
# A graph for each bucket.
torch.distributed.init_process_group('nccl')
parts = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(3))).cuda()
parallel = torch.nn.parallel.DistributedDataParallel(parts, bucket_cap_mb=1)
torch.compile(parallel)(torch.randn(8192, 1024, device='cuda')).sum().backward()
print('peak', torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
from torch._inductor.graph import GraphLowering
def codegen(self):
    raise RuntimeError('no code for it')
GraphLowering.codegen = codegen
broken = torch.compile(lambda x: x.sin() + 1)
broken(torch.randn(8, device='cuda'))
