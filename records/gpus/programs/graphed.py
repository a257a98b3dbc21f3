"""A training step captured in a CUDA graph and replayed, as PyTorch's notes show it."""

import torch

model = torch.nn.Sequential(*(torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True) for _ in range(6))).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, capturable=True)
inputs, targets = torch.randn(32, 256, 512, device="cuda"), torch.randn(32, 256, 512, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for warm in range(3):
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
for step in range(20):
    inputs.copy_(torch.randn(32, 256, 512, device="cuda"))
    graph.replay()
