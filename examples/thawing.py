"""The head is trained first, then the layers below thaw; under local steps, where replicas differ when they do.

python examples/thawing.py
quorate run -n 2 examples/thawing.py
quorate run --virtual 8 --strategy eager-majority examples/thawing.py --epochs 4
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
parser.add_argument("--thaws", type=int, default=1, metavar="EPOCH", help="from which on all layers are trained")
options = parser.parse_args()


def rings(points: int, seed: int) -> TensorDataset:
    """Points on three rings around each other, and which of them each is on."""
    drawn = torch.Generator().manual_seed(seed)
    which = torch.randint(3, (points,), generator=drawn)
    angle = 2 * math.pi * torch.rand(points, generator=drawn)
    place = torch.stack([angle.cos(), angle.sin()], dim=1) * (1 + which.unsqueeze(1))
    return TensorDataset(place + 0.15 * torch.randn(points, 2, generator=drawn), which)


world = quorate.join()  # 1
torch.manual_seed(0)
below = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
model = nn.Sequential(below, nn.Linear(32, 3)).to(world.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
optimizer = quorate.distribute(optimizer, model, "local-sgd")  # 2
loader = quorate.loader(rings(options.points, seed=0), batch_size=32)  # 3
test = [part.to(world.device) for part in rings(1024, seed=1).tensors]

for epoch in range(options.epochs):
    below.requires_grad_(epoch >= options.thaws)
    for place, which in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(place.to(world.device)), which.to(world.device)).backward()
        optimizer.step()
    with world.evaluate(), torch.no_grad():
        if world.is_first:
            accuracy = (model(test[0]).argmax(1) == test[1]).float().mean().item()
            quorate.log(accuracy=accuracy)
            trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
            print(f"epoch {epoch}: accuracy {accuracy:.3f}, {trained} numbers trained", flush=True)
optimizer.finish()
