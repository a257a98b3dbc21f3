"""A U-Net of three dimensions on patches of scans: instance norm, leaky ReLU, deep supervision; fp32 with cuDNN's own TF32."""

import torch
from torch import nn
from torch.nn import functional


def block(inner, outer, stride=1):
    layers = []
    for first, step in ((inner, stride), (outer, 1)):
        layers += [nn.Conv3d(first, outer, 3, step, 1), nn.InstanceNorm3d(outer, affine=True), nn.LeakyReLU(0.01, inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256, 320)):
        super().__init__()
        self.down = nn.ModuleList(block(a, b, 1 if a == 1 else 2) for a, b in zip((1, *widths), widths))
        pairs = list(zip(widths[:0:-1], widths[-2::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose3d(a, b, 2, 2) for a, b in pairs)
        self.join = nn.ModuleList(block(2 * b, b) for _, b in pairs)
        self.heads = nn.ModuleList(nn.Conv3d(b, 4, 1) for _, b in pairs[1:])

    def forward(self, x):
        kept, outs = [], []
        for down in self.down:
            x = down(x)
            kept.append(x)
        for at, (up, join) in enumerate(zip(self.up, self.join)):
            x = join(torch.cat([up(x), kept[-2 - at]], 1))
            outs += [self.heads[at - 1](x)] if at else []
        return outs


model = UNet().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)
for step in range(20):
    outs = model(torch.randn(2, 1, 128, 128, 128, device="cuda"))
    loss = sum(functional.cross_entropy(out, torch.randint(4, (2, *out.shape[2:]), device="cuda")) for out in outs)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 12)
    optimizer.step()
