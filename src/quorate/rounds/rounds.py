"""`Rounds`: what the training thread of one worker has of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from quorate.core.contracts import Wire
from quorate.core.errors import WireTimeout
from quorate.core.tape import Position
from quorate.core.vectors import Flat, Layout
from quorate.rounds.arrival import Arrival, Wait
from quorate.rounds.buffer import Kept
from quorate.rounds.coding import Coding
from quorate.rounds.entering import KNOCK_SECONDS, Knocking, NobodyWatches, Replica, Watching, give_copies
from quorate.rounds.fragments import Fragments, PendingFragments
from quorate.rounds.log import COPIED, Round
from quorate.rounds.meeting import Meeting
from quorate.rounds.pending import PendingGradients
from quorate.rounds.progress import RoundTask
from quorate.rounds.standing import Standing
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
    ) -> None:
        check(agreed)
        self.agreed, self._wire, self._replica, self._watching = agreed, wire, replica, watching or NobodyWatches()
        self._handed = None if fragments is None else PendingFragments(agreed, fragments)
        self._progress = RoundTask(wire, agreed, layout, self._handed, coding)
        self._meeting, self._member = Meeting(wire, agreed, replica), self._progress.member
        self._arrival = Arrival(wire, self._progress, self.give_copies)
        self.standing = Standing(self._progress, self._arrival, self._handed, lambda: self._call(waits=True))
        self.is_over = self._has_settled = self._is_due = self._is_closed = self._settles = False
        self.progress = 0.0
        """Synchronous steps made up to the newest round that was applied: see `Round.progress`."""
        self._stretch = -1
        """Of one that joins: where its copy is from."""
        self._rests = self._looks = 0
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
        return self._member.applied

    @property
    def ledger(self) -> Any:
        """What became of this worker's contributions; see `rounds.pending.Ledger`."""
        return self._member.pending.ledger

    def contribute(
        self, vector: Flat | None, *, weight: float, step: float, options: Any, waits: bool = True, measures: Any = None
    ) -> Wait:
        """Hand in a gradient (None: nothing this time), divided by the size of the world; it is not the caller's more.

        `step` is the place in the training that `options` are for, in synchronous steps: a round takes the furthest.
        `waits` says whether the worker waits for what is returned before it goes on computing; `measures` is any JSON
        that goes with the gradient into its round. Calls for a round if none has started since the worker's previous
        step returned (what has started it would have applied by then), else rides with the next one. The work is done
        when every round that has started, or that was called for, is there.
        """
        member = self._member
        if vector is not None:
            with self._progress.lock:
                assert isinstance(member.pending, PendingGradients), "fragments are handed in"
                member.pending.add(vector, weight, self.version, step, options, measures)
        return self._call(waits=waits)

    def _call(self, *, waits: bool, slack: float | None = None) -> Wait:
        started = self._member.started
        if started > self.version:
            self._progress.say({"note": "ride", "computing": started if waits else self.version})
            return Wait(self._arrival, started, is_called_for=False)
        about = {"since": started, "computing": None if waits else self.version, "slack": slack}
        self._progress.say({"note": "call", **about})
        return Wait(self._arrival, started + 1)

    def hand_in(
        self,
        vectors: Sequence[Flat],
        *,
        fresh: float,
        step: float,
        measures: Any,
        waits: bool = False,
        slack: float | None = None,
    ) -> Wait:
        """Hand in all fragments, which are not the caller's more: see `fragments.PendingFragments`. As `contribute`.

        For `slack` seconds the worker goes on without missing what comes of it: see `window`.
        """
        assert self._handed is not None, "rounds are of fragments where that was agreed"
        with self._progress.lock:
            self._handed.hand_in(vectors, fresh, self.version, step, measures)
        return self._call(waits=waits, slack=slack)

    def hand_in_last(self, vectors: Sequence[Flat], *, fresh: float, step: float, measures: Any) -> Wait | None:
        """Hand in all fragments before this worker settles; what to wait for before it asks again, if that has to be:
        a round that it has not applied has taken something."""
        assert self._handed is not None, "rounds are of fragments where that was agreed"
        with self._progress.lock:
            if self._handed.hand_in(vectors, fresh, self.version, step, measures, is_last=True):
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
        newest = self._member.started
        with self._look():
            while self.version < newest:
                self._arrival.until(min(self.version + 1, newest), is_called_for=False)
                yield from self._completed()
                newest = min(newest, self._member.started)

    def enter(self) -> Iterator[Round]:
        """Join those that train: see `rounds.entering`; the rounds to be applied on the way."""
        knocking = Knocking(self._member, self._progress, self._wire)
        while self._member.is_outside:
            knocking.knock(self._stretch)
            with suppress(WireTimeout):
                self._arrival.next_news(KNOCK_SECONDS)
            self._progress.check()
            with self._look():
                yield from self._completed()
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
        member = self._member
        while self._may_apply(in_step=in_step) and (one := member.log.get(member.applied + 1)) and one.number <= up_to:
            yield one
            member.applied, self.progress = one.number, one.progress
            if one.saves:
                self._reached(one.number, one.term, in_step=in_step)
        self._arrival.drain()
        self.give_copies()

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
                    self._member.applied, self.progress = one.number, one.progress
                    if one.saves:
                        self._reached(one.number, one.term, in_step=False)
                    self._has_settled, self.is_over = True, one.is_last
                    break
            if self._has_settled:
                self._settles, self._rests, self._looks = False, self._rests + 1, 0
                log = self._member.log
                self._meeting.meet(log.stretch, log.joined, is_over=self.is_over, meanwhile=self.give_copies)
                if not ended:
                    return
            else:
                self._arrival.until(self._member.applied + 1)

    def _may_apply(self, *, in_step: bool) -> bool:
        """Take a copy that has come; whether a further round may be applied."""
        if not self._is_due:
            self._take_copy(in_step=in_step)
        return not self._is_due

    def _take_copy(self, *, in_step: bool) -> None:
        member = self._member
        if member.copy is None:
            return
        source, header, _ = member.copy
        member.copy = None
        if header["is_whole"]:
            if not member.is_outside or header["stretch"] <= self._stretch:
                return
            self._stretch = header["stretch"]
        elif (header["number"], header["log_term"]) == (member.applied, member.log.term_of(member.applied)):
            return
        self._replica.adopt(header["replica"], header["tensors"])
        self._has_settled, self.is_over = header["settles"], header["is_last"]
        before, member.applied, self.progress = member.applied, header["number"], header["progress"]
        self._watching.looked((self._rests, self._looks), member.applied, source)
        jumps = member.jumps
        self._progress.say({"jump": {key: header[key] for key in (*COPIED, "term")}})
        self._arrival.expect(lambda: member.jumps > jumps)
        marked = max((number for number, _ in header["marks"]), default=0)
        if marked == member.applied:
            self._reached(marked, header["log_term"], in_step=in_step)
        elif marked > before:  # what this worker was after that round, nobody knows
            self.ask_for_save(member.log.saves + 1)

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
        self._is_due, self.progress = False, kept.progress

    def give_copies(self) -> None:
        """Answer those that were told to copy this replica."""
        at = Position(self._rests, self._looks, self.version, self._member.pending.times)
        give_copies(self._member, self._progress, self._replica, self._watching, at, settles=self._settles)

    def close(self) -> None:
        """End the task beside the training thread."""
        self._progress.close()
        self._is_closed = True
