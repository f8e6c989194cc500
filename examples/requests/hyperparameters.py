"""Random search: rank 0 hands out hyperparameters and keeps results; the others train with what they are given.

quorate run -n 3 examples/requests/hyperparameters.py
quorate run --virtual 9 examples/requests/hyperparameters.py --trials 24
"""

import argparse
import random

import torch

import quorate

parser = argparse.ArgumentParser()
parser.add_argument("--trials", type=int, default=12)
options = parser.parse_args()

world = quorate.join()
if world.size < 2:
    raise SystemExit("this needs at least 2 workers: one hands out, and the others train")
random.seed(0)
trials = iter([{"rate": 10 ** random.uniform(-4, 0), "width": random.choice([8, 32])} for _ in range(options.trials)])
results: list[tuple[float, int, dict[str, float | int]]] = []


def next_trial() -> dict[str, float | int] | None:
    """None: there are no more."""
    return next(trials, None)


def report(trial: dict[str, float | int], loss: float, rank: int) -> None:
    results.append((loss, rank, trial))


def train(rate: float, width: int) -> float:
    """The loss on a sine, after 200 steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    x = torch.linspace(-3, 3, 64)[:, None]
    for _ in range(200):
        loss = (model(x) - x.sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


if world.rank == 0:
    world.serve("next", next_trial)
    world.serve("report", report)
else:
    while (trial := world.ask(0, "next").wait()) is not None:
        world.ask(0, "report", trial, loss=train(**trial), rank=world.rank).wait()
world.serve_until_done()
if world.is_first:
    for loss, rank, trial in sorted(results, key=lambda one: one[0])[:3]:
        print(f"loss {loss:.5f} on rank {rank}: rate {trial['rate']:.2g}, width {trial['width']}")
    print(f"{len(results)} of {options.trials} trials are reported")
