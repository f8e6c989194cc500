"""What one other worker sends to this one in exchanges: its rounds in order, and word of when it goes away."""

from __future__ import annotations

from collections.abc import Callable

from quorate.core.contracts import Message, Wire, Work
from quorate.core.neighbours import Given
from quorate.core.vectors import Flat, Layout

TAG = "exchange"


class Incoming:
    """The messages of `source`, asked for one at a time, so that none is asked for that may never come."""

    def __init__(self, wire: Wire, source: int, layout: Callable[[], Layout]) -> None:
        self._wire, self._source, self._layout = wire, source, layout
        self._asked: Work[tuple[int, Message]] | None = None
        self._held: dict[int, Given] = {}
        self.is_away = self.has_ended = False
        self.reached = -1
        """The newest exchange it had begun when it went away."""

    def has(self, round: int) -> bool:
        """Whether what it gives in `round` is there, or never comes. Never waits."""
        while not self._is_settled(round):
            if not self._ask().done():
                return False
            self._take()
        return True

    def given(self, round: int, timeout: float | None = None) -> Given | None:
        """What it gives in `round`; None where it takes no part in that. Raises as `Work.wait`."""
        while not self._is_settled(round):
            self._ask().wait(timeout)
            self._take()
        return self._held.pop(round, None)

    def look(self) -> bool:
        """Whether it is known to be away by now."""
        while not self.is_away and self._ask().done():
            self._take()
        return self.is_away

    def rest_of_it(self, *, ended: bool) -> list[Given]:
        """Wait until it is away (or has ended); what it gave in rounds that this worker has not taken in."""
        while not (self.has_ended or (self.is_away and not ended)):
            self.is_away = False
            self._ask().wait()
            self._take()
        late = [self._held[round] for round in sorted(self._held)]
        self._held.clear()
        return late

    def comes_back(self) -> None:
        """All have rested: it takes part again, unless it has ended."""
        self.is_away = self.has_ended

    def _is_settled(self, round: int) -> bool:
        return round in self._held or self.is_away or any(other > round for other in self._held)

    def _ask(self) -> Work[tuple[int, Message]]:
        if self._asked is None:
            self._asked = self._wire.receive(self._source, TAG)
        return self._asked

    def _take(self) -> None:
        _, message = self._ask().wait()
        self._asked, says = None, message.header
        if "away" in says:
            self.is_away, self.has_ended, self.reached = True, says["away"] == "ended", says["round"]
            return
        layout = self._layout()
        parts = [x.to(p.device) for x, p in zip(message.tensors, layout.parts, strict=True)]
        given = Given(Flat(parts, layout), says["weight"], tuple(says["scalars"]), says["round"])
        self._held[given.round] = given
