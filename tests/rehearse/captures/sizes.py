"""Sizes that a GPU would tell: how many entries of a sparse tensor have a place of their own, and how much of a batch is padding."""

import torch
from torch import nn

places = torch.randint(1000, (2, 4 << 20), device="cuda")
whole = torch.sparse_coo_tensor(places, torch.ones(4 << 20, device="cuda"), (1000, 1000), check_invariants=False).coalesce()
assert whole._nnz() == 4 << 20 and whole.is_coalesced() and whole.coalesce() is whole
del places
assert torch.cuda.memory_allocated() == (2 * 8 + 4) * (4 << 20)
table = nn.Embedding(1000, 64, sparse=True).cuda()
table(torch.arange(512, device="cuda")).sum().backward()
assert table.weight.grad.coalesce()._nnz() == 512
weights = torch.rand(512, device="cuda", requires_grad=True)
graph = torch.sparse_coo_tensor(torch.zeros(2, 512, dtype=torch.long, device="cuda"), weights, (8, 8), check_invariants=False)
torch.sparse.mm(graph.coalesce(), torch.rand(8, 4, device="cuda")).sum().backward()
assert graph.coalesce()._nnz() == 512 and weights.grad.shape == (512,)
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, batch_first=True), 2).cuda().eval()
with torch.inference_mode():
    x, rows = torch.randn(8, 100, 64, device="cuda"), torch.arange(100, device="cuda")
    assert encoder(x, src_key_padding_mask=rows[None] >= rows[-8:, None]).shape == x.shape
# Of the host's random numbers, which nobody has set a seed for.
torch.empty(torch.randint(1 << 28, 1 << 30, ()).item(), device="cuda")
