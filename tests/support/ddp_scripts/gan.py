"""A generator and a discriminator, each in a wrapper with an optimizer of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)


def net(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 16), nn.LeakyReLU(0.2), nn.Linear(16, outputs))


generator, discriminator = DDP(net(4, 2)), DDP(net(2, 1))
makes = torch.optim.Adam(generator.parameters(), lr=3e-3, betas=(0.0, 0.99))
tells = torch.optim.Adam(discriminator.parameters(), lr=3e-3, betas=(0.0, 0.99))
drawn = torch.Generator().manual_seed(5 + rank)
loss_of = nn.BCEWithLogitsLoss()
for _ in range(12):
    angle = 6.28 * torch.rand(16, generator=drawn)
    real, noise = torch.stack([angle.cos(), angle.sin()], dim=1), torch.randn(16, 4, generator=drawn)
    tells.zero_grad()
    loss = loss_of(discriminator(real), torch.ones(16, 1)) + loss_of(
        discriminator(generator(noise).detach()), torch.zeros(16, 1)
    )
    loss.backward()
    tells.step()
    makes.zero_grad()
    discriminator.requires_grad_(False)
    loss_of(discriminator(generator(noise)), torch.ones(16, 1)).backward()
    discriminator.requires_grad_(True)
    makes.step()
dist.barrier()  # gloo may hang in a worker that destroys its group while others use theirs
dist.destroy_process_group()
torch.save(
    {**generator.state_dict(), **{f"d.{k}": v for k, v in discriminator.state_dict().items()}}, f"state-{rank}.pt"
)
