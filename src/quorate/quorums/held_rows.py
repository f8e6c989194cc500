"""The rows of all workers' contributions that one worker holds, and the task that takes them in.

A worker may die when some have its rows and others do not. Who misses rows of a dead worker asks its own task, and then
the others. A task without them says so once and for all: it takes them no more, and its worker asks the others, too. So
all survivors add the same rows.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from torch import Tensor

from quorate.core.contracts import Message, Wire
from quorate.core.errors import PeerFailed
from quorate.core.fields import Fields
from quorate.wire.attendant import Attendant
from quorate.wire.survivors import DeathTolerance, Survivors


@dataclass(frozen=True, slots=True)
class Contributed(Fields):
    """The message with the rows of a contribution, which the sender computed after round `version`."""

    number: int
    version: int


@dataclass(frozen=True, slots=True)
class Question(Fields):
    """A question for the rows of contribution `number` of the dead worker `of`."""

    of: int
    number: int
    tag: str  # of the answer


@dataclass(frozen=True, slots=True)
class Answer(Fields):
    """The answer to a `Question`; the rows travel with it where they are here."""

    is_discarded: bool  # whether the rows were here, and have been forgotten


@dataclass
class Held:
    """The rows of one contribution."""

    version: int
    rows: Tensor | None
    """None: no survivor has them."""
    taken_in: int | None = None
    """The round that has taken them."""


class HeldRows:
    """The rows here, by rank and number; for the training thread, beside the task, which has a thread of its own."""

    def __init__(self, wire: Wire, tolerance: DeathTolerance) -> None:
        self._wire, self._tolerance = wire, tolerance
        self.by_rank: dict[int, dict[int, Held]] = {rank: {} for rank in range(wire.size)}
        self._newest = dict.fromkeys(range(wire.size), 0)
        """By rank, the highest number of a contribution whose rows have been here."""
        self._refused = set[tuple[int, int]]()
        """Contributions of dead workers without rows here, as this worker has answered: it ignores later rows."""
        self._lock = threading.Lock()
        self._awaited: tuple[int, int] | None = None
        self._questions = 0
        self._end = Survivors(wire.channel("end"))
        self._task = Attendant(wire, "held", self._take_message)

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self._wire.size) if rank not in {self._wire.rank, *self._wire.dead}]

    def send(self, number: int, version: int, rows: Tensor) -> None:
        """Hold the rows of this worker's contribution `number`, and send them to all others."""
        self._task.check()
        with self._lock:
            self.by_rank[self._wire.rank][number] = Held(version, rows)
        message = Message((rows,), Contributed(number, version).header(), shared=True)
        for rank in self._others:
            self._task.send(message, rank)

    def take(self, rank: int, number: int, taken_in: int) -> Tensor | None:
        """Return the rows of a contribution for a round; None where its worker died and no survivor has them. Raises as
        `Work.wait`."""
        with self._lock:
            held = self.by_rank[rank].get(number)
            self._awaited = (rank, number) if held is None else None
        if held is None:
            held = self._wait_for(rank, number)
        held.taken_in = taken_in
        return held.rows

    def own(self, number: int) -> Tensor:
        """Return the rows of this worker's contribution `number`, which no round has taken."""
        rows = self.by_rank[self._wire.rank][number].rows
        assert rows is not None
        return rows

    def forget(self, version: int, taken_in: int) -> None:
        """Discard rows that were computed before round `version`, or taken up to round `taken_in`."""
        with self._lock:
            for rows in self.by_rank.values():
                for number, held in list(rows.items()):
                    if held.version < version if held.taken_in is None else held.taken_in <= taken_in:
                        del rows[number]

    def close(self) -> None:
        """End the task, once no survivor needs rows any more."""
        if self._tolerance.survivors is not None:
            self._end.barrier().wait()
        self._task.close()

    def _wait_for(self, rank: int, number: int) -> Held:
        try:
            self._wire.receive(self._wire.rank, _tag(rank, number), [rank]).wait()
        except PeerFailed:
            if self._tolerance.survivors is None:
                raise
            rows = self._asked(rank, number)
            with self._lock:
                self.by_rank[rank][number] = Held(-1, rows)
        with self._lock:
            return self.by_rank[rank][number]

    def _asked(self, of: int, number: int) -> Tensor | None:
        for peer in (self._wire.rank, *self._others):
            self._questions += 1
            question = Question(of, number, f"answer/{self._questions}")
            self._task.send(Message(header=question.header()), peer)
            try:
                _, answer = self._wire.receive(peer, question.tag, [peer]).wait()
            except PeerFailed:
                continue
            if answer.tensors:
                return answer.tensors[0]
            if Answer.read(answer.header).is_discarded:
                raise PeerFailed(
                    f"rank {of} has died, and its rows of a sparse table are needed by a worker that is too far behind",
                    [of],
                )
        return None

    # -- the task

    def _take_message(self, source: int, message: Message) -> None:
        if "tag" in message.header:
            self._answer(source, Question.read(message.header))
            return
        contributed = Contributed.read(message.header)
        place = source, contributed.number
        with self._lock:
            if place not in self._refused:
                self.by_rank[source][contributed.number] = Held(contributed.version, message.tensors[0])
                self._newest[source] = contributed.number
            is_awaited = self._awaited == place
        if is_awaited:
            self._wire.send(Message(), self._wire.rank, _tag(*place))

    def _answer(self, source: int, question: Question) -> None:
        with self._lock:
            held = self.by_rank[question.of].get(question.number)
            rows = None if held is None else held.rows
            is_discarded = held is None and question.number <= self._newest[question.of]
            if rows is None and not is_discarded:
                self._refused.add((question.of, question.number))
        answer = Message(() if rows is None else (rows,), Answer(is_discarded).header(), shared=True)
        self._wire.send(answer, source, question.tag)


def _tag(rank: int, number: int) -> str:
    return f"here/{rank}/{number}"
