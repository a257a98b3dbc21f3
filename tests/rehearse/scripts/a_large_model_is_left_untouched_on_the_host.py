
import resource, torch
model = torch.nn.Linear(16384, 16384).to(torch.bfloat16).cuda()
model(torch.randn(8, 16384, device='cuda', dtype=torch.bfloat16)).sum().backward()
print('resident', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
