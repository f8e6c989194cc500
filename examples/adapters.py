"""Adapters beside a frozen base (LoRA) on all workers there are: only A and B are trained, sent and saved.

python examples/adapters.py --output adapters.safetensors
quorate run -n 2 examples/adapters.py
quorate run --virtual 8 --strategy diloco:sync_every=16 examples/adapters.py --epochs 2
"""

import argparse
import copy

import torch
from torch import nn
from torch.utils.data import TensorDataset

import quorate

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--points", type=int, default=4096)
parser.add_argument("--rank", type=int, default=4)
parser.add_argument("--output", help="a .safetensors file for the adapters")
options = parser.parse_args()


class Adapter(nn.Module):
    """A frozen linear layer W with the term (alpha / r) B A beside it; B is zero at first."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float = 32.0) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), alpha / rank
        self.a = nn.Parameter(torch.empty(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.a, a=5**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.scale * (x @ self.a.t() @ self.b.t())

    def merged(self) -> nn.Linear:
        """Return a linear layer that computes the same."""
        layer = copy.deepcopy(self.base)
        layer.weight.data += self.scale * (self.b @ self.a).detach()
        return layer


world = quorate.join()
torch.manual_seed(0)
base = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))  # load yours here
model = nn.Sequential(*(Adapter(layer, options.rank) if isinstance(layer, nn.Linear) else layer for layer in base))
model.to(world.device)
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = quorate.distribute(torch.optim.Adam(trained, lr=0.01), model)

points = torch.randn(options.points, 2, generator=torch.Generator().manual_seed(0))
inside = TensorDataset(points, (points.norm(dim=1) < 1.2).long())
loader = quorate.loader(inside, batch_size=32, device=world.device)

for _ in range(loader.epoch, options.epochs):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

with world.evaluate(), torch.no_grad():  # the model is that of all workers
    if options.output:
        quorate.save(options.output, trained_only=True)  # with a digest of the base
    merged = nn.Sequential(*(layer.merged() if isinstance(layer, Adapter) else layer for layer in model))
    outputs = merged(points.to(world.device)).cpu()
    error = world.mean((outputs - model(points.to(world.device)).cpu()).abs().max())
if world.is_first:
    accuracy = (outputs.argmax(1) == inside.tensors[1]).float().mean()
    numbers = sum(p.numel() for p in trained), sum(p.numel() for p in model.parameters())
    print(f"accuracy {accuracy:.3f}, merged to {error:.0e}; {numbers[0]} of {numbers[1]} numbers were trained")
optimizer.finish()
