"""A generator and a discriminator, whose loss goes back through the generator, too."""

import torch
from torch import nn
from torch.nn import functional as F


def network(*widths):
    return nn.Sequential(*[nn.Sequential(nn.Linear(before, after), nn.LeakyReLU(0.2)) for before, after in zip(widths, widths[1:])]).cuda()


generator, discriminator = network(128, 2048, 4096, 3072), network(3072, 1024, 1)
of_generator, of_discriminator = torch.optim.Adam(generator.parameters()), torch.optim.Adam(discriminator.parameters())
for step in range(3):
    real, fake = torch.randn(4096, 3072, device="cuda"), generator(torch.randn(4096, 128, device="cuda"))
    of_discriminator.zero_grad()
    (F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake)).mean()).backward()
    of_discriminator.step()
    of_generator.zero_grad()
    F.softplus(-discriminator(generator(torch.randn(4096, 128, device="cuda")))).mean().backward()
    of_generator.step()
