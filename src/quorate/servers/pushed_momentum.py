"""Momentum that a worker keeps of its own gradients before it pushes them to servers, which step without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat, pack
from quorate.replica.replica import Replica

_OFF = {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0}


class PushedMomentum:
    """That of SGD, as in DANA-Slim (Hakimi et al. 2019, Algorithm 5): v <- m v + g, and m v + g is pushed, so that what
    is read is where the momentum of all leads next. Weight decay is in g.

    Cost: a vector per worker, and three passes per step.
    """

    def __init__(self, replica: Replica) -> None:
        groups = replica.optimizer.param_groups
        if replica.plain is not torch.optim.SGD or any(group["dampening"] or group["maximize"] for group in groups):
            raise ConfigurationError(
                'momentum="worker" is for torch.optim.SGD without dampening and maximize; leave it at "server" for '
                f"{replica.plain.__name__}"
            )
        self._replica = replica
        self._kept = dict[int, Tensor]()

    def of(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """What is pushed for these, which are of the trained parameters."""
        groups = {id(p): group for group in self._replica.optimizer.param_groups for p in group["params"]}
        found: list[Tensor | None] = []
        for p, grad in zip(self._replica.trained, gradients, strict=True):
            found.append(None if grad is None else self._ahead(p, grad.detach(), groups[id(p)]))
        return found

    def _ahead(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> Tensor:
        decays, beta = float(group["weight_decay"]), float(group["momentum"])
        given = grad.add(p.detach(), alpha=decays) if decays else grad
        if not beta:
            return given
        kept = self._kept.get(id(p))
        kept = self._kept[id(p)] = given.clone() if kept is None else kept.mul_(beta).add_(given)
        return given.add(kept, alpha=beta)

    @property
    def kept(self) -> Flat | None:
        """The momenta, as a vector over the parameters; None before the first."""
        if not self._kept:
            return None
        found = Flat.zeros(self._replica.layout)
        pack([self._kept.get(id(p)) for p in self._replica.trained], found)
        return found

    @kept.setter
    def kept(self, value: Flat | None) -> None:
        self._kept.clear()
        if value is not None:
            for p, x in zip(self._replica.trained, value.segments(), strict=False):
                self._kept[id(p)] = x.to(p.dtype, copy=True)

    @staticmethod
    def without(options: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The options of the servers."""
        return [{**group, **_OFF} for group in options]
