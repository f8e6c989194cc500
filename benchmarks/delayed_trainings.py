"""The trainings of `delayed.py`: five optimizers, a small language model, and one training in virtual workers.

Several learning rates are trained side by side, as in `late_trainings.py`: a copy of the model and parameter groups for
each. Muon has the matrices of the blocks, and AdamW everything else, with the same rate (`match_rms_adamw`).
"""

from __future__ import annotations

import contextlib
import io
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from late_trainings import COMPUTE, DIVERGED, uniform
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.optim import SGD, AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import LambdaLR

import quorate
from quorate.core.contracts import Wire
from quorate.wire import current
from quorate.wire.virtual.compute import Constant
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from quorate.workloads.stdlib_bytes import StdlibBytes, Windows

PROMPT, DELAYED, WORKER, CORRECTED = "prompt", "delayed", "worker momentum", "corrected"
SOLO, SOLO_OVERLAP, SOLO_CORRECTED = "eager-solo", "eager-solo, overlap", "eager-solo, corrected"
LATE: dict[str, Any] = {"wait_for": "all", "overlap": True}
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    PROMPT: ("all-reduce", {}),
    DELAYED: ("quorum", {**LATE, "momentum": "common"}),
    WORKER: ("quorum", {**LATE, "momentum": "worker"}),
    CORRECTED: ("quorum", {**LATE, "correct": "delay"}),
    SOLO: ("eager-solo", {}),
    SOLO_OVERLAP: ("eager-solo", {"overlap": True}),
    SOLO_CORRECTED: ("eager-solo", {"overlap": True, "correct": "delay"}),
}
"""Strategy and settings."""
BASIS_EVERY, LARGEST = 10, 128
STEPS, BATCH, WARM_UP = 120, 16, 0.1


class Lion(Optimizer):
    """Steps by the sign of a momentum (Chen et al. 2023, arXiv 2302.06675, Algorithm 2)."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(m.lerp(p.grad, 1 - first).sign_(), alpha=-group["lr"])
                m.lerp_(p.grad, 1 - second)


class Rotated(Optimizer):
    """Adam in the eigenbasis of a matrix's mean products of gradients, like SOAP (Vyas et al. 2024, arXiv 2409.11321).

    The basis is renewed every 10 steps, and the squares of the old one are kept.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.1, "eps": 1e-8})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                self._step(p, p.grad, group)

    def _step(self, p: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        state, (first, second) = self.state[p], group["betas"]
        if not state:
            sides = [n for n in p.shape if p.ndim == 2 and n <= LARGEST]
            state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
            state.update(products=[torch.zeros(n, n) for n in sides], bases=[torch.eye(n) for n in sides])
        outer = [g @ g.T, g.T @ g] if p.ndim == 2 else []
        for kept, product in zip(state["products"], (x for x in outer if len(x) <= LARGEST), strict=True):
            kept.lerp_(product, 1 - second)
        if state["step"] % BASIS_EVERY == 0:
            state["bases"] = [torch.linalg.eigh(x)[1] for x in state["products"]]
        state["step"] += 1
        state["exp_avg"].lerp_(g, 1 - first)
        state["exp_avg_sq"].lerp_(self._into(g, state, p.shape).square(), 1 - second)
        numerator = self._into(state["exp_avg"], state, p.shape) / (1 - first ** state["step"])
        denominator = (state["exp_avg_sq"] / (1 - second ** state["step"])).sqrt().add_(group["eps"])
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.sub_(self._into(numerator / denominator, state, p.shape, is_back=True), alpha=group["lr"])

    def _into(self, x: Tensor, state: dict[str, Any], shape: Sequence[int], *, is_back: bool = False) -> Tensor:
        bases = iter(state["bases"])
        for side, n in enumerate(shape if len(shape) == 2 else ()):
            if n <= LARGEST:
                basis = next(bases)
                turn = basis.T if not is_back else basis
                x = turn @ x if side == 0 else x @ turn.T
        return x


Copies = Sequence[tuple[nn.Module, float]]


def groups(copies: Copies) -> list[dict[str, Any]]:
    return [{"params": list(copy.parameters()), "lr": rate} for copy, rate in copies]


def muon_and_adamw(copies: Copies) -> list[Optimizer]:
    """Muon for the matrices of blocks, AdamW for the rest."""
    parts: tuple[list[dict[str, Any]], list[dict[str, Any]]] = [], []
    for copy, rate in copies:
        named = list(copy.named_parameters())
        of_muon = [name.startswith("blocks") and p.ndim == 2 for name, p in named]
        for groups_of, is_muon in zip(parts, (True, False), strict=True):
            chosen = [p for (_, p), flag in zip(named, of_muon, strict=True) if flag is is_muon]
            groups_of.append({"params": chosen, "lr": rate})
    return [Muon(parts[0], adjust_lr_fn="match_rms_adamw"), AdamW(parts[1], weight_decay=0.1)]


OPTIMIZERS: dict[str, Callable[[Copies], list[Optimizer]]] = {
    "SGD": lambda copies: [SGD(groups(copies), momentum=0.9)],
    "AdamW": lambda copies: [AdamW(groups(copies), weight_decay=0.1)],
    "Muon": muon_and_adamw,
    "SOAP-like": lambda copies: [Rotated(groups(copies))],
    "Lion": lambda copies: [Lion(groups(copies))],
}
RATES: dict[str, tuple[float, ...]] = {
    "AdamW": (0.002, 0.004, 0.008),
    "Muon": (0.008, 0.016, 0.032),
    "Lion": (0.002, 0.004, 0.008),
    "SOAP-like": (0.002, 0.004, 0.008),
    "SGD": (0.025, 0.05, 0.1, 0.2),
}
"""Learning rates, around the best of `prompt` and of `delayed`."""


@dataclass(frozen=True)
class Training:
    """One run, at several learning rates, with the batches of several seeds."""

    optimizer: str
    arm: str
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    workers: int = 2
    steps: int = STEPS
    has_pauses: bool = False
    """Whether each worker pauses up to 30 ms in each step of 5 ms; drawn by the first seed."""


class Task:
    """A small `stdlib-bytes`: the mean cross-entropy of the next byte, in nats, of all copies at once."""

    def __init__(self) -> None:
        self._workload = StdlibBytes(length=32, width=32, layers=1, heads=2, most_bytes=1_000_000, test_windows=256)
        self._examples: Any = self._workload.dataset(train=True)
        self.like = OfLoss(self._workload)
        there: Any = self._workload.dataset(train=False)
        self.held_out: Tensor = self._workload.collate([there[place] for place in range(len(there))]).text

    def model(self) -> nn.Module:
        return self._workload.model(0)

    def batch(self, draws: Sequence[torch.Generator]) -> Tensor:
        """The windows of each copy."""
        places = [torch.randint(len(self._examples), (BATCH,), generator=draw).tolist() for draw in draws]
        return torch.stack([self._workload.collate([self._examples[place] for place in some]).text for some in places])

    def losses(self, copies: nn.ModuleList, windows: Tensor) -> Tensor:
        """The loss of each copy on its windows."""
        of_copies = [dict(copy.named_parameters()) for copy in copies]
        stacked = {f"model.{name}": torch.stack([of[name] for of in of_copies]) for name in of_copies[0]}
        losses: Tensor = vmap(lambda p, text: functional_call(self.like, p, (text,)))(stacked, windows)
        return losses


class OfLoss(nn.Module):
    """A model whose output is its loss."""

    def __init__(self, workload: StdlibBytes) -> None:
        super().__init__()
        self.model, self._workload = workload.model(0), workload

    def forward(self, text: Tensor) -> Tensor:
        return self._workload.loss(self.model, Windows(text))


def rate_of(steps: int, step: int) -> float:
    """A linear warm-up over a tenth of all steps, and a cosine."""
    return min(1.0, (step + 1) / (WARM_UP * steps)) * (1 + math.cos(math.pi * step / steps)) / 2


def trained(training: Training, task: Task, wire: Wire) -> list[float]:
    """The held-out losses in one worker, for each seed those of all rates."""
    world, (strategy, settings) = quorate.join(), ARMS[training.arm]
    pairs = [(seed, rate) for seed in training.seeds for rate in training.rates]
    copies = nn.ModuleList([task.model() for _ in pairs])
    plain = OPTIMIZERS[training.optimizer]([(copy, rate) for copy, (_, rate) in zip(copies, pairs, strict=True)])
    chosen: dict[str, Any] = {"compare_every": 0, "on_nonfinite": "ignore", **settings}
    optimizers: list[Any] = [quorate.distribute(optimizer, copies, strategy, **chosen) for optimizer in plain]
    schedulers = [LambdaLR(optimizer, partial(rate_of, training.steps)) for optimizer in optimizers]
    draws = [torch.Generator().manual_seed(100 + world.rank + 1000 * seed) for seed, _ in pairs]
    pauses = random.Random(7 + world.rank + 1000 * training.seeds[0])
    for _ in range(training.steps):
        windows = task.batch(draws)
        copies.zero_grad()
        task.losses(copies, windows).clamp(max=DIVERGED).sum().backward()
        if training.has_pauses:
            wire.clock.sleep(uniform(pauses, world.rank))
        for optimizer in optimizers:
            optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    for optimizer in optimizers:
        optimizer.finish()
    with torch.no_grad():
        losses = task.losses(copies, task.held_out.expand(len(copies), *task.held_out.shape)).tolist()
    return [min(loss, DIVERGED) if math.isfinite(loss) else DIVERGED for loss in losses]


def losses(training: Training) -> list[list[float]]:
    """The held-out losses by seed and rate, in virtual workers; the same on every machine, up to rounding."""
    task = Task()

    def live(wire: Wire) -> list[float]:
        place = current.enter(wire, thread_only=True)
        try:
            losses_here = trained(training, task, wire)
            place.leave()
            return losses_here
        finally:
            current.forget(thread_only=True)

    network = Network(bandwidth=math.inf)  # copies side by side shall not make messages longer
    with contextlib.redirect_stderr(io.StringIO()):
        world = VirtualWorld(training.workers, seed=training.seeds[0], network=network, compute=Constant(COMPUTE))
        every = world.run(live)[0]
    count = len(training.rates)
    return [every[place : place + count] for place in range(0, len(every), count)]
