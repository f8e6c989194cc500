"""AdaScale: SGD whose rate depends on how much the workers' gradients differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from quorate.core.local_tensor import local
from quorate.optim.by_layers import at_least, dense_gradient


@dataclass(frozen=True)
class Spread:
    """Estimates from the gradients of a step, or their means over several steps.

    `variance` is that of one worker's gradient (summed over its numbers), `square` the squared norm of the gradient
    without noise.
    """

    variance: float
    square: float

    def gain(self, workers: int) -> float:
        """Return (variance + square) / (variance / workers + square), from 1 to `workers`; 1 where both are unknown."""
        least = self.variance / workers + self.square
        return max(1.0, min(float(workers), (self.variance + self.square) / least)) if least > 0 else 1.0


def spread_of(mean_square: float, square_of_mean: float, workers: int) -> Spread:
    """Return unbiased estimates, which may be below 0, for two workers or more.

    `mean_square` is the mean over the workers of their gradients' squared norms, `square_of_mean` the squared norm of
    their mean gradient.
    """
    variance = (mean_square - square_of_mean) * workers / (workers - 1)
    return Spread(variance, square_of_mean - variance / workers)


class AdaScale(Optimizer):
    """AdaScale SGD: Johnson, Agrawal, Gu, Guestrin 2020, arXiv 2007.05105, Algorithm 1 and section 3.

    With g the mean gradient of S workers, each step at rate eta times the gain r:

        r = (sigma2 + mu2) / (sigma2 / S + mu2)                      1 where workers agree, S where they are all noise
        v <- momentum v + g + weight_decay w                         w <- w - eta r v

    sigma2 and mu2 are separate running means of the unbiased estimates (`spread_of`). A step counts as r steps of one
    worker: a scheduler by `quorate.schedule` advances by r batches, so that a schedule for one worker holds. `gain` is
    the newest r; it is in the parameter groups, and so in checkpoints.

    `quorate.distribute` lets workers exchange the squared norms of their gradients, under strategies that form the mean
    gradient of all (`all-reduce`). Not distributed, or in a world of one, it is SGD.

    Args:
        params: As for torch's optimizers.
        lr: eta, the rate of a single worker; it must not be scaled.
        momentum: The factor of v in each step.
        weight_decay: The factor of the weights in the update.
        smoothing: The weight of the past in the running means; None: max(0, 1 - S / 1000).

    Raises:
        ConfigurationError: A number is out of range.

    Cost beyond SGD: two passes over the gradient, and a sum of one number, in each step.

    Example:
        >>> optimizer = quorate.optim.AdaScale(model.parameters(), lr=0.1, momentum=0.9)
        >>> optimizer = quorate.distribute(optimizer, model)
        >>> optimizer.gain
        1.0
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        smoothing: float | None = None,
    ) -> None:
        at_least("lr", float(lr), 0.0, "AdaScale")
        at_least("momentum", momentum, 0.0, "AdaScale", below=1.0)
        at_least("weight_decay", weight_decay, 0.0, "AdaScale")
        if smoothing is not None:
            at_least("smoothing", smoothing, 0.0, "AdaScale", below=1.0)
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "smoothing": smoothing}
        super().__init__(params, {**defaults, "gain": 1.0, "variance": 0.0, "square": 0.0})

    @property
    def gain(self) -> float:
        """The gain of the newest step."""
        return float(self.param_groups[0]["gain"])

    def take_in(self, spread: Spread, workers: int) -> None:
        """Take in the estimates from the gradients of the coming step; called by `quorate.distribute`."""
        first = self.param_groups[0]
        smoothing = first["smoothing"]
        stays = max(0.0, 1 - workers / 1000) if smoothing is None else float(smoothing)
        kept = Spread(
            stays * first["variance"] + (1 - stays) * spread.variance,
            stays * first["square"] + (1 - stays) * spread.square,
        )
        positive = Spread(
            max(0.0, kept.variance), max(0.0, kept.square)
        )  # both began as 0: their ratio needs no correction
        new = {"variance": kept.variance, "square": kept.square, "gain": positive.gain(workers)}
        for group in self.param_groups:
            group.update(new)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step; return the loss of `closure`, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            rate = float(group["lr"]) * group["gain"]
            for p in group["params"]:
                if p.grad is not None:
                    local(p).sub_(self._update_of(p, group), alpha=rate)
        return loss

    def _update_of(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        update = dense_gradient(p, "AdaScale")
        if group["weight_decay"]:
            update = update.add(local(p), alpha=group["weight_decay"])
        if not group["momentum"]:
            return update
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        velocity: Tensor = local(state["momentum_buffer"]).mul_(group["momentum"]).add_(update)
        return velocity
