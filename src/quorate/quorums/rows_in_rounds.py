"""Rows of sparse gradients beside contributions to rounds.

A worker sends the rows of a contribution to every other worker before it contributes, with a number. The number travels
in the payload of the contribution, so that a round says whose rows belong to it, however late they are. Every worker
adds them in order of rank and number. Rows of contributions that no round takes are discarded when they are too old for
the next one.

Cost: per contribution, with P workers, P - 1 times the rows that were touched. Memory holds the rows of all workers
that rounds may still take. Where training continues after deaths, it also holds those of the rounds in the log.

A worker may die when some have its rows and others do not. Who misses rows of a dead worker asks its own task, and then
the others. A task without them says so once and for all: it takes them no more, and its worker asks the others, too. So
all survivors add the same rows.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from quorate.buckets.rows import Rows, RowsOfWorker, as_gradient, read, rows_in, scaled_message, sum_of, written
from quorate.core.contracts import Message, Wire
from quorate.core.device_copies import values_of
from quorate.core.errors import ConfigurationError, PeerFailed
from quorate.core.fields import Fields
from quorate.replica.replica import Replica
from quorate.rounds.log import Round
from quorate.rounds.terms import Agreed
from quorate.wire.attendant import Attendant
from quorate.wire.survivors import DeathTolerance, Survivors

Look = Callable[[Sequence[Tensor]], None]
"""Looks at the numbers of rows that are contributed."""


class RowsInRounds:
    """The rows of one worker's sparse tables in rounds; belongs to the training thread."""

    def __init__(self, replica: Replica, wire: Wire, agreed: Agreed, tolerance: DeathTolerance) -> None:
        if replica.momentum is not None and replica.momentum.kind != "sgd":
            raise ConfigurationError(
                f"the gradient of {replica.all_names[len(replica.trained)]} is sparse, and {replica.plain.__name__} "
                "has moments of dense gradients on each worker; give the table to an optimizer of its own, SparseAdam "
                "or Adagrad"
            )
        self._replica, self._agreed, self._number = replica, agreed, 0
        self.held = HeldRows(wire.channel("rows"), tolerance)
        self._tolerance = tolerance
        self._limit = 0 if agreed.late == "drop" else agreed.max_staleness
        self._sums = list[Rows | None]()

    def contribute(self, version: int, scale: float, look: Look) -> int:
        """Send `scale` times the rows in `.grad` to all workers, and return their number.

        They were computed after round `version`; `look` gets the numbers of the rows.
        """
        tables, names = self._tables, self._replica.all_names[len(self._replica.trained) :]
        every = rows_in(tables, names)
        look([rows.values for rows in every if rows is not None])
        return self._send(written(every, [rows is not None for rows in every], scale, tables).cpu(), version)

    def _send(self, rows: Tensor, version: int) -> int:
        self._number += 1
        self.held.send(self._number, version, rows)
        return self._number

    @property
    def _tables(self) -> Sequence[Tensor]:
        return self._replica.sparse_tables

    def take(self, formed: Round) -> None:
        """Add the rows of a round, each by its staleness. Raises as `Work.wait`."""
        messages = list[RowsOfWorker]()
        for rank, words in sorted(formed.measures.items()):
            stalenesses = [staleness for staleness, count in formed.contributors.get(rank, ()) for _ in range(count)]
            for word, staleness in zip(words, stalenesses, strict=True):
                rows, weight = self.held.take(rank, word["rows"], formed.number), self._agreed.weight_of(staleness)
                if rows is not None:
                    message = read(rows, self._tables)
                    messages.append(message if weight == 1.0 else replace(message, scale=message.scale * weight))
        rounds_kept = 0 if self._tolerance.survivors is None else self._agreed.log_rounds
        self.held.forget(formed.number - self._limit, formed.number - rounds_kept)
        self._sums = [sum_of(messages, place, table) for place, table in enumerate(self._tables)]

    @property
    def norm(self) -> float:
        """The norm of the newest sum. A GPU is waited for, once."""
        norms = [torch.linalg.vector_norm(rows.values) for rows in self._sums if rows is not None]
        return math.hypot(*values_of(norms))

    def write(self, factor: float) -> None:
        """Make `factor` times the newest sum the gradients of tables in the next update by a round."""
        for rows in self._sums:
            if rows is not None:
                rows.values.mul_(factor)
        self._replica.row_gradients = [
            None if rows is None else as_gradient(rows, table)
            for rows, table in zip(self._sums, self._tables, strict=True)
        ]

    # -- checkpoints

    def kept(self, words: Sequence[Mapping[str, Any]], factor: float) -> list[Tensor]:
        """Return `factor` times the messages of contributions with these payloads, which no round has taken."""
        return [scaled_message(self.held.own(word["rows"]), factor) for word in words]

    def restore(self, kept: Sequence[Tensor], factor: float, version: int) -> list[dict[str, Any]]:
        """Send `factor` times these messages again, and return the payloads of their contributions."""
        numbers = [self._send(scaled_message(x, factor), version) for x in kept]
        return [{"signed": [], "measured": None, "rows": number} for number in numbers]


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
