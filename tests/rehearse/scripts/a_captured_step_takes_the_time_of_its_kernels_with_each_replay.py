
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x = torch.randn(8192, 1024, device='cuda')
def run():
    model(x).square().mean().backward()
if 'captured' in sys.argv:
    with torch.cuda.stream(torch.cuda.Stream()):
        run()
    optimizer.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
for step in range(3):
    if 'captured' in sys.argv:
        graph.replay()
    else:
        optimizer.zero_grad()
        run()
    optimizer.step()
