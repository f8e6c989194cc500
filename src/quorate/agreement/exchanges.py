"""An exchange with neighbours under way: what has come, what is waited for, and how long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from quorate.agreement.incoming import Incoming
from quorate.core.neighbours import Codec, Given, UnderWay
from quorate.core.vectors import Flat, Layout
from quorate.observe.step_times import StepTimer


def read(tensors: Sequence[Tensor], layout: Layout, codec: Codec | None) -> Flat:
    """The vector that has come as these tensors."""
    if codec is None:
        return Flat([x.to(p.device) for x, p in zip(tensors, layout.parts, strict=True)], layout)
    return codec.decode([x.to(layout.parts[0].device) for x in tensors], layout)


class Coded:
    """What is given in one exchange, encoded once however many get it."""

    def __init__(self, codec: Codec | None) -> None:
        self._codec = codec
        self._known: dict[int, tuple[tuple[Tensor, ...], Flat]] = {}

    def of(self, x: Flat) -> tuple[tuple[Tensor, ...], Flat]:
        """The tensors that travel for `x`, and what those that get them make of it."""
        if self._codec is None:
            return x.parts, x
        if id(x) not in self._known:  # the caller holds it as long as this is there
            tensors = tuple(self._codec.encode(x))
            self._known[id(x)] = tensors, self._codec.decode(tensors, x.layout)
        return self._known[id(x)]


class StartedExchange:
    """One exchange under way."""

    def __init__(
        self,
        rank: int,
        own: Given | None,
        sent: Mapping[int, Flat],
        others: Mapping[int, Incoming],
        round: int,
        timer: StepTimer,
    ) -> None:
        self._waiting, self._round, self._timer, self.own, self.sent = dict(others), round, timer, own, sent
        self._found: dict[int, Given] = {} if own is None else {rank: own}

    def done(self) -> bool:
        return all(other.has(self._round) for other in self._waiting.values())

    def wait(self, timeout: float | None = None) -> dict[int, Given]:
        return self._all(timeout, lambda other, left: other.given(self._round, left))

    def within(self, seconds: float | None) -> dict[int, Given]:
        return (
            self.wait()
            if seconds is None
            else self._all(seconds, lambda other, left: other.within(self._round, left or 0.0))
        )

    def _all(self, timeout: float | None, of: Callable[[Incoming, float | None], Given | None]) -> dict[int, Given]:
        self._timer.arrived()
        clock = self._timer.clock
        until = None if timeout is None else clock.now() + timeout
        with self._timer.spending("wait"):
            for peer in list(self._waiting):
                left = None if until is None else max(0.0, until - clock.now())
                given = of(self._waiting[peer], left)
                del self._waiting[peer]
                if given is not None:
                    self._found[peer] = given
        self._timer.contributors = max(1, len(self._found))
        return self._found


_: type[UnderWay] = StartedExchange
