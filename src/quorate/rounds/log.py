"""The results of rounds, as everyone applies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from quorate.core.fields import Fields, Header
from quorate.core.vectors import Flat, nbytes_of
from quorate.rounds.terms import Agreed

NO_REQUEST = -1
"""The request of a run without requests for other settings."""


@dataclass(frozen=True)
class Round:
    """The result of a round. The same bits everywhere."""

    number: int
    term: int
    sum: Flat | None  # the sum of contributions, each divided by the size of the world; None where there are none
    weight: float  # the weight of all contributions, late ones by their staleness
    live: int
    options: Any  # the optimizer's settings of the most advanced contributor so far; None where there was none
    step: float  # the place in the training that `options` are for, in synchronous steps: see `progress`
    contributors: dict[int, list[tuple[int, int]]]  # by rank, pairs of staleness and number of contributions
    is_pause: bool = False  # whether it is a pause: all replicas are equal after it, and nothing is pending
    is_last: bool = False
    saves: int = 0  # the request that it answers: every worker is saved as it is after this round; 0: none
    settings: dict[str, Any] = field(default_factory=dict)
    """The settings in force from the next round on that differ from those at the start."""
    request: int = NO_REQUEST  # the round after which the newest answered request for other settings was made
    why: str | None = None  # the reason in words, where this round has answered one
    quorum: int = 0
    joined: tuple[
        int, ...
    ] = ()  # as the log agrees: workers that joined by then; the last ones step from this round on
    era: int = 0  # the round of the newest pause up to this one: newcomers join between two pauses
    progress: float = 0.0  # synchronous steps so far: the weight that rounds have used up, over the workers then alive
    measures: dict[int, list[Any]] = field(default_factory=dict)
    """By rank, the measures of contributions, in order; not after a checkpoint was loaded."""
    alive: int = 0  # the number of workers that were counted (`live`), and of those that have ended
    times: dict[int, int] = field(default_factory=dict)  # by rank, how many times it had contributed by then
    window: float = 0.0  # the seconds of waiting for more workers than had to call
    hosts: list[list[int]] = field(default_factory=list)
    """By host that has formed it, the contributors, in the order in which they were added."""
    voters: list[int] = field(default_factory=list)  # between hosts, voters on the round after this: see `votes`
    missing: list[int] = field(default_factory=list)
    """With learners of several workers the dead and the silent; where the batch is kept, those that will not step."""
    excluded: list[list[Any]] = field(default_factory=list)
    """Ranks that an aggregation rule gave no weight, or hardly any, each with the reason."""

    def header(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "formed_in": self.term,
            "contributors": [[rank, stalenesses] for rank, stalenesses in self.contributors.items()],
            "joined": list(self.joined),
            "measures": [[rank, measures] for rank, measures in self.measures.items()],
            "times": [[rank, times] for rank, times in self.times.items()],
        }

    @classmethod
    def read(cls, header: Header, vector: Flat | None) -> Round:
        return cls(
            **{name: header[name] for name in _PLAIN},
            term=header["formed_in"],
            sum=vector,
            contributors={rank: [(s, n) for s, n in pairs] for rank, pairs in header["contributors"]},
            joined=tuple(header["joined"]),
            measures=dict(header["measures"]),
            times=dict(header["times"]),
        )


_OTHERS = ("term", "sum", "contributors", "joined", "measures", "times")
_PLAIN = [field.name for field in fields(Round) if field.name not in _OTHERS]

_REMEMBERED = 4096


HISTORY = 64  # rounds whose contributors a copy of a replica tells

History = Sequence[tuple[int, int, Sequence[int]]]
"""(number, the leader's term, contributors) of rounds, in order."""


Marks = Sequence[tuple[int, int]]
"""(number, request) of rounds that are to be kept, in order."""


@dataclass(frozen=True)
class LogState(Fields):
    """The log as of a round, for a copy of a replica that has applied the rounds up to it."""

    number: int
    log_term: int
    best_step: float
    best_options: Any
    history: History = ()
    marks: Marks = ()
    settings: dict[str, Any] = field(default_factory=dict)
    request: int = NO_REQUEST
    joined: Sequence[int] = ()
    era: int = 0
    progress: float = 0.0
    voters: Sequence[int] = ()
    is_pause: bool = False
    is_last: bool = False


@dataclass(frozen=True)
class Jump:
    """A replica becomes a copy of another one: its training thread tells its member."""

    state: LogState
    term: int

    def header(self) -> dict[str, Any]:
        state = self.state.header()
        del state["is_pause"], state["is_last"]
        return {**state, "term": self.term}

    @classmethod
    def read(cls, header: Header) -> Jump:
        return cls(LogState.read(header), header["term"])


_MARKS = 8
_KEPT = 1  # the newest result, until all have it
_RESULTS = 2  # being formed, and applied
_CONTRIBUTIONS = 3
_AT_HAND_BYTES = 1 << 26  # of large vectors none is made before it is needed


class Log:
    """The newest rounds: all that are not applied yet, and before these at most `rounds`, in at most `limit` bytes."""

    def __init__(self, rounds: int, limit: int, each: int | None = None) -> None:
        """`each`: the bytes that a result counts; None: its size."""
        self._most, self._limit, self._each = rounds, limit, each
        self._rounds: dict[int, Round] = {}
        self._released = 0  # the newest round that is kept without its sum
        self._history: dict[int, tuple[int, frozenset[int]]] = {}
        self.newest = 0
        self.term = 0
        self.step = 0.0
        self.options: Any = None
        self.progress = 0.0
        self.marks: dict[int, int] = {}  # the newest rounds that are to be kept, by number: the request
        self.settings: dict[str, Any] = {}
        self.request = NO_REQUEST
        self.joined: tuple[int, ...] = ()
        self.era = 0
        self.voters: Sequence[int] = ()
        self._jumped_to: tuple[int, tuple[int, ...], int] = (0, (), 0)

    @property
    def saves(self) -> int:
        """The newest request to keep a round that was answered."""
        return max(self.marks.values(), default=0)

    def add(self, formed: Round) -> None:
        number = formed.number
        assert number == self.newest + 1, f"round {number} came after round {self.newest}"
        self._rounds[number] = formed
        self.newest, self.term, self.step, self.options = number, formed.term, formed.step, formed.options
        self.settings, self.request, self.progress = formed.settings, formed.request, formed.progress
        self.joined, self.era, self.voters = formed.joined, formed.era, formed.voters
        self._history[number] = formed.term, frozenset(formed.contributors)
        self._history.pop(number - _REMEMBERED, None)
        if formed.saves:
            self.marks[number] = formed.saves
            self.marks = dict(sorted(self.marks.items())[-_MARKS:])

    def jump(self, state: LogState) -> None:
        """Become the log of a replica that this one has become a copy of."""
        self._rounds.clear()
        self._released = 0
        self.newest, self.term, self.step = state.number, state.log_term, state.best_step
        self.options, self.settings, self.request = state.best_options, state.settings, state.request
        self.joined, self.era = tuple(state.joined), state.era
        self.progress, self.voters, self.marks = state.progress, state.voters, dict(state.marks)
        self._history = {past: (term, frozenset(ranks)) for past, term, ranks in state.history}
        self._jumped_to = state.number, self.joined, state.era

    def history(self, number: int) -> History:
        """Return the history of the rounds up to `number`, as far back as goes with a copy."""
        known = [past for past in self._history if number - HISTORY < past <= number]
        return [(past, self._history[past][0], sorted(self._history[past][1])) for past in sorted(known)]

    def took(self, number: int, rank: int) -> bool | None:
        """Return whether round `number` took a contribution of `rank`; None where that is not known any more."""
        past = self._history.get(number)
        return None if past is None else rank in past[1]

    def state(self, number: int) -> LogState:
        completed = self.get(number)
        known, place = completed or self, (number, self.term_of(number) or 0, self.step, self.options)
        marks = [(past, request) for past, request in self.marks.items() if past <= number]
        rounds = self.history(number), marks, known.settings, known.request
        ends = (False, False) if completed is None else (completed.is_pause, completed.is_last)
        return LogState(*place, *rounds, *self._joined_at(number), known.progress, known.voters, *ends)

    def _joined_at(self, number: int) -> tuple[tuple[int, ...], int]:
        completed = self.get(number)
        if completed is not None:
            return completed.joined, completed.era
        return self._jumped_to[1:] if number == self._jumped_to[0] else (self.joined, self.era)

    def term_of(self, number: int) -> int | None:
        """Return the term in which round `number` was formed; None where that is not known any more."""
        if number == self.newest:
            return self.term
        if number == 0:  # before the first
            return 0
        past = self._history.get(number)
        return None if past is None else past[0]

    def get(self, number: int) -> Round | None:
        """Return a round that is kept, maybe without its sum: see `whole`."""
        return self._rounds.get(number)

    def whole(self, number: int) -> Round | None:
        """Return a round that is kept with its sum."""
        return self._rounds.get(number) if number > self._released else None

    def trim(self, applied: int, acknowledged: int) -> None:
        """Forget the rounds before `applied` that all have (up to `acknowledged`), or that are too many. So few results
        lie in memory where all keep up."""
        for number in sorted(self._rounds):
            is_wanted = number > acknowledged and number > applied - self._most
            if number >= applied or (is_wanted and self._nbytes() <= self._limit):
                break
            del self._rounds[number]

    def release(self, applied: int, acknowledged: int) -> None:
        """Release the sum of round `applied`, too, where all have it."""
        newest = self._rounds.get(applied)
        if newest is not None and newest.sum is not None and applied <= acknowledged:
            self._rounds[applied], self._released = replace(newest, sum=None), applied

    @property
    def oldest(self) -> int:
        """The oldest round that is kept with its sum; the next one where none is."""
        return max(min(self._rounds, default=self.newest + 1), self._released + 1)

    def _nbytes(self) -> int:
        if self._each is not None:
            return self._each * len(self._rounds)
        return sum([nbytes_of(formed.sum) for formed in self._rounds.values() if formed.sum is not None])


def at_once(agreed: Agreed, rank: int) -> int:
    """Return how many vectors a worker makes at the start: contributions, and the first leader's results."""
    wanted = _CONTRIBUTIONS + (_KEPT + _RESULTS if rank == 0 else 0)
    return min(wanted, _AT_HAND_BYTES // max(1, agreed.vector_bytes))
