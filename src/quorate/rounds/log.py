"""The results of rounds, as everyone applies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from quorate.core.vectors import Flat
from quorate.rounds.terms import Agreed

NO_REQUEST = -1
"""For other settings, was answered so far."""


@dataclass(frozen=True)
class Round:
    """What one round has formed. The same bits everywhere."""

    number: int
    term: int
    """Under which leader."""
    sum: Flat | None
    """Of what was given, each contribution divided by the size of the world beforehand; None where nothing was."""
    weight: float
    """Given in all, late contributions by what they count."""
    live: int
    """Workers that were counted."""
    options: Any
    """The optimizer's numbers of the most advanced contributor so far; None where there was none yet."""
    step: float
    """The place in the training that they are for, in synchronous steps: see `progress`."""
    contributors: dict[int, list[tuple[int, int]]]
    """By rank, (staleness, number of contributions)."""
    settles: bool = False
    """Nobody steps any more: all replicas are equal after it, and nothing is pending."""
    is_last: bool = False
    """Every worker has ended."""
    saves: int = 0
    """The request that it answers: every worker keeps what it is after this round; 0: nobody has asked."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What is in force from the next round on, as far as it is not what was agreed at the start."""
    request: int = NO_REQUEST
    """The newest request for other settings that was answered: the round after which it was made."""
    why: str | None = None
    """In words, where this round has answered one."""
    quorum: int = 0
    """How many workers had to call for it."""
    joined: tuple[int, ...] = ()
    """Who has joined since the start; the last ones step from this round on."""
    stretch: int = 0
    """The newest round, up to this one, in which all had settled: those that join do so between two of these."""
    progress: float = 0.0
    """Synchronous steps made up to here: the gradients that rounds have used up, each over the workers then alive."""
    measures: dict[int, list[Any]] = field(default_factory=dict)
    """By rank, what was told with contributions, in order; not after a checkpoint was loaded."""
    alive: int = 0
    """Workers that were counted, and those that have ended."""
    times: dict[int, int] = field(default_factory=dict)
    """By rank, how often it had handed in when the round asked it."""
    window: float = 0.0
    """Seconds that were waited for more workers than had to call."""
    hosts: list[list[int]] = field(default_factory=list)
    """Where hosts have formed it: the contributors of each, in the order in which they were added up."""
    voters: list[int] = field(default_factory=list)
    """Between hosts, who votes on the round after this one: see `votes`."""
    missing: list[int] = field(default_factory=list)
    """Where learners are of several workers: who had died by then, or had been silent for too long."""

    excluded: list[list[Any]] = field(default_factory=list)
    """Where a rule has combined it: ranks that did not count, or hardly, each with why."""

    @property
    def nbytes(self) -> int:
        """Memory."""
        return 0 if self.sum is None else sum(part.numel() * part.element_size() for part in self.sum.parts)

    @property
    def header(self) -> dict[str, Any]:
        """All but the vector, as JSON."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "formed_in": self.term,
            "contributors": [[rank, given] for rank, given in self.contributors.items()],
            "joined": list(self.joined),
            "measures": [[rank, measures] for rank, measures in self.measures.items()],
            "times": [[rank, times] for rank, times in self.times.items()],
        }


_OTHERS = ("term", "sum", "contributors", "joined", "measures", "times")
_PLAIN = [one.name for one in fields(Round) if one.name not in _OTHERS]
"""Fields of a round that are JSON as they are."""


def round_from(header: dict[str, Any], vector: Flat | None) -> Round:
    """What `Round.header` said, perhaps among other things."""
    return Round(
        **{name: header[name] for name in _PLAIN},
        term=header["formed_in"],
        sum=vector,
        contributors={rank: [(s, n) for s, n in given] for rank, given in header["contributors"]},
        joined=tuple(header["joined"]),
        measures=dict(header["measures"]),
        times=dict(header["times"]),
    )


COPIED = (
    "number", "log_term", "best_step", "best_options", "history", "marks", "settings", "request", "joined", "stretch",
    "progress", "voters",
)  # fmt: skip
"""What `Log.header` says, in the order in which `Log.jump` takes it."""

_REMEMBERED = 4096
"""Rounds of which it is known whom they took in."""


HISTORY = 64
"""Rounds of which a copy of a replica tells whom they took in."""

History = Sequence[tuple[int, int, Sequence[int]]]
"""(number, the leader's term, the ranks it took something from) of rounds, in order."""


Marks = Sequence[tuple[int, int]]
"""(number, request) of rounds that are to be kept, in order."""
_MARKS = 8
BRIDGE = 4
"""Rounds that may go by while a copy of a replica travels."""
_RESULTS = 2
"""That are being formed, and applied."""
_CONTRIBUTIONS = 3
"""Of one worker: what is pending, what a round takes, and what is kept until it is known which."""


class Log:
    """The newest rounds: all that are not applied yet, and before these at most `rounds`, in at most `limit` bytes."""

    def __init__(self, rounds: int, limit: int, each: int | None = None) -> None:
        """`each`: the bytes that a result counts; None: what it takes."""
        self._most, self._limit, self._each = rounds, limit, each
        self._rounds: dict[int, Round] = {}
        self._history: dict[int, tuple[int, frozenset[int]]] = {}
        self.newest = 0
        self.term = 0
        """Of the newest."""
        self.step = 0.0
        """The furthest place in the training, in synchronous steps, whose options were contributed so far."""
        self.options: Any = None
        """The optimizer's numbers there."""
        self.progress = 0.0
        """Of the newest: see there."""
        self.marks: dict[int, int] = {}
        """Of the newest rounds that are to be kept, by number: the request."""
        self.settings: dict[str, Any] = {}
        """In force after the newest, as far as not agreed at the start."""
        self.request = NO_REQUEST
        """The newest request for other settings that was answered."""
        self.joined: tuple[int, ...] = ()
        self.stretch = 0
        """Of the newest round: see there."""
        self.voters: Sequence[int] = ()
        """On the round after the newest; empty: all that are inside."""
        self._jumped_to: tuple[int, tuple[int, ...], int] = (0, (), 0)

    @property
    def saves(self) -> int:
        """The newest request to keep a round that was answered."""
        return max(self.marks.values(), default=0)

    def marks_until(self, number: int) -> Sequence[tuple[int, int]]:
        """(number, request) of the newest rounds up to `number` that are to be kept."""
        return [(past, request) for past, request in self.marks.items() if past <= number]

    def add(self, one: Round) -> None:
        """The next round is there."""
        assert one.number == self.newest + 1, f"round {one.number} came after round {self.newest}"
        self._rounds[one.number] = one
        self.newest, self.term = one.number, one.term
        self.step, self.options = one.step, one.options
        self.settings, self.request = one.settings, one.request
        self.joined, self.stretch, self.progress, self.voters = one.joined, one.stretch, one.progress, one.voters
        self._history[one.number] = one.term, frozenset(one.contributors)
        self._history.pop(one.number - _REMEMBERED, None)
        if one.saves:
            self.marks[one.number] = one.saves
            self.marks = dict(sorted(self.marks.items())[-_MARKS:])

    def jump(
        self,
        number: int,
        term: int,
        step: float,
        options: Any,
        history: History,
        marks: Marks,
        settings: dict[str, Any],
        request: int,
        joined: Sequence[int] = (),
        stretch: int = 0,
        progress: float = 0.0,
        voters: Sequence[int] = (),
    ) -> None:
        """Everything up to round `number` has come another way: as a copy of a replica, with what it knows."""
        self._rounds.clear()
        self.newest, self.term, self.step, self.options = number, term, step, options
        self._history = {past: (of, frozenset(ranks)) for past, of, ranks in history}
        self.marks = dict(marks)
        self.settings, self.request = settings, request
        self.joined, self.stretch, self.progress, self.voters = tuple(joined), stretch, progress, voters
        self._jumped_to = number, self.joined, stretch

    def history(self, number: int) -> History:
        """What is known of the rounds up to `number`, as far back as goes with a copy."""
        known = [past for past in self._history if number - HISTORY < past <= number]
        return [(past, self._history[past][0], sorted(self._history[past][1])) for past in sorted(known)]

    def took(self, number: int, rank: int) -> bool | None:
        """Whether round `number` took in what `rank` gave; None where that is not known any more."""
        found = self._history.get(number)
        return None if found is None else rank in found[1]

    def header(self, number: int) -> dict[str, Any]:
        """What goes with a copy of a replica that has applied the rounds up to `number`, for `jump` and for those
        that have settled."""
        one = self.get(number)
        joined, stretch = self._joined_at(number)
        return {
            "number": number,
            "log_term": self.term_of(number) or 0,
            "best_step": self.step,
            "best_options": self.options,
            "history": [list(past) for past in self.history(number)],
            "marks": [list(mark) for mark in self.marks_until(number)],
            "settings": self.settings if one is None else one.settings,
            "request": self.request if one is None else one.request,
            "joined": list(joined),
            "stretch": stretch,
            "progress": self.progress if one is None else one.progress,
            "voters": list(self.voters if one is None else one.voters),
            "settles": one is not None and one.settles,
            "is_last": one is not None and one.is_last,
        }

    def _joined_at(self, number: int) -> tuple[tuple[int, ...], int]:
        one, (base, joined, stretch) = self.get(number), self._jumped_to
        if one is not None:
            return one.joined, one.stretch
        return (joined, stretch) if number == base else (self.joined, self.stretch)

    def term_of(self, number: int) -> int | None:
        """Under which leader round `number` was formed; None where that is not known any more."""
        if number == self.newest:
            return self.term
        if number == 0:  # before the first
            return 0
        found = self._history.get(number)
        return None if found is None else found[0]

    def get(self, number: int) -> Round | None:
        """Round `number`; None where it is not kept."""
        return self._rounds.get(number)

    def trim(self, applied: int, acknowledged: int) -> None:
        """Forget those before round `applied` that all are known to have (up to `acknowledged`), or that are too many.

        So where all keep up, few results lie in memory, and the next ones are written where these were. The newest are
        kept all the same, for one that gets a copy of a replica meanwhile.
        """
        size = sum(map(self._nbytes, self._rounds.values()))
        acknowledged = min(acknowledged, self.newest - BRIDGE)
        for number in sorted(self._rounds):
            is_kept = number > acknowledged and size <= self._limit and number > applied - self._most
            if number >= applied or is_kept:
                break
            size -= self._nbytes(self._rounds.pop(number))

    def _nbytes(self, one: Round) -> int:
        return one.nbytes if self._each is None else self._each


def at_once(agreed: Agreed, rank: int) -> int:
    """How many vectors lie in this worker's memory at once where all keep up: contributions, and the leader's results.

    The first leader is rank 0.
    """
    kept = min(BRIDGE, agreed.log_bytes // max(1, agreed.vector_bytes))
    return _CONTRIBUTIONS + (kept + _RESULTS if rank == 0 else 0)
