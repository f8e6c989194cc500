"""Which rule should keep momentum where gradients come late? Trials by events in one process, behind decision 0018.

Workers compute gradients of one small regression at the version they saw last; a step takes 5 ms and a random pause of
up to 30 ms. A gradient is applied as it comes, with weight 1 / P, or (`sync`) all of a step together. Printed: the loss
on held-out examples after 240 steps of each worker, without and with noise in the labels (standard deviation 10: there
gradients are mostly noise). `--part stability` prints what curvature times learning rate a quadratic stands, by delay
and by how many steps ahead momentum is given (the largest root of the recursion stays inside the unit circle).

Not a benchmark with bars: what runs in Quorate is measured by `late_gradients.py`.
"""

from __future__ import annotations

import argparse
import heapq
import random

import numpy as np
import torch
from torch import Tensor, nn

STEPS, COMPUTE, PAUSE = 240, 0.005, 0.03
SIZES = [256 * 64, 256, 256, 1]
B1, B2, EPS = 0.9, 0.999, 1e-8


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))


def parts(x: Tensor) -> Tensor:
    """The sum over each parameter."""
    return torch.stack([part.sum() for part in x.split(SIZES)])


class Worker:
    def __init__(self, rank: int, noise: float) -> None:
        self.data, self.pause = torch.Generator().manual_seed(100 + rank), random.Random(7 + rank)
        self.net, self.noise, self.count = net(), noise, 0
        self.m, self.cosine = torch.zeros(sum(SIZES)), torch.ones(len(SIZES))

    def gradient(self, w: Tensor) -> Tensor:
        nn.utils.vector_to_parameters(w, self.net.parameters())
        x = torch.randn(32, 64, generator=self.data)
        y = x.sum(1, keepdim=True) + self.noise * torch.randn(32, 1, generator=self.data)
        self.net.zero_grad()
        (self.net(x) - y).square().mean().backward()
        self.count += 1
        return torch.cat([p.grad.reshape(-1) for p in self.net.parameters() if p.grad is not None])


class Adam:
    """`kind`: sync; common (of all gradients, as they come); share (common, its rate over P); or of workers:
    per round, per share (what it remembers fades by 1 / P of a step), squares (per share, and the mean square is that
    of synchronous gradients, as estimated)."""

    def __init__(self, kind: str, rate: float, size: int) -> None:
        self.kind, self.rate, self.size = kind, rate, size
        self.m, self.v, self.steps = torch.zeros(sum(SIZES)), torch.zeros(sum(SIZES)), 0.0

    def apply(self, w: Tensor, g: Tensor, worker: Worker | None) -> Tensor:
        if self.kind in ("sync", "common", "share") or worker is None:
            self.steps += 1
            g = g / self.size if self.kind == "common" else g
            self.m = B1 * self.m + (1 - B1) * g
            self.v = B2 * self.v + (1 - B2) * g * g
            rate = self.rate / self.size if self.kind == "share" else self.rate
            return w - rate * self.m / (1 - B1**self.steps) / ((self.v / (1 - B2**self.steps)).sqrt() + EPS)
        square = self._square(g, worker) if self.kind == "squares" else None
        worker.m = B1 * worker.m + (1 - B1) * g
        given = (B1 * worker.m + (1 - B1) * g) / (1 - B1 ** (worker.count + 1))
        share = 1.0 if self.kind == "per round" else 1 / self.size
        self.steps += share
        taken = given * given
        if square is not None:
            ratio = square / (parts(taken) + 1e-30)
            taken = taken * torch.cat([r.expand(n) for r, n in zip(ratio, SIZES, strict=True)])
        self.v = B2**share * self.v + (1 - B2**share) * taken
        return w - self.rate / self.size * given / ((self.v / (1 - B2**self.steps)).sqrt() + EPS)

    def _square(self, g: Tensor, worker: Worker) -> Tensor:
        mine, before = parts(g * g), worker.count - 1
        if not before:
            return mine
        cosine = parts(g * worker.m) / (mine * parts(worker.m * worker.m) + 1e-30).sqrt()
        worker.cosine = cosine if before == 1 else 0.95 * worker.cosine + 0.05 * cosine
        c = (1 - B1) / (1 + B1) * (1 + B1**before) / (1 - B1**before)
        known = worker.cosine.clamp(min=0) ** 2
        signal = ((known * (1 - c) + (known**2 * (1 - c) ** 2 + 4 * known * c).sqrt()) / 2).clamp(max=1)
        return mine * (signal + (1 - signal) / self.size)


def trained(kind: str, rate: float, size: int, noise: float) -> float:
    """The held-out loss at the end."""
    workers, rule = [Worker(rank, noise) for rank in range(size)], Adam(kind, rate, size)
    w = nn.utils.parameters_to_vector(net().parameters()).detach()
    if kind == "sync":
        for _ in range(STEPS):
            w = rule.apply(w, torch.stack([one.gradient(w) for one in workers]).mean(0), None)
    else:
        seen = [w] * size
        events = [(COMPUTE + one.pause.random() * PAUSE, rank) for rank, one in enumerate(workers)]
        heapq.heapify(events)
        while events:
            now, rank = heapq.heappop(events)
            one = workers[rank]
            w = seen[rank] = rule.apply(w, one.gradient(seen[rank]), one)
            if one.count < STEPS:
                heapq.heappush(events, (now + COMPUTE + one.pause.random() * PAUSE, rank))
    model = net()
    nn.utils.vector_to_parameters(w, model.parameters())
    x = torch.randn(2000, 64, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        return float((model(x) - x.sum(1, keepdim=True)).square().mean())


def stands(delay: int, ahead: int, beta: float = 0.9) -> float:
    """The greatest rate times curvature at which SGD converges, its gradients late by `delay` steps."""
    now = (1 - beta ** (ahead + 1)) / (1 - beta)
    best = 0.0
    for rate in np.geomspace(1e-3, 5, 400):
        still = np.polymul(np.polymul([1, -1], [1, -beta]), [1] + [0] * delay)
        moved = rate * np.array([now, beta ** (ahead + 1) - now * beta])
        if np.abs(np.roots(np.polyadd(still, moved))).max() >= 1:
            break
        best = float(rate)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["stability", "adam"], help="only this")
    part = parser.parse_args().part
    torch.set_num_threads(1)
    if part != "adam":
        print("SGD, momentum 0.9: greatest rate times curvature, gradients late by 0, 1, 2, 3 steps")
        for ahead in (0, 1, 2, 3, 4, 8):
            print(f"  {ahead} ahead  ", *(f"{stands(delay, ahead):.3f}" for delay in range(4)), flush=True)
    if part != "stability":
        for noise in (0.0, 10.0):
            for size in (4, 8):
                for rate in (0.001, 0.003, 0.01, 0.02, 0.03):
                    kinds = ("sync", "common", "share", "per round", "per share", "squares")
                    found = "  ".join(f"{kind} {trained(kind, rate, size, noise):.4f}" for kind in kinds)
                    print(f"Adam, noise {noise:g}, {size} workers, rate {rate}: {found}", flush=True)


if __name__ == "__main__":
    main()
