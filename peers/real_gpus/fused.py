"""Peaks of Liger-Kernel's own rows in its benchmark of a fused head and cross-entropy (A100, version 0.4.2), run again; prints each beside the recorded one.

    pip install --no-deps liger-kernel==0.4.2
    vramlab rehearse --gpu a100-80g --steps all -- python peers/real_gpus/fused.py

They are the first of their process, which has the heads of both sides.
"""

import sys

import torch
from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

WIDTH, VOCABULARY = 4096, 128256
# MiB by tokens.
RECORDED = {4096: 4245.5478515625, 8192: 4466.9697265625, 16384: 4910.4384765625, 32768: 5794.6259765625}


def peak(call):
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated()


def row(tokens):
    heads = [torch.nn.Linear(WIDTH, VOCABULARY, bias=False, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    x = torch.randn(tokens, WIDTH, requires_grad=True, device="cuda", dtype=torch.bfloat16)
    target = torch.randint(VOCABULARY, (tokens,), device="cuda")
    # The benchmark takes the median of ten.
    return [peak(lambda: LigerFusedLinearCrossEntropyFunction.apply(x, heads[1].weight, target).backward()) for _ in range(3)][-1]


off = {tokens: row(tokens) / 2**20 / recorded - 1 for tokens, recorded in RECORDED.items()}
print(*(f"{tokens} tokens: {share:+.2%}" for tokens, share in off.items()), sep="\n")
sys.exit(any(abs(share) > 0.01 for share in off.values()))
