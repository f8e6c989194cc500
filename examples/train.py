"""Train a classifier of Python functions on all workers there are.

python examples/train.py
torchrun --nproc-per-node 2 examples/train.py
quorate run -n 2 examples/train.py
quorate run --virtual 8 examples/train.py --limit 800
quorate compare -n 2 --baseline ddp --metric top1 examples/train.py --limit 400
"""

import argparse

import torch

import quorate
from quorate.workloads import workloads

parser = argparse.ArgumentParser()
parser.add_argument("--workload", default="stdlib-functions", help="what to train (see `quorate list`)")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--batch", type=int, default=16, help="examples per worker and step")
parser.add_argument("--limit", type=int, default=2000, help="functions to train on; 0 takes all")
options = parser.parse_args()

world = quorate.join()
kind = workloads.get(options.workload)
workload = kind(limit=options.limit) if options.limit and options.workload == "stdlib-functions" else kind()
model = workload.model(seed=0).to(world.device)
optimizer = quorate.distribute(workload.optimizer(model), model, strategy="all-reduce")
train = quorate.loader(workload.dataset(train=True), options.batch, collate_fn=workload.collate)
test = quorate.loader(workload.dataset(train=False), options.batch, collate_fn=workload.collate, shuffle=False)

if world.is_first:
    print("\n".join(workload.describe()))
for epoch in range(options.epochs):
    model.train()
    for step, batch in enumerate(train, 1):
        loss = workload.loss(model, batch.to(world.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if world.is_first and step % 10 == 0:
            print(f"epoch {epoch} step {step}/{len(train)} loss {loss.item():.3f}", flush=True)
    with world.evaluate():
        model.eval()
        with torch.no_grad():
            counts = [workload.quality(model, batch.to(world.device)) for batch in test]
        examples = sum(count["examples"] for count in counts)
        for name in sorted(counts[0].keys() - {"examples"}):
            value = world.mean(sum(count[name] for count in counts) / examples, weight=examples)
            if world.is_first:
                print(f"epoch {epoch} {name} {value:.4f}", flush=True)
                quorate.log(**{name: value})
optimizer.finish()
