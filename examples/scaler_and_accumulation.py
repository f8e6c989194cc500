"""Mixed precision with a GradScaler, and several batches to a step, on all workers there are.

python examples/scaler_and_accumulation.py
quorate run -n 2 examples/scaler_and_accumulation.py --batches 4
quorate run --virtual 8 examples/scaler_and_accumulation.py --epochs 2
"""

import argparse
from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.data import TensorDataset

import quorate

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--points", type=int, default=4096)
parser.add_argument("--batches", type=int, default=2, help="batches to one step")
options = parser.parse_args()

drawn = torch.Generator().manual_seed(0)
inputs = torch.randn(options.points, 32, generator=drawn)
targets = (inputs @ torch.randn(32, 8, generator=drawn)).tanh()

world = quorate.join()  # 1
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).to(world.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
optimizer = quorate.distribute(optimizer, model, strategy="all-reduce")  # 2
loader = quorate.loader(TensorDataset(inputs, targets), batch_size=32)  # 3
scaler = torch.amp.GradScaler(world.device.type)
mixes = world.device.type == "cuda"  # a CPU computes slowly in float16

for epoch in range(options.epochs):
    total = 0.0
    for number, (x, y) in enumerate(loader, 1):
        steps_now = number % options.batches == 0 or number == len(loader)
        with nullcontext() if steps_now else optimizer.accumulate():
            with torch.autocast(world.device.type, dtype=torch.float16, enabled=mixes):
                loss = nn.functional.mse_loss(model(x.to(world.device)), y.to(world.device))
            scaler.scale(loss / options.batches).backward()
        total += loss.item()
        if steps_now:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    mean = world.mean(total / len(loader))
    if world.is_first:
        quorate.log(loss=mean)
        print(f"epoch {epoch}: loss {mean:.4f}", flush=True)
optimizer.finish()
