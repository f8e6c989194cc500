"""When the workers of a replica in pieces apply rounds: the first of them decides, and the others do the same.

The first worker sends every answer that its training thread got, in order. The training threads of the others make the
same calls in the same order, and get the same answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import WireTimeout
from quorate.core.fields import Fields, Header
from quorate.rounds.log import Round
from quorate.rounds.pace import Arrival, Called, Copied, Give, OwnPace, Pace
from quorate.rounds.pieces.row_tasks import FollowingTask
from quorate.rounds.progress import RoundTask

_TAG = "told"
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Answer(Fields):
    """The message of the first worker to the others: the answer to a question of that kind, or a copy to `give`."""

    kind: Literal["call", "started", "end", "copy", "round", "outside", "until", "done", "waited", "give"]
    number: int | None = None  # the round
    is_called_for: bool | None = None
    term: int | None = None
    place: int | None = None  # see `Copy.place`
    is_so: bool | None = None
    to: int | None = None
    is_whole: bool | None = None

    def header(self) -> dict[str, Any]:
        names = self.__match_args__[1:]
        return {"what": self.kind, **{name: value for name in names if (value := getattr(self, name)) is not None}}

    @classmethod
    def read(cls, header: Header, **others: Any) -> Answer:
        return super(Answer, cls).read({"kind": header["what"], **header}, **others)


class _Teller:
    """The messages of the first worker to the others of its replica, whose workers are `row`."""

    def __init__(self, row: Wire) -> None:
        self._row = row.channel(_TAG)

    def __call__(self, kind: Any, **about: Any) -> None:
        message = Message(header=Answer(kind, **about).header())
        for other in range(1, self._row.size):
            self._row.send(message, other, _TAG)


class _TellingPace:
    """The pace of the first worker: `own` decides, and the others follow."""

    def __init__(self, own: OwnPace, tell: _Teller) -> None:
        self.follows = False
        self._own, self._tell = own, tell
        self.applied, self.serve, self.wait_for_news = own.applied, own.serve, own.wait_for_news

    def call(self, slack: float | None, *, waits: bool) -> Called:
        called = self._own.call(slack, waits=waits)
        self._tell("call", number=called.number, is_called_for=called.is_called_for)
        return _Told(called, self._tell)

    @property
    def started(self) -> int:
        self._tell("started", number=(started := self._own.started))
        return started

    def next(self, up_to: float = math.inf) -> Round | Copied | None:
        due = self._own.next(up_to)
        if due is None:
            self._tell("end")
        elif isinstance(due, Copied):
            self._tell("copy", place=due.copy.place)
        else:
            self._tell("round", number=due.number, term=due.term)
        return due

    @property
    def is_outside(self) -> bool:
        self._tell("outside", is_so=(is_so := self._own.is_outside))
        return is_so

    def until(self, number: int, *, is_called_for: bool = True) -> None:
        self._own.until(number, is_called_for=is_called_for)
        self._tell("until")


class _Told:
    """The work that the first worker waits for."""

    def __init__(self, called: Called, tell: Callable[..., None]) -> None:
        self._called, self._tell = called, tell
        self.number, self.is_called_for = called.number, called.is_called_for

    def done(self) -> bool:
        is_done = self._called.done()
        self._tell("done", is_so=is_done)
        return is_done

    def wait(self, timeout: float | None = None) -> int:
        number = self._called.wait(timeout)
        self._tell("waited")
        return number


class _FollowingPace:
    """The pace of another worker."""

    def __init__(self, task: FollowingTask, arrival: Arrival, row: Wire, give: Give) -> None:
        self.follows = True
        self._task, self._arrival, self._give = task, arrival, give
        self._row = row.channel(_TAG)
        self._asked = self._row.receive(0, _TAG)
        self._early: Answer | None = None

    def answer(self, kind: str) -> Answer:
        answer = self._after_copies()
        assert answer.kind == kind, f"the first worker was asked {answer.kind}, this one {kind}"
        return answer

    def _after_copies(self) -> Answer:
        while (answer := self._next()).kind == "give":
            self._send_copy(answer)
        return answer

    def _send_copy(self, answer: Answer) -> None:
        assert answer.to is not None and answer.is_whole is not None
        self._give(answer.to, answer.is_whole)

    def _next(self) -> Answer:
        answer, self._early = self._early, None
        begin = self._row.clock.now()
        while answer is None:
            self._task.check()
            left = self._row.timeout - (self._row.clock.now() - begin)
            try:
                answer = Answer.read(self._asked.wait(min(left, _LOOK_SECONDS))[1].header)
            except WireTimeout:
                if left <= _LOOK_SECONDS:
                    raise
            else:
                self._asked = self._row.receive(0, _TAG)
        return answer

    def call(self, slack: float | None, *, waits: bool) -> Called:
        answer = self.answer("call")
        return _Followed(self, answer.number or 0, bool(answer.is_called_for))

    @property
    def started(self) -> int:
        return self.answer("started").number or 0

    def next(self, up_to: float = math.inf) -> Round | Copied | None:
        if (answer := self._after_copies()).kind == "end":
            self._arrival.drain()
            return None
        if answer.kind == "copy":
            return self._copied(answer.place)
        assert answer.kind == "round", f"the first worker of the replica was asked {answer.kind}"
        while True:
            self._arrival.expect(lambda: bool(self._task.rounds))
            completed = self._task.rounds.popleft()
            if (completed.number, completed.term) == (answer.number, answer.term):
                return completed

    def _copied(self, place: int | None) -> Copied:
        while True:
            self._arrival.expect(lambda: bool(self._task.copies))
            source, copy = self._task.copies.popleft()
            if copy.place == place:
                return Copied(source, copy)

    @property
    def is_outside(self) -> bool:
        return bool(self.answer("outside").is_so)

    def wait_for_news(self, seconds: float) -> None:
        """Return at once: the first worker waits."""

    def applied(self, number: int) -> None:
        self._task.applied = number

    def until(self, number: int, *, is_called_for: bool = True) -> None:
        self.answer("until")

    def serve(self) -> None:
        while self._early is None and self._asked.done():
            if (answer := self._next()).kind == "give":
                self._send_copy(answer)
            else:
                self._early = answer


class _Followed:
    """The same work for the other workers."""

    def __init__(self, pace: _FollowingPace, number: int, is_called_for: bool) -> None:
        self._pace, self.number, self.is_called_for = pace, number, is_called_for

    def done(self) -> bool:
        return bool(self._pace.answer("done").is_so)

    def wait(self, timeout: float | None = None) -> int:
        self._pace.answer("waited")
        return self.number


def pace_in(
    row: Wire | None,
    task: RoundTask,
    arrival: Arrival,
    era: Callable[[], int],
    is_pause: Callable[[], bool],
    give: Give,
) -> Pace:
    """Return the pace of this worker, by its place in its `row`; an `OwnPace` where it is not in one."""
    if isinstance(task, FollowingTask):
        assert row is not None, "who follows is in a row"
        return _FollowingPace(task, arrival, row, give)
    if row is None:
        return OwnPace(task, arrival, era, is_pause, give)
    tell = _Teller(row)

    def tell_and_give(to: int, is_whole: bool) -> None:
        tell("give", to=to, is_whole=is_whole)
        give(to, is_whole)

    return _TellingPace(OwnPace(task, arrival, era, is_pause, tell_and_give), tell)


_: tuple[type[Work[int]], type[Work[int]]] = (_Told, _Followed)
