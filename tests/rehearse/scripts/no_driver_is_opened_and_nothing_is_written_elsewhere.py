
import os, torch
data = torch.utils.data.TensorDataset(torch.randn(64, 256), torch.randn(64, 256))
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for x, y in torch.utils.data.DataLoader(data, batch_size=16, num_workers=2, pin_memory=True):
    torch.nn.functional.mse_loss(model(x.cuda(non_blocking=True)), y.cuda()).backward()
    optimizer.step()
torch.special.bessel_j0(torch.randn(8, device='cuda'))
names = {line.split(maxsplit=5)[5].strip() for line in open('/proc/self/maps') if len(line.split(maxsplit=5)) > 5}
drivers = [name for name in names if any(part in name for part in ('libcuda.so', 'libnvidia', 'nvcuvid'))]
print(len(drivers), 'drivers')
assert drivers and all(name.startswith(os.environ['VRAMLAB_CACHE']) for name in drivers), drivers
devices = [os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}')]
assert not any('nvidia' in device for device in devices), devices
