"""Steps that no torch.optim.Optimizer makes, on a card that is older than PyTorch's code; what comes to the host there is not resident."""
import torch
from torch import nn


def resident():
    with open("/proc/self/status") as status:
        return int(status.read().split("VmRSS:")[1].split()[0]) << 10


before, gib = resident(), 1 << 30
on_card = torch.empty(3 * gib, dtype=torch.uint8, device="cuda")
on_host, pinned = on_card.cpu(), torch.empty(gib, dtype=torch.uint8, pin_memory=True)
pinned.copy_(on_card[:gib], non_blocking=True)
written = torch.full((64 << 20,), 7, dtype=torch.uint8)
written.copy_(on_card[: 64 << 20])
assert on_host[:: 1 << 20].sum() == pinned[:: 1 << 20].sum() == written.sum() == 0
assert resident() - before < gib, resident() - before
del on_card, on_host, pinned, written

model = nn.Linear(1024, 10_000).cuda()
while True:
    # CUB sorts many columns, with what it chooses for PyTorch's code.
    loss = model(torch.randn(64, 1024, device="cuda")).topk(100).values.sum()
    # As Megatron's schedules call autograd's engine.
    torch.autograd.Variable._execution_engine.run_backward((loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
