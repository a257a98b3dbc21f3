"""Two processes that train on one card at the same time."""

import torch
import torch.multiprocessing


def train(rank):
    model = torch.nn.Linear(4096, 4096).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        model(torch.randn(16384, 4096, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, nprocs=2)
