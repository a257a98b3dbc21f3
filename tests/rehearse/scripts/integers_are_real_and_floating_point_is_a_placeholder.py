
import torch
ids = torch.tensor([[1, 2, 3, 0, 0], [4, 5, 0, 0, 0]]).cuda()
mask = ids != 0
assert mask.sum().item() == 5 and ids[mask].tolist() == [1, 2, 3, 4, 5] and mask.nonzero().shape == (5, 2)
lengths = mask.sum(-1)
assert torch.repeat_interleave(torch.arange(2, device='cuda'), lengths).tolist() == [0, 0, 0, 1, 1]
x = torch.empty(3, dtype=torch.long, device='cuda'); x[0] = 5; x[1:] = torch.tensor([6, 7]).cuda(); x += 1
assert x.cpu().tolist() == [6, 7, 8] and x.prod().item() == 336
w = torch.randn(512, 512, device='cuda') @ torch.randn(512, 512, device='cuda')
assert 1 > w.sum().item() > w.mean().cpu() > float(w.max()) > 0 and w.min() < 1 and torch.isfinite(w).all() and not torch.isnan(w).any() and torch.allclose(w, w + 1)
assert w[w > 0].shape == (512 * 512,) and w.argmax().item() == 0
assert (w >= 0).all() and (w >= 0).all(-1).all()
assert torch.bincount(w.topk(2).indices.flatten(), minlength=512).max() == 2
# How many a mask selects is as many as are selected by it, in whatever way it is counted; and no more than are of one kind.
_, inverse, counts = w[:, 0].unique(return_inverse=True, return_counts=True)
for j in range(2):
    found = w[:, 0] == j
    for n in (found.sum(), found.long().sum(), found.float().sum().int(), torch.count_nonzero(found), found.nonzero().shape[0], found.sum(0)):
        out = torch.zeros(2, counts.max(), 5, device='cuda')
        if n:
            out[j, :n] = w[found, 1:6]
assert counts.sum() == 512 and len(w[:, 0].split(counts.tolist())) == 512
assert (w > 0).sum(-1).max() == 512 and torch.bincount(w[0].long(), minlength=4)[0] == 512
part = torch.randn(5, 2048, device='cuda', requires_grad=True)
torch.randn(2, 5, 2048, device='cuda').masked_scatter(mask.unsqueeze(-1), part).square().sum().backward()
assert part.grad.shape == (5, 2048)
optimizer = torch.optim.LBFGS([part], max_iter=20)
def closure():
    optimizer.zero_grad(); loss = part.square().sum(); loss.backward(); return loss
optimizer.step(closure)
assert len(optimizer.state[part]['old_dirs']) == 19
