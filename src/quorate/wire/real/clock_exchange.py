"""The offset of this worker's clock from the reference, that of the lowest living rank, estimated from round trips.

A question has the time of its sending (t0, on our clock). Its answer has the times of its arrival and sending (t1 and
t2, on the other clock), and arrives at t3. The other clock is then ahead by ((t1 - t0) + (t2 - t3)) / 2, with an error
of at most half of the round trip, (t3 - t0) - (t2 - t1). This holds however the trip is divided between the two
directions (as in NTP, RFC 5905). The shortest of several round trips counts. Cost: every `BETWEEN` seconds a short
message each way, and up to `TRIPS` of them where round trips take longer than before, on existing connections.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from quorate.core.contracts import Clock
from quorate.core.fields import Fields, Header
from quorate.records.rows import ClockOffset

TRIPS = 8
"""Most round trips for an estimate; the shortest counts."""
NEARLY, FADES = 1.25, 1.05
"""A round trip is short enough up to `NEARLY` times the shortest known one, which grows by `FADES` per estimate."""
BETWEEN = 5.0
"""Seconds between two estimates."""
PATIENCE = 2.0
"""Seconds after which an answer is no longer waited for."""
ASKED: Literal["clock asked"] = "clock asked"
ANSWERED: Literal["clock answered"] = "clock answered"
_MOST = 64
"""Most estimates kept until `news` reads them."""
_DIGITS = 9

Send = Callable[[int, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class ClockQuestion(Fields):
    """The question of a worker, `sent` at that time of its clock."""

    kind: Literal["clock asked"] = field(init=False, default=ASKED)
    sent: float


@dataclass(frozen=True, slots=True)
class ClockAnswer(Fields):
    """The answer to the question `sent` at that time: when the question arrived here, and when the answer was sent."""

    kind: Literal["clock answered"] = field(init=False, default=ANSWERED)
    sent: float
    arrived: float
    answered: float

    def header(self) -> dict[str, Any]:
        return {"kind": self.kind, "sent": self.sent, "came": self.arrived, "went": self.answered}

    @classmethod
    def read(cls, header: Header, **others: Any) -> ClockAnswer:
        return cls(header["sent"], header["came"], header["went"])


class ClockExchange:
    """The exchange of one worker. A rank for which `is_here` is on this `machine`: it has the same clock.

    All but `news` belongs to one thread, that of the lines.
    """

    def __init__(self, rank: int, clock: Clock, machine: str, is_here: Callable[[int], bool]) -> None:
        self._rank, self._clock, self._is_here = rank, clock, is_here
        self._machine = hashlib.sha256(machine.encode()).hexdigest()[:12]
        self._news = deque[ClockOffset](maxlen=_MOST)
        self._reference: int | None = None
        self._best: ClockOffset | None = None
        self._left = 0
        self._shortest = 0.0
        """Half of the shortest round trip, growing by `FADES`; 0: there was none."""
        self._asked: float | None = None
        """Send time of the question whose answer is waited for."""
        self._next = 0.0

    def news(self) -> list[ClockOffset]:
        """Return the estimates since the last call; for any one thread."""
        estimates = []
        while self._news:
            estimates.append(self._news.popleft())
        return estimates

    def step(self, living: Collection[int], send: Send) -> None:
        """Send a question if it is time; to be called some times a second."""
        reference, now = min(living, default=self._rank), self._clock.now()
        if reference != self._reference:
            self._reference, self._asked, self._best, self._next = reference, None, None, now
            self._shortest = 0.0
            if reference == self._rank or self._is_here(reference):
                self._next = float("inf")
                self._tell(now, 0.0, 0.0)
        if self._asked is not None and now - self._asked > PATIENCE:
            self._asked = None
            self._go_on(send)
        elif self._asked is None and now >= self._next:
            self._next, self._left, self._best = now + BETWEEN, TRIPS, None
            self._go_on(send)

    def received(self, source: int, header: Header, send: Send) -> None:
        """Handle a question, or an answer."""
        now = self._clock.now()
        if header["kind"] == ASKED:
            send(source, ClockAnswer(ClockQuestion.read(header).sent, now, self._clock.now()).header())
            return
        answer = ClockAnswer.read(header)
        if source == self._reference and answer.sent == self._asked:
            sent, arrived, answered = answer.sent, answer.arrived, answer.answered
            half = ((now - sent) - (answered - arrived)) / 2
            if self._best is None or half < self._best.uncertainty:
                self._best = self._estimate((sent + now) / 2, ((arrived - sent) + (answered - now)) / 2, half)
            if half <= NEARLY * self._shortest:
                self._left = 0
            self._asked = None
            self._go_on(send)

    def _go_on(self, send: Send) -> None:
        if self._left and self._reference is not None:
            self._left -= 1
            self._asked = self._clock.now()
            send(self._reference, ClockQuestion(self._asked).header())
        elif self._best is not None:
            self._news.append(self._best)
            self._shortest = min(self._best.uncertainty, FADES * self._shortest or self._best.uncertainty)
            self._best = None

    def _tell(self, now: float, offset: float, uncertainty: float) -> None:
        self._news.append(self._estimate(now, offset, uncertainty))

    def _estimate(self, time: float, offset: float, uncertainty: float) -> ClockOffset:
        assert self._reference is not None
        return ClockOffset(
            time=round(time, _DIGITS),
            machine=self._machine,
            reference=self._reference,
            offset=round(offset, _DIGITS),
            uncertainty=round(max(uncertainty, 0.0), _DIGITS),
        )
