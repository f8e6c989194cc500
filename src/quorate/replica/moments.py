"""The moments of Adam, AdamW and LAMB, and steps of these optimizers by a momentum that several workers have agreed on.

Such a step is made by the user's own class, so that its decay, its trust ratios, its implementation and its hooks stay.
It gets gradients of 0 and moments that its own decay turns into the ones that are meant:

    exp_avg = m / (beta1 (1 - beta1^t)),  exp_avg_sq = v' / beta2,  step = a number at which corrections are 1

with v' the variance, corrected for its beginning with 0. After the step `exp_avg` is m, `exp_avg_sq` is the tensor that
it was, to the bit, and `step` is t. Memory: three vectors during a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local
from quorate.core.moments import AgreedMomentum, Moments
from quorate.core.vectors import Flat
from quorate.optim.lamb import LAMB
from quorate.replica.shared_step import put_step
from quorate.replica.worker_momentum import AVERAGE, is_decoupled

SQUARES = "exp_avg_sq"
_MANY = float(1 << 30)
"""A number of steps after which averages that began with 0 need no correction."""


class MomentsOfReplica:
    """The moments of `trained` parameters; implements `core.own_replica.Moments`."""

    def __init__(
        self,
        optimizer: Optimizer,
        plain: type[Optimizer],
        trained: Callable[[], Sequence[Parameter]],
        blank: Callable[[], Flat],
    ) -> None:
        self._optimizer, self._plain, self._trained, self._blank = optimizer, plain, trained, blank

    def check(self) -> None:
        for group in self._optimizer.param_groups:
            if not float(group["betas"][0]):
                raise ConfigurationError(f"{self._plain.__name__} has betas[0] = 0, so there is no momentum to encode")
            if any(p.is_complex() for p in group["params"]):
                raise ConfigurationError("momenta of complex parameters are not encoded; take their real view")
            if group.get("amsgrad"):
                raise ConfigurationError("amsgrad keeps the largest variance, and here variances freeze; leave it out")

    @property
    def steps(self) -> int:
        steps = [float(own["step"]) for p in self._trained() if (own := self._state_of(p)) is not None]
        return int(min(steps, default=0.0))

    @property
    def memory(self) -> int:
        return max(math.ceil(1 / (1 - float(group["betas"][1])) - 1e-6) for group in self._optimizer.param_groups)

    def momentum_after(self, gradient: Flat) -> Flat:
        momentum = self._blank()
        with torch.no_grad():
            numbers = zip(self._trained(), self._groups(), gradient.segments(), momentum.segments(), strict=True)
            for p, group, g, m in numbers:
                if (own := self._state_of(p)) is None:
                    continue
                first = float(group["betas"][0])
                m.copy_(self._decayed(p, group, g)).mul_(1 - first).add_(local(own[AVERAGE]), alpha=first)
        return momentum

    def _decayed(self, p: Parameter, group: dict[str, Any], g: Tensor) -> Tensor:
        """Return the gradient that the optimizer's moments take in."""
        g = g.neg() if group.get("maximize") else g
        if group["weight_decay"] and not is_decoupled(group, self._plain):
            g = g.add(local(p), alpha=float(group["weight_decay"]))
        return g

    def variance_norm(self, squares: int | None = None) -> float:
        norms = [
            local(own[SQUARES]).abs().sum().double() / _left(group, own, squares)
            for p, group in zip(self._trained(), self._groups(), strict=True)
            if (own := self._state_of(p)) is not None
        ]
        return float(torch.stack(norms).sum()) if norms else 0.0

    def units(self, squares: int | None = None) -> Flat:
        units = self._blank()
        for p, group, unit in zip(self._trained(), self._groups(), units.segments(), strict=True):
            if (own := self._state_of(p)) is None:
                continue
            variance = local(own[SQUARES]).abs().double()
            count, total = (variance > 0).sum(), variance.sum() / _left(group, own, squares)
            unit.copy_((variance > 0) * (total / count.clamp(min=1)).sqrt())
        return units

    def trust_ratios(self) -> list[float]:
        ratios = self._optimizer.trust_ratios() if isinstance(self._optimizer, LAMB) else {}
        return [ratios.get(p, 1.0) for p in self._trained()]

    def correct_variance(self, squares: int | None = None) -> None:
        for p, group in zip(self._trained(), self._groups(), strict=True):
            if (own := self._state_of(p)) is not None:
                local(own[SQUARES]).div_(_left(group, own, squares))

    def take_in_squares(self, gradient: Flat) -> None:
        """Make the variance beta2 v + (1 - beta2) g^2."""
        with torch.no_grad():
            for p, group, x in zip(self._trained(), self._groups(), gradient.segments(), strict=True):
                if (own := self._state_of(p)) is not None:
                    second, variance = float(group["betas"][1]), local(own[SQUARES])
                    g = self._decayed(p, group, x).to(variance.dtype)
                    variance.mul_(second).addcmul_(g, g.conj(), value=1 - second)

    def has_state(self) -> list[bool]:
        """Return for each trained parameter whether the optimizer has moments of it."""
        return [self._state_of(p) is not None for p in self._trained()]

    @contextmanager
    def agreed(self, momentum: AgreedMomentum) -> Iterator[None]:
        """Let the step inside, whose gradients are 0, be one by `momentum` and the variance as it is."""
        if momentum.gradient is not None:
            self.take_in_squares(momentum.gradient)
        options = [{name: group[name] for name in ("lr", "weight_decay")} for group in self._optimizer.param_groups]
        kept = list[tuple[dict[str, Any], Tensor, Tensor, float]]()
        numbers = momentum.vector.segments()
        try:
            for p, group, x in zip(self._trained(), self._groups(), numbers, strict=True):
                if (own := self._state_of(p)) is not None:
                    first, second = map(float, group["betas"])
                    m, v, count = own[AVERAGE], own[SQUARES], float(own["step"]) + momentum.counted
                    kept.append((own, m, v, count))
                    corrected = 1.0 if momentum.squares is None else 1 - second**momentum.squares
                    own[AVERAGE] = (x / (first * (1 - first**count))).to(m.dtype)
                    own[SQUARES] = v / (second * corrected)
                    put_step(own, _MANY)
            for place, group in enumerate(self._optimizer.param_groups):
                if momentum.rates is not None:
                    group["lr"] = momentum.rates[place]
                if not is_decoupled(group, self._plain):
                    group["weight_decay"] = 0.0
            if momentum.ratios is not None and isinstance(self._optimizer, LAMB):
                self._optimizer.held = dict(zip(self._trained(), momentum.ratios, strict=True))
            yield
        finally:
            self._optimizer.__dict__.pop("held", None)
            for (own, m, v, count), x in zip(kept, self._with_state(numbers), strict=True):
                own[AVERAGE], own[SQUARES] = m, v
                m.copy_(x)
                put_step(own, count)
            for group, before in zip(self._optimizer.param_groups, options, strict=True):
                group.update(before)

    def _with_state(self, numbers: Sequence[Tensor]) -> list[Tensor]:
        return [x for x, has_state in zip(numbers, self.has_state(), strict=True) if has_state]

    def _groups(self) -> list[dict[str, Any]]:
        """Return the parameter group of each trained parameter."""
        group_of = {id(p): group for group in self._optimizer.param_groups for p in group["params"]}
        return [group_of[id(p)] for p in self._trained()]

    def _state_of(self, p: Parameter) -> dict[str, Any] | None:
        own = self._optimizer.state.get(p)
        return own if own and SQUARES in own else None


def _left(group: dict[str, Any], own: dict[str, Any], squares: int | None) -> float:
    """Return 1 less the share of the beginning, 0, that is left in a variance of so many squares."""
    return 1 - float(group["betas"][1]) ** (float(own["step"]) if squares is None else squares)


_: type[Moments] = MomentsOfReplica
