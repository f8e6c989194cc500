"""Two optimizers on one model: Muon takes the matrices inside, and AdamW takes everything else.

python examples/muon.py
quorate run -n 2 examples/muon.py
quorate run --virtual 8 --strategy eager-majority examples/muon.py --epochs 4
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


class Net(nn.Module):
    """Layers before, between and after two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 64), nn.Linear(64, 2)
        self.blocks = nn.Sequential(nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.blocks(self.first(x)))


world = quorate.join()
torch.manual_seed(0)
model = Net().to(world.device)
matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and name.startswith("blocks")]
others = [p for name, p in model.named_parameters() if not (p.ndim == 2 and name.startswith("blocks"))]
muon = quorate.distribute(torch.optim.Muon(matrices, lr=0.02), model)
adamw = quorate.distribute(torch.optim.AdamW(others, lr=0.01), model)
loader = quorate.loader(spirals(options.points, seed=0), batch_size=32)
test = [part.to(world.device) for part in spirals(1024, seed=1).tensors]

for epoch in range(options.epochs):
    for place, which in loader:
        nn.functional.cross_entropy(model(place.to(world.device)), which.to(world.device)).backward()
        for optimizer in (muon, adamw):
            optimizer.step()
            optimizer.zero_grad()
    with world.evaluate(), torch.no_grad():
        if world.is_first:
            accuracy = (model(test[0]).argmax(1) == test[1]).float().mean().item()
            quorate.log(accuracy=accuracy)
            print(f"epoch {epoch}: accuracy {accuracy:.3f}", flush=True)
for optimizer in (muon, adamw):
    optimizer.finish()
