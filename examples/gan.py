"""A generator and a discriminator, each with an optimizer of its own, on all workers there are.

python examples/gan.py
quorate run -n 2 examples/gan.py
quorate run --virtual 8 examples/gan.py --epochs 2
"""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import TensorDataset

import quorate

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--points", type=int, default=4096)
options = parser.parse_args()

angle = 2 * math.pi * torch.rand(options.points, generator=torch.Generator().manual_seed(0))
circle = TensorDataset(torch.stack([angle.cos(), angle.sin()], dim=1))  # what is to be imitated


def net(inputs: int, outputs: int) -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs)
    )


world = quorate.join()  # 1
torch.manual_seed(world.rank)  # noise differs; parameters are rank 0's after `distribute`
generator = net(4, 2).to(world.device)
discriminator = net(2, 1).to(world.device)
makes = torch.optim.Adam(generator.parameters(), lr=3e-3, betas=(0.0, 0.99))
tells = torch.optim.Adam(discriminator.parameters(), lr=3e-3, betas=(0.0, 0.99))
makes = quorate.distribute(makes, generator, name="generator")  # 2
tells = quorate.distribute(tells, discriminator, name="discriminator")  # 2, once for each
loader = quorate.loader(circle, batch_size=64)  # 3


def doubt(points: torch.Tensor, *, real: bool) -> torch.Tensor:
    """How far the discriminator is from taking `points` for real, or for made."""
    told = discriminator(points)
    return nn.functional.binary_cross_entropy_with_logits(told, torch.full_like(told, float(real)))


for epoch in range(options.epochs):
    for (real,) in loader:
        noise = torch.randn(len(real), 4, device=world.device)

        loss = doubt(real.to(world.device), real=True) + doubt(generator(noise).detach(), real=False)
        loss.backward()
        tells.step()
        tells.zero_grad()

        discriminator.requires_grad_(False)  # its gradients are not wanted now, so they are not exchanged either
        doubt(generator(noise), real=True).backward()
        discriminator.requires_grad_(True)
        makes.step()
        makes.zero_grad()
    with world.evaluate(), torch.no_grad():
        radius = generator(torch.randn(512, 4, device=world.device)).norm(dim=1)
        off = world.mean((radius - 1).abs().mean().item())
        if world.is_first:
            quorate.log(off=off)
            print(f"epoch {epoch}: {off:.3f} off the circle", flush=True)
makes.finish()
tells.finish()
