"""`Rounds`: the training thread's view of the rounds of its worker.

`Standing` is the position of a worker in its rounds, for learners of several workers, which apply the same rounds in
each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from quorate.core.contracts import Wire, Work
from quorate.core.errors import WireTimeout
from quorate.core.vectors import Flat, Layout
from quorate.records.tape import Position
from quorate.rounds.buffer import Kept
from quorate.rounds.coding import Coding
from quorate.rounds.entering import KNOCK_SECONDS, Knocking, Replica, Watching, give_copy, say_over
from quorate.rounds.events import Jumped, Save, Wished, Word
from quorate.rounds.fragments import Fragments, PendingFragments
from quorate.rounds.log import Round
from quorate.rounds.messages import Note, Wish
from quorate.rounds.pace import Arrival, Called, Copied, OtherRounds, Wait
from quorate.rounds.pieces.row_paces import pace_in
from quorate.rounds.pieces.row_tasks import row_task
from quorate.rounds.progress import RoundTask
from quorate.rounds.terms import Agreed, check, check_change
from quorate.wire.survivors import Survivors


class Rounds:
    """The rounds of one optimizer, for its training thread."""

    def __init__(
        self,
        wire: Wire,
        agreed: Agreed,
        layout: Layout,
        replica: Replica,
        fragments: Fragments | None,
        watching: Watching,
        coding: Coding | None = None,
        row: Wire | None = None,
    ) -> None:
        """`row` are the workers of this replica, where it is in pieces: see `row_tasks`."""
        check(agreed)
        self.agreed, self._wire, self._replica, self._watching = agreed, wire, replica, watching
        self._handed = None if fragments is None else PendingFragments(agreed, fragments)
        own = wire, agreed, layout, self._handed, coding
        self._progress = RoundTask(*own) if row is None else row_task(*own, row=row)
        self._meeting, self._member = Meeting(wire, agreed, replica), self._progress.member
        self._arrival = Arrival(wire, self._progress, self.give_copies)
        self._pace = pace_in(
            row, self._progress, self._arrival, lambda: self._era, lambda: self._is_pausing, self._give_copy
        )
        self.standing = Standing(self._progress, self._arrival, self._handed, lambda: self._call(waits=True))
        self.is_over = self._has_paused = self._is_due = self._is_closed = self._is_pausing = False
        self.version = self._progress.applied  # the newest round that was applied
        self.progress = 0.0  # synchronous steps made up to the newest round that was applied: see `Round.progress`
        self._era = -1  # of a newcomer: the round of the pause before its copy; -1: none
        self._put_off: Copied | None = None
        self._is_behind = False
        """Whether a checkpoint has left gradients without a round, and this worker has contributed none since."""
        self._pauses = self._looks = self._jumps = 0
        """The number of pauses, of looks for rounds since the last one, and of copies that this worker became."""

    def blank(self) -> Flat:
        """Return a vector to pack a contribution into."""
        return self._progress.blank(self._progress.layout)

    def lay_out(self, layout: Layout) -> None:
        """Lay out contributions by `layout`, on all workers in a pause."""
        self._progress.lay_out(layout)

    def lay_out_fragments(self, fragments: Fragments) -> None:
        """Lay out rounds of fragments again, on all workers in a pause."""
        assert self._handed is not None, "rounds are of fragments where that was agreed"
        self._handed.lay_out(fragments)

    @property
    def ledger(self) -> Any:
        """The ledger of this worker's contributions; see `rounds.buffer.Ledger`."""
        return self._member.pending.ledger

    def contribute(
        self,
        vector: Flat | None,
        *,
        weight: float,
        step: float,
        options: Any,
        waits: bool = True,
        measures: Any = None,
        is_lent: Callable[[], bool] | None = None,
        version: int | None = None,
    ) -> Called:
        """Contribute a gradient, divided by the size of the world (None: nothing this time), and call for a round.

        It calls if no round has started since the worker's previous step returned, else the gradient rides with the
        next. Takes over `vector`; nobody writes to it as long as `is_lent()`. `step` is the place in the training that
        `options` are for, in synchronous steps: a round takes the furthest. `waits` says whether the worker waits for
        the result before it goes on computing; `measures` is any JSON that goes with the gradient. `version` is the
        round on whose parameters the gradient was computed, the newest applied one if None. The returned work is done
        when every round that has started is there.
        """
        if vector is not None:
            about = {"weight": weight, "step": step, "options": options, "measures": measures, "is_lent": is_lent}
            about["version"] = self.version if version is None else version
            self._progress.add(vector, about)
        self._is_behind = False
        return self._call(waits=waits)

    def _call(self, *, waits: bool, slack: float | None = None) -> Called:
        return self._pace.call(slack, waits=waits)

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
        """Contribute all fragments, which it takes over, and call; the worker needs no result for `slack` seconds."""
        assert self._handed is not None, "rounds are of fragments where that was agreed"
        with self._progress.lock:
            self._handed.hand_in(vectors, fresh, self.version, step, measures, began=began)
        return self._call(waits=waits, slack=slack)

    def hand_in_last(
        self, vectors: Sequence[Flat], *, fresh: float, step: float, measures: Any, began: int | None = None
    ) -> Wait | None:
        """Contribute all fragments before a pause; return what to wait for, where it has to be tried again."""
        assert self._handed is not None, "rounds are of fragments where that was agreed"
        with self._progress.lock:
            if self._handed.hand_in(vectors, fresh, self.version, step, measures, began=began, is_last=True):
                return None
        return Wait(self._arrival, self.version + 1, is_called_for=False)

    def goes_on(self) -> None:
        """Say that the worker computes, whatever it waited for."""
        self._arrival.goes_on()

    def waits(self) -> None:
        """Say that the worker waits elsewhere, until `goes_on`: no round waits for it."""
        self._progress.say(Note("wait"))

    def goes_away(self) -> None:
        """Say that this worker does not step until `is_back`: nobody waits for it, and no rounds are kept for it."""
        self._replica.boundary()
        self._progress.say(Note("away"))

    def is_back(self) -> Iterator[Round]:
        """Step again; yield the rounds that were missed, or, where these are not kept, the rounds after a copy."""
        self._progress.say(Note("back", self.version))
        newest = self._pace.started
        with self._look():
            while self.version < newest:
                self._pace.until(min(self.version + 1, newest), is_called_for=False)
                yield from self._completed()
                newest = min(newest, self._pace.started)

    def enter(self, *, is_further: bool = False) -> Iterator[Round]:
        """Join the training, and yield the rounds to apply on the way: see `rounds.entering`. `is_further`: this worker
        has joined another optimizer's rounds already; then it asks for a round of its own where none comes."""
        knocking = Knocking(self._member, self._progress, self._wire, may_hasten=is_further)
        if (copied := self._put_off) is not None:
            self._put_off = None
            self._become(copied, in_step=False)
        while self._pace.is_outside:
            knocking.knock(self._era)
            self._pace.wait_for_news(KNOCK_SECONDS)
            self._progress.check()
            with self._look():
                yield from self._completed()
            if not self._pace.follows:
                knocking.check()
        self._pauses, self._looks = 1, 0
        self._wire.enter()

    def completed(self, *, in_step: bool = False, up_to: float = math.inf) -> Iterator[Round]:
        """Yield the rounds that are there and not applied, in order, up to round `up_to`. Each is applied when the next
        one is asked for. In a step, those behind one that is to be kept come after that. After a checkpoint, before the
        first contribution, the gradients that were pending get a round of their own, as they would have had."""
        if self._is_behind:
            self._is_behind = False
            self._call(waits=True).wait()
        with self._look():
            yield from self._completed(in_step=in_step, up_to=up_to)

    @contextmanager
    def _look(self) -> Iterator[None]:
        """Apply rounds in one look: see `tape`."""
        self._looks, before = self._looks + 1, self.version
        try:
            yield
        finally:
            if self.version != before:
                self._watching.looked((self._pauses, self._looks), self.version)

    def _completed(self, *, in_step: bool = False, up_to: float = math.inf) -> Iterator[Round]:
        while not self._is_due and (due := self._pace.next(up_to)) is not None:
            if isinstance(due, Copied):
                self._become(due, in_step=in_step)
                continue
            yield due
            self._has_applied(due, in_step=in_step)
        if self._is_due:
            self._arrival.drain()
            self.give_copies()

    def _has_applied(self, applied: Round, *, in_step: bool) -> None:
        self._has_come_to(applied.number)
        self.progress = applied.progress
        if applied.saves:
            self._reached(applied.number, applied.term, in_step=in_step)

    def _has_come_to(self, number: int) -> None:
        self.version = number
        self._pace.applied(number)

    @property
    def some_joined(self) -> bool:
        """Whether workers have joined since the training began."""
        return bool(self._member.log.joined)

    def run_beside(self, others: OtherRounds) -> None:
        """Tell the rounds of this worker's other optimizers where it waits for long, as they may wait for it."""
        self._arrival.others = others

    def pause(self, *, ended: bool, apply: Callable[[Round], None]) -> None:
        """Wait until no worker steps, and apply what comes; then nothing is pending and all replicas are equal."""
        if self.is_over:
            return
        self._replica.boundary()
        self._progress.say(Note("end" if ended else "pause"))
        self._looks += 1
        while not self.is_over:
            self._has_paused, self._is_pausing = False, True
            for completed in self._completed():
                apply(completed)
                if completed.is_pause:
                    self._has_applied(completed, in_step=False)
                    self._has_paused, self.is_over = True, completed.is_last
                    break
            if self._has_paused:
                self._is_pausing, self._pauses, self._looks = False, self._pauses + 1, 0
                log = self._member.log
                self._meeting.meet(log.era, log.joined, is_over=self.is_over, meanwhile=self.give_copies)
                if not ended:
                    return
            else:
                self._pace.until(self.version + 1)

    def _become(self, copied: Copied, *, in_step: bool) -> None:
        copy, before = copied.copy, self.version
        state = copy.jump.state
        try:
            self._replica.adopt(copy.replica, copy.tensors)
        except BaseException:
            self._put_off = copied
            raise
        if copy.is_whole:
            self._era = state.era
        self._has_paused, self.is_over, self.progress = state.is_pause, state.is_last, state.progress
        self._has_come_to(state.number)
        self._watching.looked((self._pauses, self._looks), self.version, copied.source)
        self._jumps += 1
        self._progress.say(Jumped(copy.jump))
        self._arrival.expect(lambda: self._member.jumps >= self._jumps)
        marked = max((number for number, _ in state.marks), default=0)
        if marked == self.version:
            self._reached(marked, state.log_term, in_step=in_step)
        elif marked > before:  # what this worker was after that round, nobody knows
            self.ask_for_save(self._member.log.saves + 1)

    def agree(self, *, why: str = "", **settings: Any) -> None:
        """Ask for other `settings` (`terms.CHANGEABLE`) from a later round on: see `Round.settings`. Of requests after
        the same round the first to reach the leader counts. Raises `ConfigurationError`."""
        check_change(self.agreed, settings, len(self._member.log.joined))
        self._progress.say(Wished(Wish(self.version, settings, why)))

    # -- checkpoints

    def ask_for_save(self, request: int) -> None:
        """Have a round marked, unless one was for this `request` or a greater one."""
        self._progress.say(Save(request))

    def _reached(self, number: int, term: int, *, in_step: bool) -> None:
        self._is_due = not self._replica.reached(number, term, in_step=in_step)
        if self._is_due and not self._is_closed:
            self._arrival.goes_on()  # with the parameters of this round, whatever it was to wait for

    def keep(self) -> Kept:
        """Return the state of this worker for a checkpoint, after the newest round it has applied."""
        keeping = self._member.keeping
        if self._is_closed:
            keeping.keep(self.version)
        else:
            keeping.kept = None
            self._progress.say(Word("keep"))
            self._arrival.expect(lambda: keeping.kept is not None)
        self._is_due = False
        assert keeping.kept is not None
        return keeping.kept

    def restore(self, kept: Kept) -> None:
        """Continue from `kept`; every worker does so, before any contributes."""
        (keeping := self._member.keeping).kept = kept
        self._progress.say(Word("restore"))
        self._arrival.expect(lambda: keeping.kept is None)
        self._has_come_to(kept.number)
        self._is_due, self.progress, self._is_behind = False, kept.progress, False
        if self._handed is None:
            self._is_behind = bool(kept.entries)

    def give_copies(self) -> None:
        """Send copies of this replica to the workers that wait for one."""
        self._pace.serve()

    def _give_copy(self, to: int, is_whole: bool) -> None:
        give_copy(to, self.version, self._member, self._progress, self._replica, is_whole=is_whole)
        if is_whole:
            at = Position(self._pauses, self._looks, self.version, self._member.pending.times)
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
        newest = self._task.member.log.get(self.version)
        return frozenset() if newest is None else frozenset(newest.missing)

    def until(self, number: int) -> None:
        self._arrival.until(number, is_called_for=False)

    def call(self) -> None:
        self._call().wait()

    def withdraw(self) -> None:
        if self._handed is not None:
            with self._task.lock:
                self._handed.withdraw()


_SECONDS = 0.02


class Meeting:
    """The barrier of one worker; `wire` is that of its rounds."""

    def __init__(self, wire: Wire, agreed: Agreed, replica: Replica) -> None:
        self._wire, self._size, self._replica = wire, agreed.size, replica
        self._among: Survivors | Wire = Survivors(wire.channel("meeting")) if agreed.tolerates_death else wire

    def meet(self, number: int, joined: Sequence[int], *, is_over: bool, meanwhile: Callable[[], None]) -> None:
        """Wait for all workers that paused in round `number`; call `meanwhile` now and then."""
        if joined:
            self._replica.met(number, joined)
            if isinstance(self._among, Survivors):
                self._among.among([*range(self._size), *joined], number)
        if is_over:
            say_over(self._wire)
        met: Work[Any] = self._among.barrier()
        while not met.done():
            meanwhile()
            with suppress(WireTimeout):
                met.wait(_SECONDS)
        met.wait()
