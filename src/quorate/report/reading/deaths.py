"""Workers that died while the others went on: who, when, and how long the others stood still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from quorate.core.rows import Gone, Step


def standstill(death: Gone, steps: Mapping[int, Sequence[Step]]) -> float | None:
    """The longest time between the ends of two steps that lies around the noticing, of those that went on; seconds.

    None where nobody stepped on both sides of it.
    """
    longest = [
        late.end - early.end
        for rank, some in steps.items()
        if rank != death.rank
        for early, late in pairwise(some)
        if early.end <= death.time + 1.0 and late.end >= death.time - 1.0
    ]
    return max(longest, default=None)
