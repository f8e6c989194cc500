"""How a vector is cut among workers of which each is to see to a piece; pure."""

from __future__ import annotations

import math

WHOLE_BYTES = 1 << 16
"""Of a tensor that is not cut: more messages, and a second hop, cost more than they save."""


def piece(numel: int, rank: int, size: int) -> slice:
    """The elements that `rank` of `size` sees to, in whole cache lines whatever the type."""
    width = math.ceil(numel / size / 64) * 64
    return slice(min(rank * width, numel), min((rank + 1) * width, numel))
