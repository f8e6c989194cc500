"""`Remembering`: the common base of reducers with memories that sum coded parts in a way of their own."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from quorate.core.contracts import Wire, Work
from quorate.core.vectors import Flat, Layout
from quorate.means.reducer import Reducer
from quorate.wire.work import Together


class Remembering(Reducer):
    """Of the parts in `own`; all others are summed by the wire's own all-reduce.

    What is remembered advances when the next sum begins: until then a part may be summed again, or the whole sum formed
    anew, as if it had not been summed before.
    """

    def __init__(self, layout: Layout, wire: Wire, own: Collection[int]) -> None:
        super().__init__(layout, wire)
        self._own_parts = frozenset(own)
        self._is_over = False
        """Whether the newest sum was started, so that the next part is of another one."""

    @abstractmethod
    def commit(self) -> None:
        """The newest sum counts, if there is one: remember what was left out of it."""

    @abstractmethod
    def _launched(self, part: int, x: Tensor) -> Work[Any]:
        """Launch the first exchange of one of the parts of its own; never waits."""

    @abstractmethod
    def _finish(self, into: Mapping[int, Tensor], found: Mapping[int, Any]) -> None:
        """Write the sums of these parts `into` them, from what their first exchanges have given; may wait."""

    def _begin(self) -> None:
        """A sum begins."""
        self.commit()

    def _first(self, part: int, x: Tensor) -> Work[Any]:
        return self._launched(part, x) if part in self._own_parts else self.wire.all_reduce(x)

    def part_ready(self, part: int, x: Tensor) -> None:
        if not self._under_way:
            self._begin()
        self._under_way[part] = self._first(part, x)

    def start(self, x: Flat, kept: Any = None) -> Work[Flat]:
        if not self._under_way:
            self._begin()
        found = super().start(x, kept)
        self._is_over = True
        return found

    def abandon(self, x: Flat) -> Work[list[Any]]:
        if not self._under_way:
            self._begin()
        self._is_over = True  # what was launched is given once more, by `message`
        return super().abandon(x)

    def again(self, part: int, x: Tensor) -> Work[Tensor]:
        def finish(found: list[Any]) -> Tensor:
            if part in self._own_parts:
                self._finish({part: x}, {part: found[0]})
            return x

        return Together([self._first(part, x)], finish, self.wire.clock)

    def _summed(self, x: Flat, found: Sequence[Any]) -> Flat:
        own = sorted(self._own_parts)
        self._finish({part: x.parts[part] for part in own}, {part: found[part] for part in own})
        return x


def is_finite(x: Tensor) -> bool:
    """Whether every number is. One pass, which adds up; a sum that is not finite is looked at again."""
    return math.isfinite(abs(x.sum().item())) or bool(torch.isfinite(x).all())
