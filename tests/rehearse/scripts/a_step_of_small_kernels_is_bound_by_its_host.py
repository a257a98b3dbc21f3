
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(200)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
x = torch.randn(4, 8, device='cuda')
while True:
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
