
import copy, torch
from torch import nn
model = nn.Linear(1024, 1024, bias=False)
module, tensor = copy.deepcopy(model).requires_grad_(False).cuda(), model.weight.detach().clone().cuda()
model, x = model.cuda(), torch.randn(512, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        module.weight.data.lerp_(model.weight, 0.1)
        tensor.lerp_(model.weight, 0.1)
