"""A plain PyTorch loop on all workers there are: three lines are Quorate's, marked with numbers.

python examples/plain_loop.py
quorate run -n 2 examples/plain_loop.py
quorate run --virtual 8 --strategy eager-majority examples/plain_loop.py --epochs 4
quorate compare -n 2 --baseline ddp --metric accuracy examples/plain_loop.py
"""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import TensorDataset

import quorate

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--points", type=int, default=4096)
options = parser.parse_args()


def spirals(points: int, seed: int) -> TensorDataset:
    """Points on two spirals that wind into each other, and which of the two each is on."""
    drawn = torch.Generator().manual_seed(seed)
    which = torch.randint(2, (points,), generator=drawn)
    angle = 3 * math.pi * torch.rand(points, generator=drawn).sqrt()
    turned = angle + math.pi * which
    place = torch.stack([turned.cos(), turned.sin()], dim=1) * angle.unsqueeze(1) / (3 * math.pi)
    return TensorDataset(place + 0.02 * torch.randn(points, 2, generator=drawn), which)


world = quorate.join()  # 1
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)).to(world.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
optimizer = quorate.distribute(optimizer, model, strategy="all-reduce")  # 2
loader = quorate.loader(spirals(options.points, seed=0), batch_size=32)  # 3
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
test = [part.to(world.device) for part in spirals(1024, seed=1).tensors]

for epoch in range(options.epochs):
    for place, which in loader:
        loss = nn.functional.cross_entropy(model(place.to(world.device)), which.to(world.device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    schedule.step()
    with world.evaluate(), torch.no_grad():
        if world.is_first:
            accuracy = (model(test[0]).argmax(1) == test[1]).float().mean().item()
            quorate.log(accuracy=accuracy)
            print(f"epoch {epoch}: accuracy {accuracy:.3f}", flush=True)
optimizer.finish()
