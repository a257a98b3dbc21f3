"""fp16 with a GradScaler, gradients that are accumulated and clipped, and a moving average of the weights."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

model = nn.Sequential(*[nn.Sequential(nn.LayerNorm(768), nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768)) for _ in range(12)]).cuda()
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-4), torch.amp.GradScaler()
for step in range(3):
    for _ in range(4):
        with torch.autocast("cuda", torch.float16):
            loss = model(torch.randn(4096, 768, device="cuda")).square().mean() / 4
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    average.update_parameters(model)
