"""The base class of reducers: protocols that form one sum of the vectors of all workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from quorate.core.contracts import Wire, Work
from quorate.wire.work import Stages, Together

if TYPE_CHECKING:
    from torch import Tensor

    from quorate.aggregation.outcome import Outcome
    from quorate.core.vectors import Flat, Layout


Measured = Callable[[Literal["encode", "decode"]], AbstractContextManager[Any]]
"""Returns a context that measures the time of what is inside."""


Note = Callable[[Mapping[str, str], str], None]
"""Takes the codec of each part, by its number, and the reason why it was chosen."""


class Reducer(ABC):
    """The sum of the vectors of all workers, formed in place, part by part.

    A sum begins with the first `part_ready` since the last `start`. Parts travel as they are ready, and a sum is
    complete with `start`, which all workers call equally often.
    """

    def __init__(self, layout: Layout, wire: Wire) -> None:
        self.layout, self.wire = layout, wire
        self.counted = wire.size
        """The number of workers whose contributions are in a sum."""
        self.spending: Measured = lambda on: nullcontext()
        """A context around encoding and decoding; see `measure`."""
        self.choice_notes: list[Note] = []
        """Called where codecs are chosen between two sums."""
        self._under_way: dict[int, Work[Any]] = {}

    @property
    def state(self) -> Any:
        """The memory between sums, a dataclass whose fields say their law (`core.resize`), or None; the newest sum
        counts."""
        return None

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the newest sum; None where all contributions count."""
        return None

    def measure(self, spending: Measured) -> None:
        """Measure the time of encoding and decoding by `spending`."""
        self.spending = spending

    def weighs(self, weight: float) -> None:  # noqa: B027  (most do not need it)
        """Set the weight, above 0, by which this worker multiplies its next vectors."""

    def code(self, chosen: Mapping[str, Tensor] | None) -> None:  # noqa: B027  (most do as they always do)
        """Encode the next sums, or with None leave them dense, if the strategy chooses that: see `Means.code`."""

    def retract(self) -> None:  # noqa: B027  (most remember nothing)
        """Undo what the newest sum has done to the memory, as all weights in it were 0 and its result is discarded."""

    def uncoded(self) -> AbstractContextManager[None]:
        """Return a context in which a strategy's choice of codes does not hold, for a mean of parameters."""
        return nullcontext()

    @abstractmethod
    def part_ready(self, part: int, x: Tensor) -> None:
        """Launch the exchange of one part; never waits. Parts are launched in order, each once per `start`."""

    def start(self, x: Flat, kept: Callable[[], Flat] | None = None) -> Work[Flat]:
        """Launch the parts that `part_ready` has not, and return the sum, written into `x`. `kept` is not needed."""
        for part, tensor in enumerate(x.parts):
            if part not in self._under_way:
                self.part_ready(part, tensor)
        works, self._under_way = self._under_way, {}
        in_order = [works[part] for part in range(len(x.parts))]
        is_on_gpu = x.parts[-1].device.type != "cpu"
        return Together(in_order, lambda results: self._summed(x, results), self.wire.clock, last_first=is_on_gpu)

    def _summed(self, x: Flat, results: Sequence[Any]) -> Flat | Stages[Flat]:
        """Return `x` with the sum in it, from the results of the works of its parts."""
        return x

    def header_of(self, sums: Flat) -> Tensor | None:
        """Return the header of the newest sum, if it is on the CPU although `sums` are not."""
        return None

    def kept(self, x: Flat) -> Callable[[], Flat]:
        """Return the argument `kept` of `start` for a vector that the sum is written into; never called here."""
        return lambda: x

    def abandon(self, x: Flat) -> Work[list[Any]]:
        """Return the launched parts as one work without a sum; messages carry `x` instead."""
        works, self._under_way = self._under_way, {}
        return Together(list(works.values()), lambda parts: parts, self.wire.clock)

    @abstractmethod
    def again(self, part: int, x: Tensor) -> Work[Tensor]:
        """Sum one part of the newest sum once more, into `x`, as if it had not been summed before."""

    def divisor(self, size: int) -> float:
        """Return the number by which each worker divides its vector, times its weight, before the sum.

        It is `size`, so that sums are no longer than vectors; 1 for a rule that looks at each vector in its own unit.
        """
        return float(size)

    def factor(self, size: int, weight: float) -> float:
        """Return the factor that makes a sum the mean; `weight` is the sum of the weights of all vectors, above 0."""
        return size / weight

    @abstractmethod
    def wire_bytes(self, size: int) -> int | None:
        """Return the bytes one worker sends for a sum among `size`; None if they depend on the numbers."""

    # -- for sums that are formed again by messages (`means.fault_tolerant_sum`)

    def message(self, x: Flat) -> tuple[Tensor, ...]:
        """Return the message of this worker, whose contribution is `x`, where messages go to everyone."""
        return x.parts

    def sum_of(
        self, messages: Sequence[tuple[Tensor, ...]], ranks: Sequence[int], hosts: Sequence[int], like: Flat
    ) -> Flat:
        """Return the sum of the messages of other workers, in new memory.

        Args:
            messages: For each rank, its `message`.
            ranks: The workers that have sent them.
            hosts: The host of each of these workers.
            like: A vector with the layout of the sum.
        """
        from quorate.core.vectors import Flat
        from quorate.wire.exchange import sum_in_order

        columns = zip(like.parts, *messages, strict=True)
        return Flat(
            [sum_in_order([x.to(into.device) for x in all_], list(hosts)) for into, *all_ in columns], like.layout
        )

    def follows(self, before: Reducer) -> None:  # noqa: B027  (most remember nothing)
        """Take over the memory of `before`, which is closed, as other parameters are trained from here on."""


class ReducerSettings(ABC):
    """The settings of a reducer that sums gradients by a protocol of its own, where another one has a codec."""

    @abstractmethod
    def reducer(self, layout: Layout, wire: Wire, seed: int) -> Reducer:
        """Return the reducer of vectors with this layout; `seed` is the run's."""


class InParts(Reducer):
    """A reducer that sums every part unchanged, by itself and in place; workers launch equal parts in order."""

    @abstractmethod
    def _sum(self, x: Tensor) -> Work[Tensor]:
        """Launch the sum of `x`, written into `x` itself; never waits."""

    def part_ready(self, part: int, x: Tensor) -> None:
        self._under_way[part] = self._sum(x)

    def again(self, part: int, x: Tensor) -> Work[Tensor]:
        return self._sum(x)
