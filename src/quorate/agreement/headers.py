"""What travels with the vectors of all workers, behind their numbers, and is summed with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quorate.core.vectors import Flat, Layout

WEIGHT, ENDED, PAUSED, STOPPING, SAVING, VECTORS, VOTES, COUNTS = 0, 1, 2, 3, 4, 5, 6, 7
"""Places. From `COUNTS` on, for each parameter how many had something for it; then, for each part, how many changed it
after it had left; then, for each rank, whether it brought numbers that are not finite."""


def header_length(tensors: int, parts: int, max_size: int) -> int:
    """Elements of the header of a vector of so many tensors in so many parts, among at most `max_size` workers.

    There may be one more part than the tensors need: the one that the header is in.
    """
    return COUNTS + tensors + parts + 1 + max_size


def header_of(weight: float, used: Sequence[bool], layout: Layout) -> Tensor:
    """What travels with a vector besides its numbers: its weight, and which parameters it has something for."""
    header = torch.zeros(layout.header)
    header[WEIGHT] = weight
    header[COUNTS : COUNTS + len(used)] = torch.tensor(used, dtype=header.dtype)
    return header


def put_bad(header: Tensor, rank: int, size: int) -> None:
    """Note in a header that `rank` brought a gradient that is not finite."""
    header[header.numel() - size + rank] = 1.0


def bad_in(sums: Flat, size: int) -> list[int]:
    """Who has noted that."""
    return [rank for rank, n in enumerate(sums.header[-size:].tolist()) if n > 0]


def used_in(sums: Flat, count: int) -> list[bool]:
    """Which of `count` parameters any worker had something for."""
    return [n > 0 for n in sums.header[COUNTS : COUNTS + count].tolist()]
