"""`Wrapped`: a reducer around another one; it changes some of its operations, and forwards the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from quorate.core.contracts import Work
from quorate.means.reducer import Measured, Reducer

if TYPE_CHECKING:
    from torch import Tensor

    from quorate.aggregation.outcome import Outcome
    from quorate.core.vectors import Flat


class Wrapped(Reducer):
    """The reducer `inner`, to which every operation is forwarded."""

    def __init__(self, inner: Reducer) -> None:
        super().__init__(inner.layout, inner.wire)
        self._inner, self.choice_notes = inner, inner.choice_notes

    def measure(self, spending: Measured) -> None:
        self._inner.measure(spending)

    @property
    def state(self) -> Any:
        return self._inner.state

    @property
    def outcome(self) -> Outcome | None:
        return self._inner.outcome

    def weighs(self, weight: float) -> None:
        self._inner.weighs(weight)

    def code(self, chosen: Mapping[str, Tensor] | None) -> None:
        self._inner.code(chosen)

    def retract(self) -> None:
        self._inner.retract()

    def uncoded(self) -> AbstractContextManager[None]:
        return self._inner.uncoded()

    def part_ready(self, part: int, x: Tensor) -> None:
        self._inner.part_ready(part, x)

    def start(self, x: Flat, kept: Callable[[], Flat] | None = None) -> Work[Flat]:
        return self._inner.start(x, kept)

    def header_of(self, sums: Flat) -> Tensor | None:
        return self._inner.header_of(sums)

    def abandon(self, x: Flat) -> Work[list[Any]]:
        return self._inner.abandon(x)

    def again(self, part: int, x: Tensor) -> Work[Tensor]:
        return self._inner.again(part, x)

    def divisor(self, size: int) -> float:
        return self._inner.divisor(size)

    def factor(self, size: int, weight: float) -> float:
        return self._inner.factor(size, weight)

    def wire_bytes(self, size: int) -> int | None:
        return self._inner.wire_bytes(size)

    def message(self, x: Flat) -> tuple[Tensor, ...]:
        return self._inner.message(x)

    def sum_of(
        self, messages: Sequence[tuple[Tensor, ...]], ranks: Sequence[int], hosts: Sequence[int], like: Flat
    ) -> Flat:
        return self._inner.sum_of(messages, ranks, hosts, like)

    def follows(self, before: Reducer) -> None:
        if isinstance(before, type(self)):
            self._inner.follows(before._inner)
