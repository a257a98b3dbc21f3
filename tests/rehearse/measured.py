"""The meter of `--what-if --device cuda` beside PyTorch's own, in a script that trains where it is asked to; it runs on a simulated GPU."""

import sys

import torch
from vramlab_rehearsal import measuring

told = []
measuring.note = lambda **line: told.append(line)
meter = measuring.Meter(torch, lambda steps: None)
meter.wanted = None
encoder, decoder = (torch.nn.Sequential(*[torch.nn.Linear(512, 512)] * 4) for _ in range(2))
encoder, decoder = encoder.cuda(), decoder.cuda()
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], 1e-3)
trains = sys.argv[1] == "trains"
if sys.argv[1] == "compiled":
    # A graph break would end it: nothing of the meter's is in the way of a compiler.
    score = torch._dynamo.optimize(lambda graph, inputs: graph.forward, nopython=True)(lambda x: decoder(x).sum())
    assert score(torch.randn(64, 512, device="cuda")).shape == ()
    meter.passes.clear()
for batch in range(5):
    scores = decoder(encoder(torch.randn(64, 512, device="cuda")))
    if trains:
        scores.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
meter.never_trained()
gpu, *meters = told
assert gpu["memory"] > 10 << 30 and meters, told
last = meters[-1]["meters"]
assert len(meters) == (5 if trains else 1) and last["trains"] is trains, meters
assert (last["peak_allocated"], last["peak_reserved"]) == (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
assert last["seconds"] > 0
# Of outermost modules alone, and of none once a step was made.
assert len(meter.passes) == (2 if trains else 10), len(meter.passes)
print("measured as it should be")
