"""A replay buffer that takes most of what the card has free, beside a policy that is trained from it."""

import torch
from torch import nn

policy = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 8)).cuda()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
free, _ = torch.cuda.mem_get_info()
states = torch.empty(int(0.8 * free) // (128 * 4), 128, device="cuda")
for step in range(3):
    batch = states[step * 4096 : (step + 1) * 4096]
    policy(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
