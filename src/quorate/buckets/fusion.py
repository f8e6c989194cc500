"""`Fusion`: how the tensors of a gradient share parts, as settings or a measurement say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fusion:
    """The size of parts, or their order and ends; without them `buckets.flat` decides.

    On CPUs no choice changes a bit of a sum: each number is added over the workers in the order of their ranks.
    """

    part_bytes: int | None = None
    """Bytes at which a part is full."""
    first_part_bytes: int | None = None
    """Bytes at which the first part is full."""
    order: tuple[str, ...] = ()
    """The names of all tensors in the order in which they are sent; empty: from the last one to the first."""
    ends: tuple[int, ...] = ()
    """The number of tensors up to the end of each part, in that order; empty: parts end where they are full."""

    def arguments(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of `buckets.flat.layout_of` for tensors of these names; of others no order is known."""
        sizes = {"part_bytes": self.part_bytes, "first_part_bytes": self.first_part_bytes}
        chosen: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
        if self.order and sorted(self.order) == sorted(names):
            numbers = {name: number for number, name in enumerate(names)}
            chosen |= {"order": [numbers[name] for name in self.order], "ends": self.ends}
        return chosen


BY_SIZE = Fusion()
"""Parts end where they are full, at the usual sizes."""
