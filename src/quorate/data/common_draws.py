"""Generators of a worker, which draw the same numbers on all workers until an optimizer is distributed.

Splits of data, orders of files and numbers of classes that a script draws before training must be equal everywhere;
dropout and augmentation must differ.
"""

from __future__ import annotations

import random
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from quorate.core.seeded_bits import seeded_bits

_WORDS = 624
"""The state size of a Mersenne twister, which is renewed after as many numbers."""
_MOST_STATES = 2048
"""States that are searched: 1.3 million numbers that Python's generator has drawn, 30 ms."""


class CommonDraws:
    """The common draws of one worker. Without `begin` it changes no generator."""

    def __init__(self) -> None:
        self.own = 0
        """The seed after `part`, of up to 63 bits."""
        self._common: int | None = None
        self._numpy_bits: np.random.BitGenerator | None = None

    def begin(self, common: int, own: int) -> None:
        """Seed the generators with `common`, so that `part` will seed them with `own`."""
        torch.manual_seed(common % 2**63)
        random.seed(common)
        np.random.set_bit_generator(seeded_bits(common))  # type: ignore[attr-defined]
        self.have_begun(common, own)

    def have_begun(self, common: int, own: int) -> None:
        """Do as `begin`, for generators that `common` has seeded before."""
        self._common, self.own = common, own % 2**63
        self._numpy_bits = np.random.get_bit_generator()  # type: ignore[attr-defined]

    def part(self) -> None:
        """Let this worker draw numbers of its own from now on, once; generators that the script has seeded are left
        alone."""
        if self._common is not None:
            self._seed(self.own, self._are_common(self._common))
            self._common = None

    def join(self, seed: int, own: int) -> None:
        """Draw the same numbers as other workers with the same `seed` and `own`. Generators that are still common to
        all workers stay so until `part`."""
        is_common = (False, False, False) if self._common is None else self._are_common(self._common)
        self.own = own
        self._seed(seed, (not is_common[0], not is_common[1], not is_common[2]))

    def _are_common(self, common: int) -> tuple[bool, bool, bool]:
        """Return whether the generators of torch, numpy and Python still follow from the common seed."""
        bits = np.random.get_bit_generator()  # type: ignore[attr-defined]
        return (
            torch.initial_seed() % 2**63 == common % 2**63,
            bits is self._numpy_bits and bits.seed_seq is not None,  # numpy.random.seed leaves none
            _has_come_from(common, random.getstate()[1][:-1]),
        )

    def _seed(self, seed: int, which: tuple[bool, bool, bool]) -> None:
        if which[0]:
            torch.manual_seed(seed)
        if which[1]:
            np.random.seed(seed % 2**32)
        if which[2]:
            random.seed(seed)


@lru_cache(maxsize=64)
def _has_come_from(seed: int, words: tuple[int, ...]) -> bool:
    """Return whether Python's generator reaches a state with these words from `seed`, within `_MOST_STATES` states."""
    begun = random.Random(seed).getstate()[1][:-1]
    if begun == words:
        return True
    bits = np.random.MT19937(0)
    bits.state = {"bit_generator": "MT19937", "state": {"key": np.array(begun, np.uint32), "pos": _WORDS}}
    first = _tempered(np.array(words[:3], np.uint64))
    step = 128
    for _ in range(0, _MOST_STATES, step):
        drawn = bits.random_raw(step * _WORDS).reshape(step, _WORDS)[:, :3]
        if bool((drawn == first).all(axis=1).any()):
            return True
    return False


def _tempered(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the output of a Mersenne twister for words of its state (Matsumoto and Nishimura, 1998)."""
    words = words ^ (words >> np.uint64(11))
    words = words ^ ((words << np.uint64(7)) & np.uint64(0x9D2C5680))
    words = words ^ ((words << np.uint64(15)) & np.uint64(0xEFC60000))
    tempered: NDArray[np.uint64] = words ^ (words >> np.uint64(18))
    return tempered
