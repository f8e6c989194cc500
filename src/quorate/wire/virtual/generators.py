"""The process's random generators, for which every virtual worker has states of its own.

torch, numpy and python each have one default generator per process. Otherwise the draws of a worker would depend
on the one that ran before. So the states are exchanged whenever the baton is passed: 1 us for torch, 1 us for numpy, 14
us for python. For numpy it is 50 us if it drew since, because a pending half of a pair of normal numbers must be kept
too.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any, NamedTuple

import numpy as np
import torch

from quorate.core.seeded_bits import seeded_bits

_KEY_WORDS = 624  # of a Mersenne twister's state; its position follows them
_numpy: Any = np.random  # of which numpy's types leave out two functions
_legacy: Any = np.random.mtrand._rand


class Mark(NamedTuple):
    """The part of a Mersenne twister that every draw and every seed changes."""

    position: int
    words: tuple[int, int, int]


class Generators:
    """The states of one virtual worker's default generators, while it does not run."""

    def __init__(self, seed: int) -> None:
        """Make the states after `torch.manual_seed`, `numpy.random.seed` and `random.seed`."""
        self._torch = torch.Generator().manual_seed(seed).get_state()
        self._python = random.Random(seed).getstate()
        self._numpy: Any = seeded_bits(seed)
        self._pending_normal: dict[str, Any] | None = None
        self._mark: Mark | None = None

    def load(self) -> None:
        """Give these states to the process's generators."""
        torch.default_generator.set_state(self._torch)
        random.setstate(self._python)
        _numpy.set_bit_generator(self._numpy)
        if self._pending_normal is not None:
            _legacy.set_state(self._pending_normal)
        self._mark = _mark(self._numpy)

    def save(self) -> None:
        """Keep the states of the process's generators."""
        self._torch = torch.default_generator.get_state()
        self._python = random.getstate()
        self._numpy = _numpy.get_bit_generator()
        mark = _mark(self._numpy)
        if mark is None or mark != self._mark or self._pending_normal is not None:
            state = _legacy.get_state(legacy=False)
            self._pending_normal = state if state["has_gauss"] else None


def _mark(bits: Any) -> Mark | None:
    if type(bits) is not np.random.MT19937:
        return None
    words = (ctypes.c_uint32 * (_KEY_WORDS + 1)).from_address(bits.ctypes.state_address)
    return Mark(words[_KEY_WORDS], (words[1], words[2], words[3]))
