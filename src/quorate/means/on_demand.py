"""`OnDemand`: sums in two phases of codes when a strategy asks for them, and dense sums otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quorate.means.dense import Dense
from quorate.means.reducer import Measured, Reducer
from quorate.means.two_phase import TwoPhase
from quorate.means.wrapped import Wrapped

if TYPE_CHECKING:
    from torch import Tensor


class OnDemand(Wrapped):
    """The reducer `coded` between calls of `code`, and dense sums before the first call, which leave its memory alone.

    All workers call `code` between the same two sums.
    """

    def __init__(self, coded: TwoPhase) -> None:
        super().__init__(coded)
        self._coded, self._dense = coded, Dense(coded.layout, coded.wire)
        self._inner: Reducer = self._dense

    def code(self, chosen: Mapping[str, Tensor] | None) -> None:
        self._inner = self._dense if chosen is None else self._coded
        self._coded.choose(dict(chosen or {}))

    @contextmanager
    def uncoded(self) -> Iterator[None]:
        before, self._inner = self._inner, self._dense
        try:
            yield
        finally:
            self._inner = before

    def measure(self, spending: Measured) -> None:
        self._coded.measure(spending)

    @property
    def state(self) -> Any:
        return self._coded.state

    def weighs(self, weight: float) -> None:
        self._coded.weighs(weight)

    def follows(self, before: Reducer) -> None:
        if isinstance(before, OnDemand):
            self._coded.follows(before._coded)
