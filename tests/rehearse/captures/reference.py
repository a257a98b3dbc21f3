"""Two models of one class: a policy, and its reference."""

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2048, 2048)

    def forward(self, x):
        return self.layer(x).relu()


class Trainer:
    def __init__(self):
        self.policy, self.reference = Net().cuda(), Net().cuda().requires_grad_(False)


trainer = Trainer()
optimizer = torch.optim.Adam(trainer.policy.parameters())
for _ in range(4):
    x = torch.randn(64, 2048, device="cuda")
    with torch.no_grad():
        wanted = trainer.reference(x)
    (trainer.policy(x) - wanted).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
