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
from quorate.wire.work import Stages, Together


class Remembering(Reducer):
    """A reducer that sums the parts in `own` by itself; the wire's own all-reduce sums all others.

    The memory advances when the next sum begins: until then a sum may be repeated, in part or again, with the same
    memory.
    """

    def __init__(self, layout: Layout, wire: Wire, own: Collection[int]) -> None:
        super().__init__(layout, wire)
        self._own_parts = frozenset(own)
        self._is_over = False
        """Whether the newest sum was started, so that the next part belongs to another one."""

    @abstractmethod
    def commit(self) -> None:
        """Make the newest sum count, if there is one: advance the memory by what it left out."""

    @abstractmethod
    def _launched(self, part: int, x: Tensor) -> Work[Any]:
        """Launch the first exchange of a part in `own`; never waits."""

    @abstractmethod
    def _finish(self, into: Mapping[int, Tensor], results: Mapping[int, Any]) -> Stages[None] | None:
        """Write the sums of the parts in `own` into `into`, from the results of their first exchanges.

        Further exchanges are yielded, and not waited for, as another optimizer may wait for this worker meanwhile.
        """

    def _launched_together(self, parts: Mapping[int, Tensor]) -> dict[int, Work[Any]]:
        """Launch the first exchanges of several parts on a GPU, which is waited for at most once."""
        return {part: self._launched(part, x) for part, x in parts.items()}

    @property
    def _goes_together(self) -> bool:
        """Whether parts in `own` on a GPU are launched together at the end, as the host has to wait for their codes."""
        return False

    def _begin(self) -> None:
        self.commit()

    def _first(self, part: int, x: Tensor) -> Work[Any]:
        return self._launched_together({part: x})[part] if part in self._own_parts else self.wire.all_reduce(x)

    def part_ready(self, part: int, x: Tensor) -> None:
        if not self._under_way:
            self._begin()
        if not (part in self._own_parts and x.device.type != "cpu" and self._goes_together):
            self._under_way[part] = self._first(part, x)

    def start(self, x: Flat, kept: Any = None) -> Work[Flat]:
        if not self._under_way:
            self._begin()
        if x.parts[-1].device.type != "cpu" and self._goes_together:
            late = {part: x.parts[part] for part in sorted(self._own_parts) if part not in self._under_way}
            self._under_way |= self._launched_together(late)
        work = super().start(x, kept)
        self._is_over = True
        return work

    def abandon(self, x: Flat) -> Work[list[Any]]:
        if not self._under_way:
            self._begin()
        self._is_over = True  # `message` sends these parts once more
        return super().abandon(x)

    def again(self, part: int, x: Tensor) -> Work[Tensor]:
        def finish(results: list[Any]) -> Stages[Tensor]:
            if part in self._own_parts:
                yield from self._finish({part: x}, {part: results[0]}) or ()
            return x

        return Together([self._first(part, x)], finish, self.wire.clock)

    def _summed(self, x: Flat, results: Sequence[Any]) -> Stages[Flat]:
        own = sorted(self._own_parts)
        yield from self._finish({part: x.parts[part] for part in own}, {part: results[part] for part in own}) or ()
        return x


def is_finite_on_device(x: Tensor) -> Tensor:
    """Return whether every number is finite as a tensor on the device of `x`, which is not waited for."""
    return x.isfinite().all()


def is_finite(x: Tensor) -> bool:
    """Return whether every number is finite. One pass, which adds up; a non-finite sum takes a second one."""
    return math.isfinite(abs(x.sum().item())) or bool(torch.isfinite(x).all())
