"""The counts of the means that losses are, pass by pass: `optimizer.weight(count)`.

A user's loss is often a mean over as many terms as the batch has: tokens, valid labels, pixels. Where pass k has a mean
over n_k terms, and its gradient is g_k, the gradient of the joined batch is sum(n_k g_k) / sum(n_k), over all passes
and all workers. `.grad` therefore holds sum(n_k g_k) / u, for a unit u that changes from pass to pass, and the step has
the weight W = sum(n_k). Before a pass of n terms `.grad` is multiplied by u / n; then u = n.

Workers that share a replica in shards form sums inside the backward pass. There u stays as it is during a step, and the
loss of each worker is multiplied by S n / u, for S workers, before the pass.

Cost: a pass over the gradients for each backward pass after the first of a step, where counts differ. In shards each
backward pass sends one number to each worker of the replica.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real

import torch
from torch import Tensor
from torch.nn import Parameter

from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local

_SILENT = 1e-20
"""The weight of a step without any term where replicas are averaged: such a mean needs a weight above 0."""


def checked_count(count: object, name: str = "it") -> float:
    """Return a number of terms as a float; raises `ConfigurationError` unless it is finite and at least 0."""
    value = count.item() if isinstance(count, Tensor) and count.numel() == 1 else count
    if not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value) and float(value) >= 0:
        return float(value)
    shown = f"a tensor of the shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    raise ConfigurationError(
        "optimizer.weight() takes the number of terms that the loss is a mean of, a finite number of at least 0; "
        f"{name} is {shown}"
    )


class LossCounts:
    """The counts of the backward passes of one worker in one step, and the weight of the step that follows.

    It takes the place of `train.step_weight.StepWeight`, and has what that has.
    """

    varies = True

    def __init__(
        self,
        trained: Callable[[], Sequence[Parameter]],
        *,
        is_scaled: bool = False,
        averages_replicas: bool = False,
        shares: int = 1,
        joined: Callable[[float], float] | None = None,
    ) -> None:
        """
        Args:
            trained: Returns the parameters whose gradients these are.
            is_scaled: Whether the gradient itself is multiplied by its weight, as no mean has weights.
            averages_replicas: Whether means are of replicas.
            shares: The number of workers of the replica with a batch of their own.
            joined: Returns the sum of a count over them, who all call it. None: this worker has all of the replica.
        """
        self._trained, self.is_scaled, self._averages_replicas = trained, is_scaled, averages_replicas
        self._shares, self._joined = shares, joined
        self.total = 0.0
        """The number of terms in this step so far."""
        self.unit = 1.0
        """The divisor of the sum of counts times gradients in `.grad`."""
        self.loss_factor = 1.0
        """The factor of the losses of this pass."""
        self._next: float | None = None
        self._newest: float | None = None
        """The count of the newest pass of this step; None before the first."""
        self._full: float | None = None
        self._aside: list[Tensor | None] | None = None
        self.holds_parts = False
        """Whether this pass lets no part of the gradient be sent before its end, as it is dropped."""

    def note(self, count: object, full: object = None) -> None:
        """Take the count of the next backward pass, and of a full batch. Raises as `checked_count`."""
        self._next = checked_count(count)
        if full is not None:
            self._full = checked_count(full, "full")
            if not self._full:
                raise ConfigurationError("full of optimizer.weight() is the count of a full batch, which is above 0")
        if self.is_scaled:
            _ = self.full

    @property
    def full(self) -> float:
        """The count of a full batch of this replica, whose gradient counts 1. Raises `ConfigurationError`."""
        if self._full is None:
            raise ConfigurationError(
                "under this strategy a gradient counts as a share of a full batch. Say how many terms that has, "
                "as in optimizer.weight(tokens, full=4096)"
            )
        return self._full * self._shares

    @property
    def is_empty(self) -> bool:
        """Whether no loss of this step has had a term so far, so that its gradients were dropped."""
        return self._newest == 0 and not self.total

    # -- backward passes

    def of_step(self) -> float:
        """Begin a backward pass, and return the weight of this step including it.

        A pass without a count of its own belongs to the batch of the pass before it.
        """
        count, self._next = self._next, None
        is_new = count is not None
        if count is None:
            count = self._newest
        elif self._joined is None and all(p.grad is None for p in self._trained()):
            self.total = 0.0
        self._newest = count
        if count is not None and self._joined is None:
            if count and (self.total or not self.unit) and self.unit != count:
                self._scale(self.unit / count)
            self.unit = count or self.unit
            self.total += count if is_new else 0.0
        elif count is not None and self._joined is not None:
            of_all = self._joined(count) if is_new else 0.0
            if of_all and not self.unit:
                self._scale(0.0)
            self.unit = self.unit if self.total or not of_all else of_all
            self.total += of_all
            self.loss_factor = self._shares * count / self.unit if count else 0.0
        if self.is_scaled:
            return 1.0
        return max(self.total, _SILENT) if self._averages_replicas else self.total

    def put_aside(self) -> bool:
        """Begin a pass whose gradients are dropped, if its loss is a mean of nothing; return whether it is one."""
        if self._newest == 0 and self._joined is None:
            self._aside = [p.grad for p in self._trained()]
            for p in self._trained():
                p.grad = None
        return self._aside is not None

    def pass_ended(self) -> None:
        """Restore the gradients from before a pass that is dropped."""
        self.loss_factor = 1.0
        if self._aside is not None:
            aside, self._aside = self._aside, None
            for p, grad in zip(self._trained(), aside, strict=True):
                p.grad = grad

    def check_given(self) -> None:
        """Take the count of a gradient written without a pass. Raises `ConfigurationError` if it is unknown."""
        if self._next is not None:
            self.of_step()
        elif self._newest is None and any(p.grad is not None for p in self._trained()):
            raise ConfigurationError(
                "optimizer.weight() was called before the backward pass of an earlier step, and not in this one; call "
                "it before each backward pass that begins a batch, or never"
            )

    def agreed(self) -> None:
        """Note that `.grad` is the mean of all workers; none of it is this worker's if it had no term."""
        self.unit = self.total

    def settle(self) -> None:
        """Let `.grad` be the mean of this step so far; or, where it is scaled, that times its share of a full batch."""
        if self._newest is None:
            return
        unit = self.full if self.is_scaled else self.total
        if unit and self.unit != unit:
            self._scale(self.unit / unit)
            self.unit = unit

    def restart(self) -> None:
        """Begin a step, or a gradient that replaces the one so far."""
        self.total, self.unit, self._newest = 0.0, 1.0, None

    def _scale(self, factor: float) -> None:
        plain = list[Tensor]()
        with torch.no_grad():
            for p in self._trained():
                if p.grad is None:
                    continue
                if p.grad.grad_fn is not None:
                    p.grad = p.grad * factor
                elif p.grad.layout is torch.strided:
                    plain.append(local(p.grad))
                else:
                    p.grad.mul_(factor)
            if plain:
                torch._foreach_mul_(plain, factor)
