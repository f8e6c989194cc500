"""What a reducer is: the protocol that forms one sum of all workers' vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from quorate.core.contracts import Wire, Work
from quorate.wire.work import Together

if TYPE_CHECKING:
    from torch import Tensor

    from quorate.aggregation.outcome import Outcome
    from quorate.core.vectors import Flat, Layout


class Reducer(ABC):
    """The sum of what all workers hand in, formed in place, part by part.

    A sum begins with the first `part_ready` since the last `start`. Parts travel as they are ready, and a sum is whole
    with `start`, which all workers call equally often.
    """

    def __init__(self, layout: Layout, wire: Wire) -> None:
        self.layout, self.wire = layout, wire
        self.counted = wire.size
        """Workers whose contributions are in a sum."""
        self.spending: Callable[[Literal["encode", "decode"]], AbstractContextManager[Any]] = lambda on: nullcontext()
        """Around what is spent on that; whoever measures it sets this."""
        self._under_way: dict[int, Work[Any]] = {}

    @property
    def state(self) -> Any:
        """What it remembers from one sum to the next: a dataclass whose fields say their law (`core.resize`), or None;
        as it is behind the newest sum, which counts."""
        return None

    @property
    def outcome(self) -> Outcome | None:
        """What became of the newest sum; None where everything counts in it."""
        return None

    def weighs(self, weight: float) -> None:  # noqa: B027  (most do not need it)
        """The vectors that this worker hands in from here on come times `weight`, above 0, over `divisor`."""

    @abstractmethod
    def part_ready(self, part: int, x: Tensor) -> None:
        """Launch the exchange of one part; never waits. Parts are launched in order, each once per `start`."""

    def start(self, x: Flat, kept: Callable[[], Flat] | None = None) -> Work[Flat]:
        """Launch what `part_ready` has not, and return the sum of all; it is written into `x`. `kept` is not needed."""
        for part, tensor in enumerate(x.parts):
            if part not in self._under_way:
                self.part_ready(part, tensor)
        works, self._under_way = self._under_way, {}
        return Together(
            [works[part] for part in range(len(x.parts))], lambda found: self._summed(x, found), self.wire.clock
        )

    def _summed(self, x: Flat, found: Sequence[Any]) -> Flat:
        """`x` with the sum in it, from what the works of its parts have given."""
        return x

    def kept(self, x: Flat) -> Callable[[], Flat]:
        """What `start` takes as `kept` for a vector that the sum is written into; never asked for here."""
        return lambda: x

    def abandon(self, x: Flat) -> Work[list[Any]]:
        """What `part_ready` has launched since the last `start`, as one work: no sum comes of it, and `x` goes into one
        that is formed by messages instead."""
        works, self._under_way = self._under_way, {}
        return Together(list(works.values()), lambda parts: parts, self.wire.clock)

    @abstractmethod
    def again(self, part: int, x: Tensor) -> Work[Tensor]:
        """Sum one part of the newest sum once more, into `x`, as if it had not been summed before."""

    def divisor(self, size: int) -> float:
        """By what each of `size` workers divides its vector, times its weight, before it hands it in: by their number,
        so that a sum is no longer than the vectors; 1 where vectors are looked at one by one, in their own unit."""
        return float(size)

    def factor(self, size: int, weight: float) -> float:
        """What a sum is to be multiplied by to be the mean, where each vector came times its weight over `divisor`, and
        `weight` is the sum of these weights, above 0."""
        return size / weight

    @abstractmethod
    def wire_bytes(self, size: int) -> int | None:
        """Bytes one worker sends for one sum among `size` workers; None where that depends on the numbers."""

    # -- for sums that are formed anew by messages (`means.fault_tolerant_sum`)

    def message(self, x: Flat) -> tuple[Tensor, ...]:
        """What this worker gives to the newest sum, whose contribution is `x`, when all is sent to everyone."""
        return x.parts

    def sum_of(
        self, found: Sequence[tuple[Tensor, ...]], ranks: Sequence[int], hosts: Sequence[int], like: Flat
    ) -> Flat:
        """The sum of such messages of `ranks`, on `hosts`; laid out as `like`, in new memory."""
        from quorate.core.vectors import Flat
        from quorate.wire.exchange import sum_in_order

        columns = zip(like.parts, *found, strict=True)
        return Flat(
            [sum_in_order([x.to(into.device) for x in all_], list(hosts)) for into, *all_ in columns], like.layout
        )

    def follows(self, before: Reducer) -> None:  # noqa: B027  (most remember nothing)
        """Take over what `before` remembers, which sums no more: other parameters are trained than it was for."""


class InParts(Reducer):
    """A reducer that sums every part unchanged, each by itself and in place; all workers give equal parts in order."""

    @abstractmethod
    def _sum(self, x: Tensor) -> Work[Tensor]:
        """Launch the sum of `x`, written into `x` itself; never waits."""

    def part_ready(self, part: int, x: Tensor) -> None:
        self._under_way[part] = self._sum(x)

    def again(self, part: int, x: Tensor) -> Work[Tensor]:
        return self._sum(x)
