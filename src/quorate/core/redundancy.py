"""Batches that several workers compute, so that some of their messages may be wrong, or missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Redundancy:
    """The redundancy of a strategy among some workers; by default each worker computes batches of its own."""

    groups: int = 0
    """Number of groups of neighbouring ranks that compute the same batches; 0: each worker has its own."""
    batches: int = 1
    """Batches that a worker computes in a step: its own, and those of the next `batches` - 1 ranks, in a ring."""
    wrong: int = 0
    """Number of workers of a group, or of all where there are no groups, that may send wrong vectors."""
    decides: Literal["all", "those that can"] = "all"
    """Whether a group without a majority is an error, or is left out."""
    by_round: bool = False
    """Whether the batch of a step follows from its round, as late workers are not waited for."""

    @property
    def is_there(self) -> bool:
        """Whether any batch is computed twice."""
        return self.groups > 0 or self.batches > 1

    def group_of(self, rank: int, size: int) -> int:
        """The group of a worker among `size`; groups differ in size by at most one."""
        return rank * self.groups // size

    def members(self, group: int, size: int) -> list[int]:
        """The ranks of a group, in order."""
        return [rank for rank in range(size) if self.group_of(rank, size) == group]
