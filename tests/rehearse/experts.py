"""Experts as Transformers' eager models and torchtitan choose them: each gets its share, whatever finds its tokens."""
import torch
from torch import nn
from torch.nn import functional as F

TOKENS, EXPERTS, EACH, WIDTH = 4096, 128, 8, 64
router = nn.Linear(WIDTH, EXPERTS).cuda()
experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS)).cuda()
optimizer = torch.optim.AdamW([*router.parameters(), *experts.parameters()])
for step in range(5):
    x = torch.randn(TOKENS, WIDTH, device="cuda")
    weights, chosen = router(x).softmax(-1).topk(EACH)
    # One hot: 32 MiB of whole numbers.
    mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
    out = torch.zeros_like(x)
    for expert in range(EXPERTS):
        place, token = torch.where(mask[expert])
        assert len(token) == TOKENS * EACH // EXPERTS, (expert, len(token))
        out.index_add_(0, token, experts[expert](x[token]) * weights[token, place, None])
    # Counts by a histogram of a cast, and of whole numbers, as split sizes.
    flat = chosen.flatten()
    for counts in (torch.histc(flat.float(), EXPERTS, 0, EXPERTS).int(), torch.histc(flat, EXPERTS, 0, EXPERTS), flat.bincount(minlength=EXPERTS)):
        assert counts.tolist() == [TOKENS * EACH // EXPERTS] * EXPERTS, counts
    parts = x[flat.argsort() // EACH].split(counts.tolist())
    # Of those that take the best alone, too.
    assert (router(x).argmax(-1) == 1).nonzero().numel() == TOKENS // EXPERTS
    (out.sum() + sum(part.sum() for part in parts)).backward()
    optimizer.step()
    optimizer.zero_grad()
