"""`Rounds`: the training thread's view of the rounds of its worker.

`Standing` is the place of a worker in its rounds, for learners of several workers, which apply the same rounds in each
step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from quorate.core.contracts import Wire, Work
from quorate.core.vectors import Flat, Layout
from quorate.records.tape import Position
from quorate.rounds.arrival import Arrival, OtherRounds, Wait
from quorate.rounds.buffer import Kept
from quorate.rounds.coding import Coding
from quorate.rounds.entering import KNOCK_SECONDS, Knocking, NobodyWatches, Replica, Watching, give_copy
from quorate.rounds.fragments import Fragments, PendingFragments
from quorate.rounds.log import COPIED, Round
from quorate.rounds.meeting import Meeting
from quorate.rounds.pace import Called, Copied, OwnPace
from quorate.rounds.pieces.row_paces import pace_in
from quorate.rounds.pieces.row_tasks import row_task
from quorate.rounds.progress import RoundTask
from quorate.rounds.terms import Agreed, check, check_change


class Rounds:
    """The rounds of one optimizer, for its training thread."""

    def __init__(
        self,
        wire: Wire,
        agreed: Agreed,
        layout: Layout,
        replica: Replica,
        fragments: Fragments | None = None,
        watching: Watching | None = None,
        coding: Coding | None = None,
        row: Wire | None = None,
    ) -> None:
        """`row` are the workers of this replica, where it is in pieces: see `row_tasks`."""
        check(agreed)
        self.agreed, self._wire, self._replica, self._watching = agreed, wire, replica, watching or NobodyWatches()
        self._handed = None if fragments is None else PendingFragments(agreed, fragments)
        own = wire, agreed, layout, self._handed, coding
        self._progress = RoundTask(*own) if row is None else row_task(*own, row=row)
        self._meeting, self._member = Meeting(wire, agreed, replica), self._progress.member
        self._arrival = Arrival(wire, self._progress, self.give_copies)
        own_pace = OwnPace(self._progress, self._arrival, lambda: self._stretch, lambda: self._settles, self._give_copy)
        self._pace = pace_in(row, self._progress, self._arrival, own_pace, self._give_copy)
        self.standing = Standing(self._progress, self._arrival, self._handed, lambda: self._call(waits=True))
        self.is_over = self._has_settled = self._is_due = self._is_closed = self._settles = False
        self.progress = 0.0
        """Synchronous steps made up to the newest round that was applied: see `Round.progress`."""
        self._stretch = -1
        """Of one that joins: where its copy is from."""
        self._put_off: Copied | None = None
        """A copy that this worker could not become yet."""
        self._rests = self._looks = self._jumps = 0
        """How often all have settled, and how often it was asked since then what is there."""

    def blank(self) -> Flat:
        """A vector to pack a contribution into."""
        return self._progress.blank(self._progress.layout)

    def lay_out(self, layout: Layout) -> None:
        """Of contributions, on all workers after all have settled, before any goes on."""
        self._progress.lay_out(layout)

    def lay_out_fragments(self, fragments: Fragments) -> None:
        """As `lay_out`."""
        assert self._handed is not None, "rounds are of fragments where that was agreed"
        self._handed.lay_out(fragments)

    @property
    def version(self) -> int:
        return self._pace.version

    @property
    def ledger(self) -> Any:
        """What became of this worker's contributions; see `rounds.pending.Ledger`."""
        return self._member.pending.ledger

    def contribute(
        self, vector: Flat | None, *, weight: float, step: float, options: Any, waits: bool = True, measures: Any = None
    ) -> Called:
        """Hand in a gradient (None: nothing this time), divided by the size of the world; it is not the caller's more.

        `step` is the place in the training that `options` are for, in synchronous steps: a round takes the furthest.
        `waits` says whether the worker waits for what is returned before it goes on computing; `measures` is any JSON
        that goes with the gradient into its round. Calls for a round if none has started since the worker's previous
        step returned (what has started it would have applied by then), else rides with the next one. The work is done
        when every round that has started, or that was called for, is there.
        """
        if vector is not None:
            about = {"weight": weight, "version": self.version, "step": step, "options": options, "measures": measures}
            self._progress.add(vector, about)
        return self._call(waits=waits)

    def _call(self, *, waits: bool, slack: float | None = None) -> Called:
        return self._pace.call({"slack": slack}, waits=waits)

    def hand_in(
        self,
        vectors: Sequence[Flat],
        *,
        fresh: float,
        step: float,
        measures: Any,
        waits: bool = False,
        slack: float | None = None,
        began: int | None = None,
    ) -> Called:
        """Hand in all fragments, which are not the caller's more: see `fragments.PendingFragments`. As `contribute`.

        For `slack` seconds the worker goes on without missing what comes of it: see `window`.
        """
        assert self._handed is not None, "rounds are of fragments where that was agreed"
        with self._progress.lock:
            self._handed.hand_in(vectors, fresh, self.version, step, measures, began=began)
        return self._call(waits=waits, slack=slack)

    def hand_in_last(
        self, vectors: Sequence[Flat], *, fresh: float, step: float, measures: Any, began: int | None = None
    ) -> Wait | None:
        """Hand in all fragments before this worker settles; what to wait for before it asks again, if that has to be:
        a round that it has not applied has taken something."""
        assert self._handed is not None, "rounds are of fragments where that was agreed"
        with self._progress.lock:
            if self._handed.hand_in(vectors, fresh, self.version, step, measures, began=began, is_last=True):
                return None
        return Wait(self._arrival, self.version + 1, is_called_for=False)

    def goes_on(self) -> None:
        """The worker computes, whatever it waited for."""
        self._arrival.goes_on()

    def waits(self) -> None:
        """The worker waits for the others elsewhere, until `goes_on`: no round waits for it."""
        self._progress.say({"note": "wait"})

    def goes_away(self) -> None:
        """This worker does not step until `is_back`; nobody waits for it, and no rounds are kept for it."""
        self._replica.boundary()
        self._progress.say({"note": "away"})

    def is_back(self) -> Iterator[Round]:
        """It steps again: the rounds it has missed, or, where they are not kept any more, what came after a copy."""
        self._progress.say({"note": "back", "computing": self.version})
        newest = self._pace.started
        with self._look():
            while self.version < newest:
                self._pace.until(min(self.version + 1, newest), is_called_for=False)
                yield from self._completed()
                newest = min(newest, self._pace.started)

    def enter(self, *, is_further: bool = False) -> Iterator[Round]:
        """Join those that train: see `rounds.entering`; the rounds to be applied on the way.

        `is_further`: this worker has joined the rounds of another optimizer already, where the others may wait for it.
        Then it asks for a round of its own where none comes.
        """
        knocking = Knocking(self._member, self._progress, self._wire, may_hasten=is_further)
        if (copied := self._put_off) is not None:
            self._put_off = None
            self._become(copied, in_step=False)
        while self._pace.is_outside:
            knocking.knock(self._stretch)
            self._pace.wait_for_news(KNOCK_SECONDS)
            self._progress.check()
            with self._look():
                yield from self._completed()
            if not self._pace.follows:
                knocking.check()
        self._rests, self._looks = 1, 0
        self._wire.enter()

    def completed(self, *, in_step: bool = False, up_to: float = math.inf) -> Iterator[Round]:
        """The rounds (`up_to` this one) that are there and not applied, in order; each is applied when the next one is
        asked for. Inside a step, those behind one that is to be kept come after it has been."""
        with self._look():
            yield from self._completed(in_step=in_step, up_to=up_to)

    @contextmanager
    def _look(self) -> Iterator[None]:
        """What is applied meanwhile is so in one look: see `tape`."""
        self._looks, before = self._looks + 1, self.version
        try:
            yield
        finally:
            if self.version != before:
                self._watching.looked((self._rests, self._looks), self.version)

    def _completed(self, *, in_step: bool = False, up_to: float = math.inf) -> Iterator[Round]:
        while not self._is_due and (one := self._pace.next(up_to)) is not None:
            if isinstance(one, Copied):
                self._become(one, in_step=in_step)
                continue
            yield one
            self._has_applied(one, in_step=in_step)
        if self._is_due:
            self._arrival.drain()
            self.give_copies()

    def _has_applied(self, one: Round, *, in_step: bool) -> None:
        self._pace.applied(one.number)
        self.progress = one.progress
        if one.saves:
            self._reached(one.number, one.term, in_step=in_step)

    @property
    def some_joined(self) -> bool:
        """Whether workers have joined since the training began."""
        return bool(self._member.log.joined)

    def run_beside(self, others: OtherRounds) -> None:
        """Where this worker waits for long, tell the rounds of its other optimizers, which may wait for it."""
        self._arrival.others = others

    def settle(self, *, ended: bool, apply: Callable[[Round], None]) -> None:
        """Wait until no worker steps, applying what comes; then nothing is pending and all replicas are equal."""
        if self.is_over:
            return
        self._replica.boundary()
        self._progress.say({"note": "end" if ended else "settle"})
        self._looks += 1
        while not self.is_over:
            self._has_settled, self._settles = False, True
            for one in self._completed():
                apply(one)
                if one.settles:
                    self._has_applied(one, in_step=False)
                    self._has_settled, self.is_over = True, one.is_last
                    break
            if self._has_settled:
                self._settles, self._rests, self._looks = False, self._rests + 1, 0
                log = self._member.log
                self._meeting.meet(log.stretch, log.joined, is_over=self.is_over, meanwhile=self.give_copies)
                if not ended:
                    return
            else:
                self._pace.until(self.version + 1)

    def _become(self, copied: Copied, *, in_step: bool) -> None:
        header, before = copied.header, self.version
        try:
            self._replica.adopt(header["replica"], header["tensors"])
        except BaseException:
            self._put_off = copied
            raise
        if header["is_whole"]:
            self._stretch = header["stretch"]
        self._has_settled, self.is_over, self.progress = header["settles"], header["is_last"], header["progress"]
        self._pace.applied(header["number"])
        self._watching.looked((self._rests, self._looks), self.version, copied.source)
        self._jumps += 1
        self._progress.say({"jump": {key: header[key] for key in (*COPIED, "term")}})
        self._arrival.expect(lambda: self._member.jumps >= self._jumps)
        marked = max((number for number, _ in header["marks"]), default=0)
        if marked == self.version:
            self._reached(marked, header["log_term"], in_step=in_step)
        elif marked > before:  # what this worker was after that round, nobody knows
            self.ask_for_save(self._member.log.saves + 1)

    def agree(self, *, why: str = "", **settings: Any) -> None:
        """Ask for other `settings` (`terms.CHANGEABLE`), from a round on that the leader says: see `Round.settings`.

        Of what several workers ask for after the same round it is what comes to the leader first. What was asked for
        after an earlier round than what is in force comes to nothing. Raises `ConfigurationError`.
        """
        check_change(self.agreed, settings)
        self._progress.say({"wish": {"request": self.version, "settings": settings, "why": why}})

    # -- checkpoints

    def ask_for_save(self, request: int) -> None:
        """Let a round be marked, unless one was for this `request` or a greater one."""
        self._progress.say({"save": request})

    def _reached(self, number: int, term: int, *, in_step: bool) -> None:
        self._is_due = not self._replica.reached(number, term, in_step=in_step)
        if self._is_due and not self._is_closed:
            self._arrival.goes_on()  # with the parameters of this round, whatever it was to wait for

    def keep(self) -> Kept:
        """What a checkpoint needs of this worker as it is after the newest round it has applied."""
        keeping = self._member.keeping
        if self._is_closed:
            keeping.keep(self.version)
        else:
            keeping.kept = None
            self._progress.say({"keep": True})
            self._arrival.expect(lambda: keeping.kept is not None)
        self._is_due = False
        assert keeping.kept is not None
        return keeping.kept

    def restore(self, kept: Kept) -> None:
        """Go on from there; every worker does so, before any contributes."""
        (keeping := self._member.keeping).kept = kept
        self._progress.say({"restore": True})
        self._arrival.expect(lambda: keeping.kept is None)
        self._pace.applied(kept.number)
        self._is_due, self.progress = False, kept.progress

    def give_copies(self) -> None:
        """Answer those that were told to copy this replica."""
        self._pace.serve()

    def _give_copy(self, to: int, is_whole: bool) -> None:
        give_copy(to, self.version, self._member, self._progress, self._replica, is_whole=is_whole)
        if is_whole:
            at = Position(self._rests, self._looks, self.version, self._member.pending.times)
            self._watching.gave(at, to)

    def close(self) -> None:
        """End the task beside the training thread."""
        self._progress.close()
        self._is_closed = True


class Standing:
    """Implements `core.groups.Standing`; `call` calls for a round."""

    def __init__(
        self, task: RoundTask, arrival: Arrival, handed: PendingFragments | None, call: Callable[[], Work[int]]
    ) -> None:
        self._task, self._arrival, self._handed, self._call = task, arrival, handed, call

    @property
    def version(self) -> int:
        return self._task.applied

    @property
    def newest(self) -> int:
        return self._task.member.log.newest

    @property
    def holds(self) -> int:
        with self._task.lock:
            return 0 if self._handed is None else self._handed.holds

    @property
    def missing(self) -> frozenset[int]:
        one = self._task.member.log.get(self.version)
        return frozenset() if one is None else frozenset(one.missing)

    def until(self, number: int) -> None:
        self._arrival.until(number, is_called_for=False)

    def call(self) -> None:
        self._call().wait()

    def withdraw(self) -> None:
        if self._handed is not None:
            with self._task.lock:
                self._handed.withdraw()
