"""`InParts`: the common base of reducers that sum every part unchanged, each by itself."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from quorate.core.contracts import Work
from quorate.means.reducer import Reducer

if TYPE_CHECKING:
    from torch import Tensor


class InParts(Reducer):
    """The sum of what all workers hand in, formed in place; every worker hands in equal parts in the same order."""

    @abstractmethod
    def _sum(self, x: Tensor) -> Work[Tensor]:
        """Launch the sum of `x`, written into `x` itself; never waits."""

    def part_ready(self, part: int, x: Tensor) -> None:
        self._under_way[part] = self._sum(x)

    def again(self, part: int, x: Tensor) -> Work[Tensor]:
        return self._sum(x)
