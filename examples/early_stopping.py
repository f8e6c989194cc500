"""All workers end together: when one of them no longer learns, or when one says so.

python examples/early_stopping.py
quorate run -n 2 examples/early_stopping.py
quorate run --virtual 4 --strategy eager-majority examples/early_stopping.py --epochs 20
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import quorate

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=50)
parser.add_argument("--points", type=int, default=4096)
parser.add_argument("--folder", type=Path, default=Path("."), help="where the data are cached")
options = parser.parse_args()

world = quorate.join()  # 1
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)).to(world.device)
optimizer = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=0.01), model)  # 2


def prepare(path: Path) -> TensorDataset:
    """Read the data, or make them and write them down."""
    if not path.exists():
        x = torch.randn(options.points, 4, generator=torch.Generator().manual_seed(0))
        torch.save({"x": x, "y": x.sin().sum(1, keepdim=True)}, path)
    found = torch.load(path, weights_only=True)
    return TensorDataset(found["x"], found["y"])


path = options.folder / f"points-{options.points}.pt"
with world.first_does():
    dataset = prepare(path)  # the first worker; then all others, which find the file

loader = quorate.loader(dataset, batch_size=32)  # 3
best, epochs = float("inf"), 0
for _ in range(options.epochs):
    total = 0.0
    for x, y in loader:
        loss = (model(x.to(world.device)) - y.to(world.device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if total > 1e6:
            world.stop("the loss grows without bound")  # any worker may call it, at any time
    if world.stopped:  # loops over quorate.loader have ended by themselves
        break
    mean = total / max(1, len(loader))  # of this worker's own batches
    if world.any(mean > 0.99 * best):  # every worker calls it and gets the same answer
        break
    best, epochs = mean, epochs + 1
optimizer.finish()
if world.is_first:
    print(f"ended after {epochs} better epochs: loss {best:.4f}", flush=True)
