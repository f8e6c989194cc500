"""Steps of strategies in which workers compute the same batches: groups, codes, and combinations of gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quorate.aggregation.cyclic_code import cyclic_code
from quorate.core.errors import ConfigurationError, Mismatch
from quorate.core.redundancy import Redundancy
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat

_BARREN = 3
"""Steps without an update until that is an error: one may come of a worker that was stopped for a moment."""


def check_redundancy(s: int | None) -> None:
    """Raise `ConfigurationError` for a number that is none."""
    if s is not None and s < 0:
        raise ConfigurationError(f"s is {s}; it must be a number of workers (at least 0)")


def in_groups(name: str, s: int | None, each: int, size: int, **more: Any) -> Redundancy:
    """Groups of at least `each` s + 1 workers that compute the same batch; s None: 1 where there are enough.

    Raises `ConfigurationError` where there are too few for s.
    """
    wanted = _bearable(name, s, each, size)
    return Redundancy(groups=size // (each * wanted + 1), wrong=wanted, **more)


def cyclic_among(name: str, s: int | None, each: int, size: int, **more: Any) -> Redundancy:
    """Each worker computes `each` s + 1 batches; s None: 1 where there are enough workers."""
    wanted = _bearable(name, s, each, size)
    return Redundancy(batches=each * wanted + 1, wrong=wanted, **more)


def _bearable(name: str, s: int | None, each: int, size: int) -> int:
    most = (size - 1) // each
    if s is not None and s > most:
        raise ConfigurationError(
            f"{name} with s={s} computes each batch {each * s + 1} times, and there are {size} workers; s is from 0 "
            f"to {most}"
        )
    return min(1, most) if s is None else s


@dataclass
class CodedSteps:
    """A combination of gradients under way."""

    code: Flat | None = kept("own", default=None)
    """The code of the batches of this step so far; None before the first."""
    computed: int = kept("own", default=0)
    """How many these are."""
    barren: int = kept("drop", default=0)
    """Steps in turn that brought no update."""

    def added(self, worker: Worker, known: Redundancy) -> Flat | None:
        """The gradient in `.grad` by what the code says; the combination, where it was the step's last batch."""
        share = cyclic_code(worker.size, known.batches - 1).coefficients(worker.rank)[self.computed]
        gradient = worker.gradient.mul_(share)
        self.code = gradient if self.code is None else self.code.add_(gradient)
        self.computed += 1
        if self.computed < known.batches:
            return None
        code, self.code, self.computed = self.code, None, 0
        return code

    def saw(self, updates: int) -> None:
        """So many updates have come in a step. Raises `Mismatch` where rounds bring none any more: more are missing
        than the code bears."""
        self.barren = 0 if updates else self.barren + 1
        if self.barren >= _BARREN:
            raise Mismatch(
                f"the rounds of {self.barren} steps in turn had too few workers to decode a mean: more have died, "
                "or are late, than the code tolerates"
            )
