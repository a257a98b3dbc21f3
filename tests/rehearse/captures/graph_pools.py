"""Inference with a CUDA graph for each batch size, each of which has a memory pool of its own."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)) for _ in range(8)]).half().cuda().eval()
captured = {}
with torch.inference_mode():
    for batch in (8192, 4096, 2048, 1024):
        x = torch.zeros(batch, 2048, dtype=torch.half, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        captured[batch] = graph, x, y
    for graph, x, y in captured.values():
        graph.replay()
