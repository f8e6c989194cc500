"""When a round starts: a pure function of what workers have said of their steps. Knows no wire and no clock.

A step *calls* for a round if no round has started since that worker's previous step returned; otherwise its gradient
*rides* with the next round. A round starts when enough workers have called since the last one started, enough being
`wait_for`, or all that still step where they are fewer. So two starts are separated by a whole local step of the
second's caller, and the fastest worker may leave, evaluate or end at any time without a silence.

A round that may start waits for more workers to call, as long as it keeps nobody from anything (`window`): a worker
that has called goes on for some seconds without the result (its slack), and what is left of them, after the time that
it took until enough had called, and that an exchange takes, is for others. From the adaptive grace window of Decoupled
DiLoCo (Douillard et al., 2026, after public descriptions): gamma (overlap x step time - time to the quorum - time of an
exchange), between 0 and a cap.

Where workers wait for results and hosts form the sum among themselves, a round waits for a twentieth of the time of an
exchange: whoever misses it by less would cost another exchange, over the same links. Where nobody came in a window, the
next rounds have none: one of them at first, twice as many after each further window in which nobody came.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quorate.core.draws import chosen
from quorate.rounds.learners import Learners
from quorate.rounds.terms import Agreed

Activity = Literal["stepping", "waiting", "away", "settling", "ended", "gone"]

_STREAM = 0x5EED


@dataclass
class Stepper:
    """What is known of one worker."""

    activity: Activity = "stepping"
    computing: int | None = 0
    """The round whose parameters it computes on now; None while it waits for a round."""
    is_present: bool = True
    """Whether it answered the last time it was asked."""
    heard_at: float = 0.0
    """When it last spoke."""


class Calls:
    """Who has called since the newest round started."""

    def __init__(self, agreed: Agreed, started: int = 0) -> None:
        self.agreed = agreed
        self.started = started
        self.workers = [Stepper() if rank < agreed.size else Stepper("gone", None, False) for rank in agreed.ranks]
        self.callers: set[int] = set()
        self.learners = Learners(agreed.learners)
        self.live = agreed.size
        """Workers that have not died."""
        self.now = 0.0
        self.window = Window(agreed.window)
        self._known: tuple[list[int], set[int]] | None = None
        """Who is counted, and their learners, until somebody does something else."""

    @property
    def inside(self) -> list[int]:
        """Who has joined and not died."""
        return [rank for rank, worker in enumerate(self.workers) if worker.activity != "gone"]

    @property
    def quorum(self) -> int:
        """How many workers (or learners) have to call, of those that have not died."""
        if not self.agreed.learners:
            return self.agreed.quorum_of(self.live)
        return self.agreed.quorum_of(len(self.learners.among(self.inside)))

    def is_gone(self, rank: int) -> None:
        """`rank` has died: it is as if it had never been, but for what it has given."""
        worker, self._known = self.workers[rank], None
        self.live -= worker.activity != "gone"
        worker.activity, worker.computing, worker.is_present = "gone", None, False
        self.callers.discard(rank)

    def comes(self, rank: int, computing: int | None) -> None:
        """`rank` has joined; it computes on the parameters of round `computing`."""
        worker, self._known = self.workers[rank], None
        self.live += worker.activity == "gone"
        worker.activity, worker.computing, worker.is_present = "stepping", computing, True

    def is_there(self, rank: int, *, is_so: bool = True) -> None:
        """Whether `rank` has answered."""
        self.workers[rank].is_present, self._known = is_so, None

    def come(self, ranks: Iterable[int], computing: int) -> None:
        """As `comes`, of several."""
        for rank in ranks:
            self.comes(rank, computing)

    def noted(self, rank: int, note: Mapping[str, Any], newest: int, stretch: int, *, is_forming: bool) -> None:
        """What `rank` says that it does: see `Member.note`. `newest` is the newest round that is there, `stretch` the
        newest of these in which all had settled."""
        kind = note["note"]
        if kind == "call":
            self.called(rank, note["since"], note["computing"], note.get("slack"))
            if note["since"] < self.started and not is_forming and note["computing"] is None:
                self.rode(rank, newest)  # the round it waits for is over already
        elif kind in ("ride", "back"):
            self.rode(rank, note["computing"])
        elif kind == "wait":
            self.waits(rank)
        elif kind == "away":
            self.went_away(rank)
        elif kind in ("copy", "enter") or (kind == "settle" and note["logged"] < stretch):
            self.rode(rank, newest)  # it is inside by now, or has rested, as it will see
        else:
            self.settled(rank, ended=kind == "end")

    def called(self, rank: int, since: int, computing: int | None = None, slack: float | None = None) -> None:
        """`rank` calls; it knows of no round that started after `since`. A call that a start has overtaken is none.

        It waits for the round, or goes on computing on the parameters of round `computing`, for `slack` seconds
        without missing the result.
        """
        self._steps(rank, computing)
        if since >= self.started:
            self.callers.add(rank)
            self.window.called(slack, self.now)

    def rode(self, rank: int, computing: int) -> None:
        """`rank` has handed in a gradient and computes the next one on the parameters of round `computing`."""
        self._steps(rank, computing)

    def _steps(self, rank: int, computing: int | None) -> None:
        worker = self.workers[rank]
        self._known = self._known if worker.activity == "stepping" else None
        worker.activity, worker.computing = "stepping", computing

    def waits(self, rank: int) -> None:
        """`rank` waits for the others somewhere else, and does not step meanwhile; it keeps up with the rounds."""
        worker, self._known = self.workers[rank], None
        worker.activity, worker.computing = "waiting", None
        self.callers.discard(rank)

    def went_away(self, rank: int) -> None:
        """`rank` does not step for a while, and is waited for by nobody until it says that it is back."""
        worker, self._known = self.workers[rank], None
        worker.activity, worker.computing, worker.is_present = "away", None, False
        self.callers.discard(rank)

    def settled(self, rank: int, *, ended: bool) -> None:
        """`rank` does not step until all have come: it drains, evaluates or (with `ended`) has ended."""
        worker, self._known = self.workers[rank], None
        worker.activity, worker.computing = "ended" if ended else "settling", None
        self.callers.discard(rank)

    def counted_at(self, now: float) -> int:
        """How many train on: they have not ended or died, and have not been silent for too long."""
        return sum(self._trains(worker, now) for worker in self.workers)

    def _trains(self, worker: Stepper, now: float) -> bool:
        if worker.activity in ("ended", "gone"):
            return False
        return worker.is_present or now - worker.heard_at < self.agreed.patience

    def missing_at(self, now: float, *, settles: bool) -> list[int]:
        """Where learners are of several workers: who has died, or has been silent for too long."""
        workers = enumerate(self.workers[: len(self.agreed.learners)])
        return [
            rank
            for rank, one in workers
            if one.activity == "gone" or not (settles or one.activity == "ended" or self._trains(one, now))
        ]

    def may_start(self) -> bool:
        """Whether a round starts now."""
        if not self._is_called_for() or self._far_behind():
            return False
        return self.learners.among(self.callers) >= self._counted()[1] or self.window.is_over(self.now)

    @property
    def opens_at(self) -> float:
        """When a round may start that enough have called for, and that waits for more; infinite where none does."""
        return self.window.until if self._is_called_for() and not self._far_behind() else math.inf

    def held_by(self) -> list[int]:
        """For whom those that have called wait: for others to call, or for some that compute and are at the bound."""
        if not self.callers or self.may_start():
            return []
        if self._is_called_for():
            return self._far_behind()
        called, of = self.learners.among(self.callers), self.learners.of
        return [rank for rank in self._counted()[0] if (of[rank] if of else rank) not in called]

    def _counted(self) -> tuple[list[int], set[int]]:
        if self._known is None:
            workers = [(rank, one) for rank, one in enumerate(self.workers) if one.activity in ("stepping", "away")]
            absent = (rank for rank, one in workers if not one.is_present)
            found = self.learners.whole([rank for rank, one in workers if one.is_present], absent)
            self._known = found, self.learners.among(found)
        return self._known

    def _is_called_for(self) -> bool:
        if not self.callers:
            return False
        ranks, counted = self._counted()
        callers = counted & self.callers if not self.learners.of else self.learners.among(self.callers & set(ranks))
        if not callers or len(callers) < min(self.quorum, len(counted)):
            return False
        is_drawn = self.agreed.wait_for == "designated" and len(callers) < len(counted)
        return not is_drawn or self._initiator(sorted(counted)) in callers

    def _far_behind(self) -> list[int]:
        oldest = self.started + 1 - self.agreed.max_staleness
        computing = [(rank, self.workers[rank].computing) for rank in self._counted()[0]]
        return [rank for rank, number in computing if number is not None and number < oldest]

    def may_settle(self) -> bool:
        """Whether nobody steps any more: one more round takes in what is pending."""
        return all(worker.activity in ("settling", "ended", "gone") for worker in self.workers)

    @property
    def ended(self) -> int:
        """How many workers have ended."""
        return sum(worker.activity == "ended" for worker in self.workers)

    @property
    def all_ended(self) -> bool:
        """Whether every worker has ended."""
        return all(w.activity in ("ended", "gone") for w in self.workers)

    def begin(self) -> int:
        """The next round starts; its number."""
        self.started += 1
        self.callers.clear()
        self.window.closed(self.now)
        return self.started

    def takes_effect(self, number: int, joining: Iterable[int], *, settles: bool) -> None:
        """Round `number` is there, from which on these step as well."""
        if settles:
            self.resumed(number)
        self.completed(number)
        self.come(joining, number)

    def completed(self, number: int) -> None:
        """Those that waited for round `number` compute on its parameters now."""
        for worker in self.workers:
            if worker.activity == "stepping" and worker.computing is None:
                worker.computing = number

    def completed_all(self, number: int) -> None:
        """All compute on the parameters of round `number`: they have just begun there."""
        for worker in self.workers:
            worker.computing = number

    def resumed(self, number: int) -> None:
        """All that settled step again, from round `number` on; those that have ended do not."""
        for worker in self.workers:
            if worker.activity == "settling":
                worker.activity, worker.computing = "stepping", number
        self._known = None

    def _initiator(self, counted: list[int]) -> int:
        """The one drawn for the next round, among those that step."""
        (place,) = chosen(1, len(counted), self.agreed.seed, _STREAM, self.started + 1)
        return counted[place]


GAMMA = 0.8
"""The share of what is left that is waited; a step may be shorter than the ones before it."""

SHARE = 0.05
"""Of the time of an exchange among hosts, that is waited."""
_MOST_WITHOUT = 32
"""Rounds without a window, after one in which nobody came."""


@dataclass
class Window:
    """That of the next round, as its leader knows it. All in seconds."""

    cap: float
    """It is never longer; and so long where nobody has told its slack."""
    exchange: float = 0.0
    """What the newest exchange took."""
    among_hosts: float = 0.0
    """What it took where hosts formed the sum among themselves, else 0."""
    until: float = math.inf
    """When it is over, once enough have called."""
    used: float = 0.0
    """How long the newest round has waited in it."""
    _since: float | None = None
    """When enough had called."""
    _first: float | None = None
    """When the first worker called."""
    _slacks: list[float] = field(default_factory=list)
    _calls: int = 0
    _opened_at: int | None = None
    """How many had called when a window for the others of several hosts began."""
    _without: int = 0
    """How many of the next rounds have no such window."""
    _doubled: int = 1
    """How many have none after the next window in which nobody comes."""

    def called(self, slack: float | None, now: float) -> None:
        """A worker has, and can go on for `slack` without the result (None: nobody knows)."""
        self._first = now if self._first is None else self._first
        self._calls += 1
        if slack is not None:
            self._slacks.append(slack)

    def took(self, seconds: float, *, among_hosts: bool) -> None:
        """The newest exchange is over."""
        self.exchange, self.among_hosts = seconds, seconds if among_hosts else 0.0

    def is_over(self, now: float) -> bool:
        """Enough workers have called; whether it is over."""
        self._since = now if self._since is None else self._since
        if self.until == math.inf and self._first is not None:
            if self.cap > 0:
                left = min(self._slacks, default=math.inf) - (now - self._first) - self.exchange
                self.until = now + min(self.cap, max(0.0, GAMMA * left))
            elif self.among_hosts > 0 and not self._without and not self._slacks:
                self.until, self._opened_at = now + SHARE * self.among_hosts, self._calls
        return now >= self.until if self.cap or self.until < math.inf else True

    def closed(self, now: float) -> None:
        """The round starts."""
        has_one = self.cap or self._opened_at is not None
        self.used = max(0.0, now - self._since) if has_one and self._since is not None else 0.0
        if self._opened_at is None:
            self._without = max(0, self._without - 1)
        elif self._calls > self._opened_at:
            self._doubled = 1
        else:
            self._without, self._doubled = self._doubled, min(2 * self._doubled, _MOST_WITHOUT)
        self.until, self._first, self._since, self._slacks = math.inf, None, None, []
        self._calls, self._opened_at = 0, None
