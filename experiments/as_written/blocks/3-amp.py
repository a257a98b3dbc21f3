import torch
from torch.cuda.amp import autocast, GradScaler
model, optimizer = MyModel().cuda(), torch.optim.Adam(...)
scaler = GradScaler()
for data, target in loader:
    data, target = data.cuda(), target.cuda()
    optimizer.zero_grad()
    with autocast():
        output = model(data)
        loss = criterion(output, target)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
