"""The start of rounds: a pure function of what workers have said of their steps. Knows no wire and no clock.

A step *calls* for a round if no round has started since that worker's previous step returned; otherwise its gradient
*rides* with the next round. A round starts when enough workers have called since the last one started: `wait_for`, or
all that still step where they are fewer. So two starts are separated by a whole local step of the second's caller, and
the fastest worker may leave, evaluate or end at any time without a silence.

A round that may start waits for more workers to call, as long as it keeps nobody waiting (`window`). A worker that has
called goes on for some seconds without the result (its slack). A window takes a share of them, less the time until
enough had called, and the time of an exchange. The source is the adaptive grace window of Decoupled DiLoCo (Douillard
et al., 2026, after public descriptions). The window is gamma (overlap x step time - time to the quorum - time of an
exchange), up to a cap.

If workers wait for results and hosts form the sum among themselves, a round waits for a twentieth of the time of an
exchange. A worker that misses it by less would cost another exchange. After a window in which nobody called, the next
rounds have none: one of them at first, twice as many after each further such window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from quorate.core.draws import chosen
from quorate.core.members import Members
from quorate.rounds.messages import Note
from quorate.rounds.terms import Agreed

if TYPE_CHECKING:
    from quorate.rounds.buffer import Contribution


@dataclass(frozen=True)
class Learners:
    """The learner of each worker, by rank; there are several workers in one."""

    of: Sequence[int]

    def among(self, ranks: Iterable[int]) -> set[int]:
        """Return the learners of these workers."""
        return {self.of[rank] for rank in ranks}

    def same_learner(self, rank: int) -> frozenset[int]:
        """Return the other workers of the same learner."""
        return frozenset(r for r, of in enumerate(self.of) if of == self.of[rank]) - {rank}

    def whole(self, present: Sequence[int], absent: Iterable[int]) -> list[int]:
        """Return the `present` workers whose learners are complete: none of its workers is `absent`."""
        stuck = self.among(absent)
        return [rank for rank in present if self.of[rank] not in stuck]

    def one_of_each(self, received: Mapping[int, Contribution]) -> dict[int, Contribution]:
        """Return the contributions to a round in order of rank, with one vector at most of each learner.

        Of a learner's workers the one of the highest rank contributed last; each has sent all of the learner's steps by
        then.
        """
        contributions = dict(sorted(received.items()))
        newest = {
            self.of[rank]: rank for rank, contribution in contributions.items() if contribution.vector is not None
        }
        for rank, contribution in contributions.items():
            if contribution.vector is not None and newest[self.of[rank]] != rank:
                contributions[rank] = replace(
                    contribution, vector=None, weight=0.0, used_up=0.0, stalenesses=[], measures=[]
                )
        return contributions


Activity = Literal["stepping", "waiting", "away", "pausing", "ended"]

_STREAM = 0x5EED


@dataclass
class Stepper:
    """The state of one worker, which has a meaning while it is a member."""

    computing: int | None = 0  # the round whose parameters it computes on; None while it waits for a round
    is_present: bool = True
    activity: Activity = "stepping"
    heard_at: float = 0.0


class Workers:
    """In place of `learners.Learners`, where each worker is a learner of its own."""

    of: Sequence[int] = ()

    def among(self, ranks: Iterable[int]) -> set[int]:
        """Return these workers."""
        return set(ranks)

    def whole(self, present: list[int], absent: object) -> list[int]:
        """Return the `present` workers: they depend on no other."""
        return present

    def one_of_each(self, received: Mapping[int, Contribution]) -> dict[int, Contribution]:
        """Return the contributions to a round in order of rank."""
        return dict(sorted(received.items()))


class Calls:
    """The workers that have called since the newest round started."""

    def __init__(self, agreed: Agreed, started: int = 0) -> None:
        self.agreed = agreed
        self.started = started
        self.members = Members(agreed.size)
        """The workers that count in the next round: the leader's, which learns of deaths by messages, and of newcomers
        by the rounds that let them in."""
        self.workers = [Stepper() if rank in self.members else Stepper(None, False) for rank in agreed.ranks]
        self.callers: set[int] = set()
        self.learners = Learners(agreed.learners) if agreed.learners else Workers()
        self.now = 0.0
        self.window = Window(agreed.window)
        self._known: tuple[list[int], set[int]] | None = None
        self._ready: tuple[Agreed, bool] | None = None
        """Whether the callers are a quorum, by these terms; None after a change."""

    @property
    def inside(self) -> Sequence[int]:
        """The workers that have joined and not died."""
        return self.members.alive

    @property
    def quorum(self) -> int:
        """The number of workers (or learners) that have to call, of those that have not died."""
        if not self.agreed.learners:
            return self.agreed.quorum_of(len(self.members.alive))
        return self.agreed.quorum_of(len(self.learners.among(self.members.alive)))

    def died(self, rank: int) -> None:
        """Note that `rank` has died: it counts for nothing but its contributions."""
        self.members, self._known, self._ready = self.members.after(dead=[rank]), None, None
        self.workers[rank].is_present = False
        self.callers.discard(rank)

    def comes(self, rank: int, computing: int | None) -> None:
        worker, self._known, self._ready = self.workers[rank], None, None
        self.members = self.members.after(joined=[rank])
        worker.activity, worker.computing, worker.is_present = "stepping", computing, True

    def is_there(self, rank: int, *, is_so: bool = True) -> None:
        self.workers[rank].is_present, self._known, self._ready = is_so, None, None

    def come(self, ranks: Iterable[int], computing: int) -> None:
        """Note that `ranks` have joined; they compute on the parameters of round `computing`."""
        for rank in ranks:
            self.comes(rank, computing)

    def noted(self, rank: int, note: Note, logged: int, newest: int, era: int, *, is_forming: bool) -> None:
        """Take in the activity of `rank`, which has the rounds up to `logged`; `era` is the newest pause."""
        kind, computing = note.note, note.computing
        if kind == "call":
            self.called(rank, note.since, computing, note.slack)
            if note.since < self.started and not is_forming and computing is None:
                self.rode(rank, newest)  # the round it waits for is over already
        elif kind in ("ride", "back"):
            assert computing is not None, "a worker that steps says on which parameters"
            self.rode(rank, computing)
        elif kind == "wait":
            self.waits(rank)
        elif kind == "away":
            self.went_away(rank)
        elif kind in ("copy", "enter") or (kind == "pause" and logged < era):
            self.rode(rank, newest)  # it is inside by now, or has paused, as it will see
        else:
            self.paused(rank, ended=kind == "end")

    def called(self, rank: int, since: int, computing: int | None = None, slack: float | None = None) -> None:
        """Note a call; `since` is the newest round that `rank` knows to have started: an overtaken call is none."""
        self._steps(rank, computing)
        if since >= self.started:
            self._ready = None
            self.callers.add(rank)
            self.window.called(slack, self.now)

    def rode(self, rank: int, computing: int) -> None:
        """Note that `rank` has contributed, and computes the next gradient on the parameters of round `computing`."""
        self._steps(rank, computing)

    def _steps(self, rank: int, computing: int | None) -> None:
        worker = self.workers[rank]
        if worker.activity != "stepping":
            self._known = self._ready = None
        worker.activity, worker.computing = "stepping", computing

    def waits(self, rank: int) -> None:
        worker, self._known, self._ready = self.workers[rank], None, None
        worker.activity, worker.computing = "waiting", None
        self.callers.discard(rank)

    def went_away(self, rank: int) -> None:
        """Note that `rank` does not step, and is waited for by nobody, until it says that it is back."""
        worker, self._known, self._ready = self.workers[rank], None, None
        worker.activity, worker.computing, worker.is_present = "away", None, False
        self.callers.discard(rank)

    def paused(self, rank: int, *, ended: bool) -> None:
        """Note that `rank` pauses until all do: it drains, evaluates or (with `ended`) has ended."""
        worker, self._known, self._ready = self.workers[rank], None, None
        worker.activity, worker.computing = "ended" if ended else "pausing", None
        self.callers.discard(rank)

    def counted_at(self, now: float) -> int:
        """Return how many train: they have not ended or died, and have not been silent for too long."""
        return sum([self._trains(self.workers[rank], now) for rank in self.members.alive])

    def _trains(self, worker: Stepper, now: float) -> bool:
        is_heard = worker.is_present or now - worker.heard_at < self.agreed.patience
        return worker.activity != "ended" and is_heard

    def missing_at(self, now: float, *, is_pause: bool) -> list[int]:
        """Return, for learners of several workers, the workers that have died or been silent for too long; where the
        batch is kept, those that will not step."""
        if self.agreed.batch:
            stepping = {rank for rank in self.members.alive if is_pause or self._will_step(self.workers[rank])}
            return [rank for rank in self.agreed.ranks if rank not in stepping]
        missing = list[int]()
        for rank, worker in enumerate(self.workers[: len(self.agreed.learners)]):
            is_counted = is_pause or worker.activity == "ended" or self._trains(worker, now)
            if rank not in self.members or not is_counted:
                missing.append(rank)
        return missing

    def _will_step(self, worker: Stepper) -> bool:
        return worker.is_present and worker.activity in ("stepping", "pausing")

    def may_start(self) -> bool:
        """Return whether a round starts now."""
        if not self.callers or not self._is_called_for() or self._far_behind():
            return False
        return self.learners.among(self.callers) >= self._counted()[1] or self.window.is_over(self.now)

    @property
    def opens_at(self) -> float:
        """The time when a round may start that enough have called for; infinite where there is none."""
        return self.window.until if self._is_called_for() and not self._far_behind() else math.inf

    def held_by(self) -> list[int]:
        """Return the workers that the callers wait for, where no round may start: to call, or to catch up where they
        are at the bound."""
        if not self.callers:
            return []
        if self._is_called_for():
            return self._far_behind()
        called, of = self.learners.among(self.callers), self.learners.of
        return [rank for rank in self._counted()[0] if (of[rank] if of else rank) not in called]

    def _counted(self) -> tuple[list[int], set[int]]:
        if self._known is None:
            states = [(rank, self.workers[rank]) for rank in self.members.alive]
            workers = [(rank, worker) for rank, worker in states if worker.activity in ("stepping", "away")]
            absent = (rank for rank, worker in workers if not worker.is_present)
            counted = self.learners.whole([rank for rank, worker in workers if worker.is_present], absent)
            self._known = counted, self.learners.among(counted)
        return self._known

    def _is_called_for(self) -> bool:
        if not self.callers:
            return False
        if self._ready is None or self._ready[0] is not self.agreed:
            self._ready = self.agreed, self._are_a_quorum()
        return self._ready[1]

    def _are_a_quorum(self) -> bool:
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

    def may_pause(self) -> bool:
        """Return whether nobody steps any more: one more round takes what is pending."""
        if self.callers:  # they step
            return False
        return {self.workers[rank].activity for rank in self.members.alive} <= {"pausing", "ended"}

    @property
    def ended(self) -> int:
        return sum([self.workers[rank].activity == "ended" for rank in self.members.alive])

    @property
    def all_ended(self) -> bool:
        """Whether every worker has ended or died."""
        return self.ended == len(self.members.alive)

    def begin(self) -> int:
        """Start the next round; return its number."""
        self.started += 1
        self.callers.clear()
        self._ready = None
        self.window.closed(self.now)
        return self.started

    def takes_effect(self, number: int, joining: Sequence[int], *, is_pause: bool) -> None:
        """Note that round `number` is there, and the `joining` workers step from it on."""
        if is_pause:
            self.resumed(number)
        self.completed(number)
        if joining:
            self.come(joining, number)

    def completed(self, number: int) -> None:
        for worker in self.workers:
            if worker.activity == "stepping" and worker.computing is None:
                worker.computing = number

    def completed_all(self, number: int) -> None:
        """Note that all compute on the parameters of round `number`, where they begin."""
        for worker in self.workers:
            worker.computing = number

    def resumed(self, number: int) -> None:
        """Note that all that paused step again from round `number` on; those that have ended do not."""
        for worker in self.workers:
            if worker.activity == "pausing":
                worker.activity, worker.computing = "stepping", number
        self._known = self._ready = None

    def _initiator(self, counted: list[int]) -> int:
        (place,) = chosen(1, len(counted), self.agreed.seed, _STREAM, self.started + 1)
        return counted[place]


GAMMA = 0.8  # the share of the remaining slack that a window takes; a step may be shorter than the ones before it

SHARE = 0.05  # the share of the time of an exchange among hosts that a window takes
_MOST_WITHOUT = 32  # the most rounds without a window, after one in which nobody called


@dataclass
class Window:
    """The window of the next round, as its leader knows it. All times in seconds."""

    cap: float  # its greatest length, and its length where no worker has said its slack
    exchange: float = 0.0
    among_hosts: float = 0.0  # the same where hosts formed the sum among themselves, else 0
    until: float = math.inf
    used: float = 0.0
    _since: float | None = None
    _first: float | None = None
    _slacks: list[float] = field(default_factory=list)
    _calls: int = 0
    _opened_at: int | None = None  # the number of calls when a window among hosts began
    _without: int = 0  # the number of next rounds without such a window
    _doubled: int = 1

    def called(self, slack: float | None, now: float) -> None:
        """Note that a worker has called, and can go on for `slack` without the result (None: unknown)."""
        self._first = now if self._first is None else self._first
        self._calls += 1
        if slack is not None:
            self._slacks.append(slack)

    def took(self, seconds: float, *, among_hosts: bool) -> None:
        """Note the time of the newest exchange."""
        self.exchange, self.among_hosts = seconds, seconds if among_hosts else 0.0

    def is_over(self, now: float) -> bool:
        """Return whether the window is over; enough workers have called."""
        self._since = now if self._since is None else self._since
        if self.until == math.inf and self._first is not None:
            if self.cap > 0:
                left = min(self._slacks, default=math.inf) - (now - self._first) - self.exchange
                self.until = now + min(self.cap, max(0.0, GAMMA * left))
            elif self.among_hosts > 0 and not self._without and not self._slacks:
                self.until, self._opened_at = now + SHARE * self.among_hosts, self._calls
        return now >= self.until if self.cap or self.until < math.inf else True

    def closed(self, now: float) -> None:
        """Note that the round starts."""
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
