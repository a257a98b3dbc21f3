"""One rank of a GPT as Megatron-LM trains it: tensor parallel layers, 1F1B over pipeline stages, data parallel gradients that are reduced after the backward
passes, Adam with fp32 weights. Its own few lines in place of the framework's, for times that others published of it.

    vramlab rehearse --gpu a100-40g --world-size 8 --rank all -- python records/layouts/gpt.py --tp 2 --pp 2 --hidden 2048 --layers 24 --micro 4 --batch 16
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
for name, usual in dict(tp=1, pp=1, hidden=1024, layers=24, heads=16, length=1024, micro=1, batch=8, vocab=51200, recompute=0).items():
    parser.add_argument(f"--{name}", type=int, default=usual)
parser.add_argument("--schedule", default="1f1b")
o = parser.parse_args()
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
dp = dist.get_world_size() // o.tp // o.pp
mesh = init_device_mesh("cuda", (o.pp, dp, o.tp), mesh_dim_names=("pp", "dp", "tp"))
stage = mesh["pp"].get_local_rank()
group = mesh["tp"].get_group()
first, last = stage == 0, stage == o.pp - 1
micro_batches = max(1, o.batch // dp // o.micro)


class Enter(torch.autograd.Function):
    """Of what every rank of the group has: gradients are summed over it."""

    @staticmethod
    def forward(_, x):
        return x

    @staticmethod
    def backward(_, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=group)
        return gradient


class Leave(torch.autograd.Function):
    """Of what each has a part of: the sum."""

    @staticmethod
    def forward(_, x):
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(_, gradient):
        return gradient


def enter(x):
    return Enter.apply(x) if o.tp > 1 else x


def leave(x):
    return Leave.apply(x) if o.tp > 1 else x


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        own = o.hidden // o.tp
        self.norms = nn.ModuleList(nn.LayerNorm(o.hidden) for _ in range(2))
        self.qkv, self.out = nn.Linear(o.hidden, 3 * own), nn.Linear(own, o.hidden)
        self.up, self.down = nn.Linear(o.hidden, 4 * own), nn.Linear(4 * own, o.hidden)

    def forward(self, x):
        b, s, _ = x.shape
        heads = max(1, o.heads // o.tp)
        q, k, v = self.qkv(enter(self.norms[0](x))).view(b, s, heads, -1).transpose(1, 2).chunk(3, -1)
        # Attention as it was before FlashAttention: scores are written out, and dropped in part. Megatron's kernel of softmax masks, too, in one pass.
        q, k = q.reshape(b * heads, s, -1), k.reshape(b * heads, s, -1)
        scores = torch.baddbmm(q.new_empty(1).expand(b * heads, s, s), q, k.transpose(-1, -2), beta=0, alpha=q.shape[-1] ** -0.5)
        scores = F.dropout(F.softmax(scores, -1), 0.1).view(b, heads, s, s)
        x = x + F.dropout(leave(self.out((scores @ v).transpose(1, 2).reshape(b, s, -1))), 0.1)
        return x + F.dropout(leave(self.down(F.gelu(self.up(enter(self.norms[1](x)))))), 0.1)


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(o.vocab // o.tp, o.hidden) if first else None
        self.places = nn.Embedding(o.length, o.hidden) if first else None
        self.blocks = nn.ModuleList(Block() for _ in range(o.layers // o.pp))
        self.norm = nn.LayerNorm(o.hidden) if last else None
        self.head = nn.Linear(o.hidden, o.vocab // o.tp, bias=False) if last else None

    def forward(self, x):
        if first:
            x = F.dropout(leave(self.embed(x % (o.vocab // o.tp))) + self.places.weight[: x.shape[1]], 0.1)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if o.recompute else block(x)
        return self.head(enter(self.norm(x))) if last else x


def loss_of(logits, target):
    """Over a vocabulary of which each rank has a part."""
    logits = logits.float()
    most = logits.detach().amax(-1)
    if o.tp > 1:
        dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    logits = logits - most.unsqueeze(-1)
    total = leave(logits.exp().sum(-1))
    own = leave(logits.gather(-1, (target % (o.vocab // o.tp)).unsqueeze(-1)).squeeze(-1))
    return (total.log() - own).mean()


device = torch.device("cuda", torch.cuda.current_device())
with device:
    model = Part().half()
parameters = list(model.parameters())
# Gradients of a rank lie in one buffer, and so do the optimizer's fp32 weights.
gradients = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.half, device=device)
begin = 0
for p in parameters:
    p.grad = gradients[begin : begin + p.numel()].view_as(p)
    begin += p.numel()
weights = [p.detach().float().requires_grad_() for p in parameters]
optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
if o.pp > 1:
    hidden = torch.zeros(o.micro, o.length, o.hidden, dtype=torch.half, device=device)
    ids = torch.zeros(o.micro, o.length, dtype=torch.long, device=device)
    out = torch.zeros(o.micro, o.length, o.vocab // o.tp, dtype=torch.half, device=device) if last else hidden
    part = PipelineStage(model, stage, o.pp, device, group=mesh["pp"].get_group(), input_args=ids if first else hidden, output_args=out)
    # PyTorch's 1F1B takes no fewer micro-batches than there are stages.
    kind = ScheduleGPipe if o.schedule == "gpipe" or micro_batches < o.pp else Schedule1F1B
    schedule = kind(part, n_microbatches=micro_batches, loss_fn=loss_of, scale_grads=False)
for step in range(3):
    gradients.zero_()
    batch = torch.randint(o.vocab, (o.micro * micro_batches, o.length), device=device)
    if o.pp > 1:
        schedule.step(*([batch] if first else []), **(dict(target=batch, losses=[]) if last else {}))
    else:
        for ids in batch.split(o.micro):
            loss_of(model(ids), ids).backward()
    if dp > 1:
        dist.all_reduce(gradients, group=mesh["dp"].get_group())
        gradients.div_(dp)
    # Megatron looks for infinities, clips, and copies weights back.
    norm = torch.nn.utils.get_total_norm([gradients])
    for weight, p in zip(weights, parameters):
        weight.grad = p.grad.float()
    torch._foreach_mul_([weight.grad for weight in weights], 1.0 / (norm + 1e-6))
    optimizer.step()
    torch._foreach_copy_([p.data for p in parameters], weights)
    for weight in weights:
        weight.grad = None
