"""One step of the optimizer that all workers share, where each keeps the momentum of its own gradients.

It runs without momentum, on the mean of the contributions (see `worker_momentum`). An optimizer whose steps do not
scale with the gradient would make a full step from a round of one worker. So its learning rate is multiplied by the
share of workers that contributed, and its memory fades by that share of a step. Its counts of steps grow by the share,
too, so they are synchronous steps, and the correction of averages that began with 0 stays right.

The mean square of gradients (of Adam and RMSprop) takes in the squares of synchronous training, which workers send as
square sums. The squares of contributions are others, as momentum has taken most of the noise out of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quorate.core.device_copies import to_device, values_of
from quorate.core.local_tensor import local
from quorate.core.vectors import Flat, full_segments
from quorate.replica.worker_momentum import TINY, WorkerMomentum, is_decoupled

_SQUARES = ("exp_avg_sq", "square_avg")
"""torch's names for the mean square."""
LEAST = 1e-3
"""The least ratio of sent squares to those of contributions. The step adds the latter, which were subtracted before; a
difference of nearly equal numbers could leave a mean square below 0."""


@dataclass(frozen=True)
class SharedOptions:
    """The options of a round where workers keep their momentum, the share of workers, and square sums."""

    options: Sequence[dict[str, Any]]
    share: float
    energies: Sequence[float]


def without_momentum(momentum: WorkerMomentum, shared: SharedOptions) -> list[dict[str, Any]]:
    """Return the options of the shared optimizer."""
    return [_of_group(momentum, group, shared.share) for group in shared.options]


def _of_group(momentum: WorkerMomentum, group: dict[str, Any], share: float) -> dict[str, Any]:
    kind, options = momentum.kind, dict(group)
    if not is_decoupled(group, momentum.plain):
        options["weight_decay"] = 0.0
    if kind == "sgd":
        off = {"momentum": 0.0, "dampening": 0.0, "nesterov": False}
        return {**options, **{name: value for name, value in off.items() if name in group}}
    rate = share
    if "betas" in group:
        second = float(group["betas"][1])
        options["betas"] = [0.0, second if kind == "lion" else second**share]
    for name in ("alpha", "rho"):  # of RMSprop, of Adadelta
        if name in group:
            options[name] = float(group[name]) ** share
    beta = float(group.get("momentum") or 0.0)
    if "share" in group:  # LARS
        return {**options, "share": share}
    if beta:
        options["momentum"] = 0.0
        if kind == "rmsprop":  # its momentum is a sum that begins with 0, and contributions are means
            rate = share * (1 - beta ** (_steps(momentum) + 1)) / (1 - beta)
    if "lr_decay" in group:  # Adagrad, whose sum of squares grows by `share` of a square: see `shared_step`
        rate = share**0.5
    options["lr"] = float(group["lr"]) * rate
    return options


def _steps(momentum: WorkerMomentum) -> float:
    return max((float(state.get("step", 0.0)) for state in momentum.optimizer.state.values()), default=0.0)


@contextmanager
def shared_step(
    momentum: WorkerMomentum, parameters: Sequence[Tensor], mean: Flat, shared: SharedOptions
) -> Iterator[None]:
    """Prepare and complete one step of the plain class on `mean`, which is in `.grad` of the used `parameters`.

    SGD needs neither.
    """
    share, state = shared.share, momentum.optimizer.state
    used = [place for place, p in enumerate(parameters) if p.grad is not None]
    steps = {}
    for place in used:
        own = state.get(parameters[place], {})
        if share != 1.0 and "step" in own:
            steps[place] = float(own["step"])
            put_step(own, steps[place] / share)
        if "sum" in own:  # Adagrad
            grad = parameters[place].grad
            assert grad is not None
            grad.mul_(share**0.5)
    _take_in_squares(momentum, parameters, mean, shared, used)
    yield
    for place in used:
        own = state.get(parameters[place], {})
        if share != 1.0 and "step" in own:
            put_step(own, steps.get(place, 0.0) + share)


def _take_in_squares(
    momentum: WorkerMomentum, parameters: Sequence[Tensor], mean: Flat, shared: SharedOptions, used: Sequence[int]
) -> None:
    """Correct the mean square before the step, so that it takes in the sent squares, not those of `mean`."""
    state = momentum.optimizer.state
    targets = [
        (place, key)
        for place in used
        for key in _SQUARES
        if key in state.get(parameters[place], {})
        and "grad_avg" not in state[parameters[place]]
        and shared.energies[place] > 2 * TINY
    ]
    if not targets or momentum.kind not in ("adam", "nadam", "rmsprop"):
        return
    decay_of = {
        p: float(group["betas"][1] if "betas" in group else group["alpha"])
        for group in momentum.optimizer.param_groups
        for p in group["params"]
    }
    numbers = full_segments(mean)
    first = numbers[targets[0][0]]
    if first.device.type != "cpu" and momentum.sums is list:
        fades_of = [decay_of[parameters[place]] for place, _ in targets]
        _take_in_on_device(
            [local(state[parameters[place]][key]) for place, key in targets],
            [numbers[place] for place, _ in targets],
            torch.tensor([shared.energies[place] for place, _ in targets]),
            torch.tensor([(1 - fades) / fades for fades in fades_of]),
        )
        return
    with torch.no_grad():
        lengths = values_of([torch.linalg.vector_norm(numbers[place]) for place, _ in targets])
        squares = momentum.sums([length**2 for length in lengths])
        for (place, key), total in zip(targets, squares, strict=True):
            if total > 0:
                p, x = parameters[place], numbers[place]
                fades = decay_of[p]  # the option in force is that of this step: `share` is in it already
                square = local(state[p][key])
                x = x.to(square.dtype)
                factor = max(LEAST, shared.energies[place] / total)
                square.addcmul_(x, x.conj(), value=(1 - fades) / fades * (factor - 1))


def _take_in_on_device(squares: Sequence[Tensor], numbers: Sequence[Tensor], energies: Tensor, weights: Tensor) -> None:
    """Do as the loop of `_take_in_squares`, for tensors of one GPU, which is not waited for."""
    with torch.no_grad():
        totals = torch.stack(torch._foreach_norm(list(numbers))).float().square()
        ratios = to_device(energies, totals) / totals.where(totals > 0, 1.0)
        values = to_device(weights, totals) * (ratios.clamp(min=LEAST) - 1)
        for square, x, value in zip(squares, numbers, values.where(totals > 0, 0.0).unbind(), strict=True):
            x = x.to(square.dtype)
            square.add_(x * x.conj() * value)


def put_step(state: dict[str, Any], count: float) -> None:
    """Write the number of steps into an optimizer's state of a parameter."""
    if isinstance(state["step"], Tensor):
        state["step"].fill_(count)
    else:
        state["step"] = count
