"""One step of the optimizer that all workers share, where each keeps the momentum of its own gradients.

It runs without momentum, on the mean of what has come (see `worker_momentum`). An optimizer that does not go by the
scale of a gradient would make a whole step of a round that has but one worker's: its learning rate is multiplied by the
share of workers that have come, and what it remembers fades by that share of a step. Its counts of steps grow by the
share, too, so they are synchronous steps, and the correction of what began with 0 stays right.

The mean square of gradients (of Adam and RMSprop) takes in what synchronous training would see: square sums that
workers tell. Those of what they give are others, as momentum has taken most of the noise out of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quorate.core.local_tensor import local
from quorate.core.vectors import Flat
from quorate.replica.worker_momentum import TINY, WorkerMomentum, is_decoupled, numbers_of

_SQUARES = ("exp_avg_sq", "square_avg")
"""What torch calls the mean square."""
LEAST = 1e-3
"""What workers' squares count at least, over that of what they give: the step adds the latter, which was taken off
before, and of a difference of nearly equal numbers a mean square below 0 could be left."""


@dataclass(frozen=True)
class SharedOptions:
    """What a round is applied with, where workers keep their momentum: the options of their optimizers, and
    how many of the workers have come (as a share), with which square sums for each parameter, in the mean."""

    options: Sequence[dict[str, Any]]
    share: float
    energies: Sequence[float]


def without_momentum(momentum: WorkerMomentum, given: SharedOptions) -> list[dict[str, Any]]:
    """The options of the shared optimizer."""
    return [_of_group(momentum, group, given.share) for group in given.options]


def _of_group(momentum: WorkerMomentum, group: dict[str, Any], share: float) -> dict[str, Any]:
    kind, found = momentum.kind, dict(group)
    if not is_decoupled(group, momentum.plain):
        found["weight_decay"] = 0.0
    if kind == "sgd":
        off = {"momentum": 0.0, "dampening": 0.0, "nesterov": False}
        return {**found, **{name: value for name, value in off.items() if name in group}}
    rate = share
    if "betas" in group:
        second = float(group["betas"][1])
        found["betas"] = [0.0, second if kind == "lion" else second**share]
    for name in ("alpha", "rho"):  # of RMSprop, of Adadelta
        if name in group:
            found[name] = float(group[name]) ** share
    beta = float(group.get("momentum") or 0.0)
    if "share" in group:  # LARS
        return {**found, "share": share}
    if beta:
        found["momentum"] = 0.0
        if kind == "rmsprop":  # its momentum is a sum that begins with 0, and what is given is a mean
            rate = share * (1 - beta ** (_steps(momentum) + 1)) / (1 - beta)
    if "lr_decay" in group:  # Adagrad, whose sum of squares grows by `share` of a square: see `shared_step`
        rate = share**0.5
    found["lr"] = float(group["lr"]) * rate
    return found


def _steps(momentum: WorkerMomentum) -> float:
    return max((float(state.get("step", 0.0)) for state in momentum.optimizer.state.values()), default=0.0)


@contextmanager
def shared_step(
    momentum: WorkerMomentum, parameters: Sequence[Tensor], mean: Flat, given: SharedOptions
) -> Iterator[None]:
    """Around one step of the plain class on `mean`, which is in `.grad` of the `parameters` that are used."""
    if momentum.kind == "sgd":
        yield
        return
    share, state = given.share, momentum.optimizer.state
    used = [place for place, p in enumerate(parameters) if p.grad is not None]
    steps = {}
    for place in used:
        own = state.get(parameters[place], {})
        if share != 1.0 and "step" in own:
            steps[place] = float(own["step"])
            _put_step(own, steps[place] / share)
        if "sum" in own:  # Adagrad
            grad = parameters[place].grad
            assert grad is not None
            grad.mul_(share**0.5)
    _take_in_squares(momentum, parameters, mean, given, used)
    yield
    for place in used:
        own = state.get(parameters[place], {})
        if share != 1.0 and "step" in own:
            _put_step(own, steps.get(place, 0.0) + share)


def _take_in_squares(
    momentum: WorkerMomentum, parameters: Sequence[Tensor], mean: Flat, given: SharedOptions, used: Sequence[int]
) -> None:
    """Let the mean square be right when the step has taken in that of `mean`: its sum is to be what workers tell."""
    state = momentum.optimizer.state
    there = [
        (place, key)
        for place in used
        for key in _SQUARES
        if key in state.get(parameters[place], {})
        and "grad_avg" not in state[parameters[place]]
        and given.energies[place] > 2 * TINY
    ]
    if not there or momentum.kind not in ("adam", "nadam", "rmsprop"):
        return
    decay_of = {
        p: float(group["betas"][1] if "betas" in group else group["alpha"])
        for group in momentum.optimizer.param_groups
        for p in group["params"]
    }
    numbers = mean.segments()
    with torch.no_grad():
        lengths = numbers_of([torch.linalg.vector_norm(numbers[place]) for place, _ in there])
        squares = momentum.sums([length**2 for length in lengths])
        for (place, key), total in zip(there, squares, strict=True):
            if total > 0:
                p, x = parameters[place], numbers[place]
                fades = decay_of[p] ** given.share
                square = local(state[p][key])
                x = x.to(square.dtype)
                told = max(LEAST, given.energies[place] / total)
                square.addcmul_(x, x.conj(), value=(1 - fades) / fades * (told - 1))


def _put_step(state: dict[str, Any], count: float) -> None:
    if isinstance(state["step"], Tensor):
        state["step"].fill_(count)
    else:
        state["step"] = count
