"""Files that every worker has for itself, as parts of one dataset on different hosts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Dataset


class OwnFiles(Dataset[Any]):
    """The examples of all workers, in order of rank, of which this one can read its own. `read` returns one of these by
    its number among them. `shard` gives each worker its own examples."""

    def __init__(self, read: Callable[[int], Any], rank: int, counts: Sequence[int]) -> None:
        self._own, self._rank = read, rank
        self.ends = tuple(itertools.accumulate(counts))
        """The number of the examples of each worker and those before it, by rank."""

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, number: int) -> Any:
        begin = self.ends[self._rank - 1] if self._rank else 0
        if not begin <= number < self.ends[self._rank]:
            raise IndexError(
                f"rank {self._rank} has the examples from {begin} to before {self.ends[self._rank]}, and not {number}"
            )
        return self._own(number - begin)
