"""GraphSAGE of PyTorch Geometric over one graph."""

import torch
from torch_geometric.nn import SAGEConv

x, edges = torch.randn(50000, 256, device="cuda"), torch.randint(50000, (2, 800000), device="cuda")
labels = torch.randint(40, (50000,), device="cuda")
layers = torch.nn.ModuleList([SAGEConv(256, 256), SAGEConv(256, 256), SAGEConv(256, 40)]).cuda()
optimizer = torch.optim.Adam(layers.parameters(), lr=0.01)
for step in range(30):
    h = x
    for layer in layers[:-1]:
        h = torch.nn.functional.dropout(layer(h, edges).relu(), 0.5)
    loss = torch.nn.functional.cross_entropy(layers[-1](h, edges), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
