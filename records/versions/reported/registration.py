"""pytorch#166790: a U-Net for registration in the shape of VoxelMorph's, 16 to 32 channels, on two volumes of 256 x 256 x 256 in half precision.

The thread's script is not public. Its two volumes take 128 MB, so each has 256^3 voxels, and 27 GiB are the columns of 32 channels of one.
"""
import torch
from torch import nn


def block(inputs, outputs, stride=1):
    return nn.Sequential(nn.Conv3d(inputs, outputs, 3, stride, 1), nn.LeakyReLU(0.2))


class Registration(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(block(inputs, outputs, 2) for inputs, outputs in [(2, 16), (16, 32), (32, 32), (32, 32)])
        self.up = nn.ModuleList(block(inputs, 32) for inputs in [32, 64, 64, 48])
        self.end = nn.Sequential(block(32, 16), block(16, 16), nn.Conv3d(16, 3, 3, padding=1))
        self.upsample = nn.Upsample(scale_factor=2)

    def forward(self, x):
        seen = []
        for layer in self.down:
            x = layer(x)
            seen.append(x)
        for layer in self.up:
            x = layer(x if x is seen[-1] else torch.cat([x, seen[-1]], dim=1))
            seen.pop()
            x = self.upsample(x)
        return self.end(x)


pair, model = torch.randn(2, 1, 1, 256, 256, 256).to("cuda"), Registration().to("cuda")
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    with torch.autocast("cuda"):
        flow = model(torch.cat([pair[0], pair[1]], dim=1))
    flow.float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
