"""The points themselves: row i is a pure function of the plane and i, whoever draws it, in whatever order."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Plane:
    """y = w·x + b + noise, with standard normal w, b and x.

    Numbers come from numpy's Philox, a generator that is a function of a key and a counter: the key is `seed`, and each
    row has a stretch of 2¹⁹² counts to itself (the first one is the plane's). A row of 8,192 takes about 0.1 ms.
    """

    features: int
    noise: float
    """Standard deviation of what is added to the targets."""
    seed: int
    """From 0 to 2⁶⁴ − 1."""

    @cached_property
    def coefficients(self) -> Floats:
        """w and then b: (features + 1,)."""
        return _at(self.seed, 0).standard_normal(self.features + 1, dtype=np.float32)

    def draw(self, row: int, inputs: Floats) -> float:
        """Write x of `row` (from 0) into `inputs` (features,), and return y."""
        normal = _at(self.seed, row + 1)
        noise = self.noise * normal.standard_normal(dtype=np.float32)
        normal.standard_normal(out=inputs, dtype=np.float32)
        # Not a dot product: its bits may depend on the number of threads.
        exact = np.multiply(inputs, self.coefficients[:-1], dtype=np.float64).sum()
        return float(exact + self.coefficients[-1] + noise)

    def rows(self, numbers: list[int]) -> tuple[Floats, Floats]:
        """x (n, features) and y (n,) of these rows."""
        inputs = np.empty((len(numbers), self.features), np.float32)
        targets = np.array([self.draw(row, inputs[place]) for place, row in enumerate(numbers)], np.float32)
        return inputs, targets


class _Own(threading.local):
    """Every thread sets the counter of a generator of its own: one plane may be drawn from by several at once."""

    def __init__(self) -> None:
        self.philox = np.random.Philox(key=0)


_OWN = _Own()


def _at(seed: int, stretch: int) -> np.random.Generator:
    """A generator that begins where the stretch does: setting the state takes 2 µs, a new Philox 15."""
    state: Any = _OWN.philox.state
    state["state"]["key"][:] = (seed, 0)
    state["state"]["counter"][:] = (0, 0, 0, stretch)
    state.update(buffer_pos=4, has_uint32=0, uinteger=0)  # nothing is left over from the row before
    _OWN.philox.state = state
    return np.random.Generator(_OWN.philox)
