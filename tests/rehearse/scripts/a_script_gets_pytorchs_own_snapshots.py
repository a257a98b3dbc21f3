
import torch
x = torch.empty(1 << 25, device='cuda')
assert [s['total_size'] for s in torch.cuda.memory._snapshot()['segments']] == [1 << 27]
torch.cuda.memory._record_memory_history()
y = torch.empty(1 << 24, device='cuda')
trace = torch.cuda.memory._snapshot()['device_traces'][0]
assert trace[0]['action'] == 'segment_alloc', ('from before', trace[0])
made = [e for e in trace if e['action'] == 'alloc']
assert len(made) == 1 and made[0]['size'] == 1 << 26 and made[0]['frames'][0]['filename'].endswith('train.py'), made
torch.cuda.memory._record_memory_history(enabled=None)
z = torch.empty(1 << 24, device='cuda')
