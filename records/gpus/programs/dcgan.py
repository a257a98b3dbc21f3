"""A DCGAN: two models, two optimizers, transposed convolutions."""

import torch
from torch import nn


def generator(width=64):
    sizes, layers = (width * 8, width * 4, width * 2, width), [nn.ConvTranspose2d(100, width * 8, 4, 1, 0, bias=False)]
    for before, after in zip(sizes, (*sizes[1:], 3)):
        layers += [nn.BatchNorm2d(before), nn.ReLU(True), nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False)]
    return nn.Sequential(*layers, nn.Tanh())


def discriminator(width=64):
    layers = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)]
    for scale in (1, 2, 4):
        layers += [nn.Conv2d(width * scale, width * scale * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(width * scale * 2), nn.LeakyReLU(0.2, True)]
    return nn.Sequential(*layers, nn.Conv2d(width * 8, 1, 4, 1, 0, bias=False), nn.Flatten(0))


G, D = generator().cuda(), discriminator().cuda()
of_g, of_d = (torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999)) for model in (G, D))
judge = nn.BCEWithLogitsLoss()
for step in range(30):
    real, noise = torch.randn(128, 3, 64, 64, device="cuda"), torch.randn(128, 100, 1, 1, device="cuda")
    D.zero_grad()
    judge(D(real), torch.ones(128, device="cuda")).backward()
    fake = G(noise)
    judge(D(fake.detach()), torch.zeros(128, device="cuda")).backward()
    of_d.step()
    G.zero_grad()
    judge(D(fake), torch.ones(128, device="cuda")).backward()
    of_g.step()
