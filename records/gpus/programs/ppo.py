"""PPO on pictures: rollouts without gradients, then epochs of small batches over what they gave."""

import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
                      nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 7)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=2.5e-4, eps=1e-5)
for round in range(4):
    screens, chosen, before, gains = [], [], [], []
    with torch.no_grad():
        for tick in range(128):
            screen = torch.randint(256, (64, 4, 84, 84), device="cuda", dtype=torch.uint8)
            out = model(screen / 255.0)
            choice = torch.distributions.Categorical(logits=out[:, :6])
            action = choice.sample()
            screens.append(screen), chosen.append(action), before.append(choice.log_prob(action)), gains.append(torch.randn(64, device="cuda") - out[:, 6])
    screens, chosen, before, gains = map(torch.cat, (screens, chosen, before, gains))
    for part in torch.randperm(8192, device="cuda").split(2048):
        out = model(screens[part] / 255.0)
        choice = torch.distributions.Categorical(logits=out[:, :6])
        ratio = (choice.log_prob(chosen[part]) - before[part]).exp()
        policy = -torch.min(ratio * gains[part], ratio.clamp(0.9, 1.1) * gains[part]).mean()
        loss = policy + 0.5 * (out[:, 6] - gains[part]).square().mean() - 0.01 * choice.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
