"""An attention pattern that begins dense, thins out, and is taken back where it costs loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from quorate.attention.pattern import AnyPattern, ChangingPattern, Pattern, pattern_of
from quorate.attention.patterns import Dense
from quorate.core.errors import ConfigurationError
from quorate.core.telling import tell
from quorate.launch.worker.join import join
from quorate.launch.worker.recording import log
from quorate.wire import current


class CheckedPattern(ChangingPattern):
    """A pattern of sparse attention whose loss is compared with that of dense attention every few steps.

    Pass it as `pattern`, and call `step` after each step of the optimizer. A check computes the loss of one batch
    twice, without gradients and with the same random numbers: with the pattern, and with dense attention. All workers
    take the mean of both losses. Records and the report get them as `attention_loss`, `dense_attention_loss`,
    `attention_gap` and `attention_taken_back`. Where the gap exceeds `limit`, attention is dense from then on, on all
    workers.

    Args:
        pattern: A pattern, or patterns by the first step at which each counts, such as {0: "dense", 500: "longformer"}.
        every: Steps between two checks.
        limit: The largest tolerated share by which the loss may exceed that of dense attention; None: any.

    Raises:
        ConfigurationError: There is no such pattern, no pattern counts from step 0, or a number is out of range.

    Cost: two forward passes in one of `every` steps, and one message of two numbers.

    Example:
        >>> pattern = quorate.CheckedPattern({0: "dense", 500: "longformer"}, every=100, limit=0.01)
        >>> pattern.in_force
        Dense(block=64)
    """

    def __init__(
        self, pattern: AnyPattern | Mapping[int, AnyPattern], *, every: int = 100, limit: float | None = 0.02
    ) -> None:
        schedule = pattern if isinstance(pattern, Mapping) else {0: pattern}
        if min(schedule, default=1) != 0:
            raise ConfigurationError(f"patterns begin at the steps {sorted(schedule)}; the first must begin at step 0")
        if every < 1:
            raise ConfigurationError(f"every is {every}; it must be a number of steps, at least 1")
        if limit is not None and limit < 0:
            raise ConfigurationError(f"limit is {limit}; it must be a share of the loss, 0 or more, or None")
        self._schedule: dict[int, Pattern] = {first: pattern_of(schedule[first]) for first in sorted(schedule)}
        self.every, self.limit = every, limit
        self.steps = 0
        self.gap: float | None = None
        """The share by which the loss exceeded that of dense attention in the last check."""
        self.is_taken_back = False
        self._is_dense = False

    @property
    def in_force(self) -> Pattern:
        """The pattern of this step; dense attention where the pattern was taken back."""
        last = next(pattern for first, pattern in reversed(self._schedule.items()) if first <= self.steps)
        return Dense(block=last.block) if self.is_taken_back or self._is_dense else last

    @contextmanager
    def dense(self) -> Iterator[None]:
        """Within the block attention is dense."""
        before, self._is_dense = self._is_dense, True
        try:
            yield
        finally:
            self._is_dense = before

    def step(self, loss_of: Callable[[], Tensor | float]) -> bool:
        """Count a step of the optimizer, and check the loss where a check is due; all workers call it.

        Args:
            loss_of: Computes the loss of one batch, with the attention of this pattern.

        Returns:
            Whether the pattern counts.
        """
        self.steps += 1
        if self.steps % self.every == 0 and not isinstance(self.in_force, Dense):
            self._check(loss_of)
        return not isinstance(self.in_force, Dense)

    def _check(self, loss_of: Callable[[], Tensor | float]) -> None:
        devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        with torch.no_grad():
            with torch.random.fork_rng(devices):
                sparse = float(loss_of())
            with self.dense(), torch.random.fork_rng(devices):
                dense = float(loss_of())
        is_joined = current.place() is not None
        if is_joined:
            means = join().mean({"sparse": sparse, "dense": dense})
            sparse, dense = means["sparse"], means["dense"]
        self.gap = gap = (sparse - dense) / max(abs(dense), 1e-12)
        self.is_taken_back = self.limit is not None and (gap > self.limit or not math.isfinite(gap))
        if is_joined:
            taken_back = float(self.is_taken_back)
            log(
                attention_loss=sparse,
                dense_attention_loss=dense,
                attention_gap=gap,
                attention_taken_back=taken_back,
            )
        if self.is_taken_back and (not is_joined or join().is_first):
            tell(
                f"sparse attention is taken back after step {self.steps}: its loss is {sparse:.4g}, and that of "
                f"dense attention {dense:.4g}, a difference of {gap:.2%} where {self.limit:.2%} is the limit\n"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps, the last gap, and whether the pattern was taken back."""
        return {"steps": self.steps, "gap": self.gap, "is_taken_back": self.is_taken_back}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict()`."""
        self.steps, self.gap, self.is_taken_back = state["steps"], state["gap"], bool(state["is_taken_back"])
