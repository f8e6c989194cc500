"""numpy's legacy generator in the state after a seed, distinguishable from one that a script has seeded."""

from __future__ import annotations

from typing import Any

import numpy as np


def seeded_bits(seed: int) -> np.random.MT19937:
    """A bit generator in the state after `numpy.random.seed(seed)`.

    Its `seed_seq` is not None, whatever is drawn; `numpy.random.seed` makes it None.
    """
    bits = np.random.MT19937(0)
    state: Any = np.random.RandomState(seed % 2**32).get_state(legacy=False)
    bits.state = state
    return bits
