"""A vector in pieces that fit into a processor's cache: several passes over each are faster than over all of it.

Their results also fit into memory that is already in use: the system provides new memory of some megabytes page by
page, which takes longer than a pass. On other devices a vector is one piece.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

NUMBERS = 1 << 18
"""Numbers of a piece, which are full bytes for any bits of a number."""


def pieces(numel: int, device: torch.device, *, of: int = 1) -> Iterator[slice]:
    """Yield slices of `numel` rows of `of` numbers each, in order; none where there are no rows."""
    step = max(1, NUMBERS // max(1, of)) if device.type == "cpu" else max(1, numel)
    for begin in range(0, numel, step):
        yield slice(begin, min(numel, begin + step))
