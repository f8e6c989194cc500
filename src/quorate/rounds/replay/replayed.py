"""The rounds of one worker in a replay, applied as they were recorded: when, and with which contributions.

Nobody leads. Once a worker has contributed as often as it had when a round asked it, it sends all others its
contribution to that round. A worker that applies the round adds up what it receives, in order of rank, as the leader
did.

Newcomers copy a replica from the worker that sent them theirs, as that was then, with its place in the data and the
state of its script. A worker that continued from another replica, after a silence, does so at the same place. All
replicas are the same after a round, so any worker that applied it may send the copy: the one of the lowest rank does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quorate.core.contracts import Message, Wire
from quorate.core.errors import ConfigurationError, Diverged, Stopped
from quorate.core.fields import Fields
from quorate.core.vectors import Flat, Layout, empty_vector
from quorate.records.rows import RoundRow
from quorate.records.tape import Look, OptimizerTape, Position
from quorate.rounds.buffer import Contribution, Kept, Snapshot
from quorate.rounds.coding import Coding
from quorate.rounds.entering import Replica, Watching
from quorate.rounds.fragments import Fragments, PendingFragments
from quorate.rounds.gathering import furthest, total_of
from quorate.rounds.log import Round
from quorate.rounds.pace import OtherRounds
from quorate.rounds.pending import PendingGradients
from quorate.rounds.rounds import Meeting
from quorate.rounds.terms import Agreed, check


class IdleInReplays:
    """The methods of `rounds.Rounds` that have nothing to do in a replay."""

    def goes_away(self) -> None:
        """Do nothing: nobody waits for anybody or asks for a copy, and there is no task beside the training thread."""

    waits = goes_on = give_copies = close = goes_away
    some_joined = False

    def run_beside(self, others: OtherRounds) -> None:
        """Do nothing: no worker waits for the steps of another one."""

    def agree(self, *, why: str = "", **settings: Any) -> None:
        """Do nothing: changes are recorded."""

    def ask_for_save(self, request: int) -> None:
        """Do nothing: a replay keeps no checkpoints."""

    def keep(self) -> Kept:
        """Raises `ConfigurationError`."""
        raise ConfigurationError("a replay writes no checkpoints")

    def restore(self, kept: Kept) -> None:
        raise ConfigurationError("a replay begins at the first step and cannot load a checkpoint")


_LAST = "last"


class ReplayedRounds(IdleInReplays):
    """Implements `rounds.Rounds` from a tape. Cost per round: each contributor sends its vector to all others."""

    def __init__(
        self,
        wire: Wire,
        agreed: Agreed,
        layout: Layout,
        replica: Replica,
        fragments: Fragments | None,
        watching: Watching,
        tape: OptimizerTape,
        coding: Coding | None = None,
    ) -> None:
        check(agreed)
        self._watching, self._coding = watching, coding
        tape.ends.append(self.end)
        self.agreed, self._wire, self._layout, self._tape = agreed, wire, layout, tape
        self._gradients = PendingGradients(agreed, coding=coding)
        self._handed = None if fragments is None else PendingFragments(agreed, fragments)
        if self._handed is not None:
            self._handed.code_by(coding)
        self._pending = self._gradients if self._handed is None else self._handed
        self._meeting = Meeting(wire, agreed, replica)
        self.version, self.progress, self.is_over = 0, 0.0, False
        self._step, self._options, self._pauses, self._looks = 0.0, None, 0, 0
        self._own: dict[int, Contribution] = {}
        self._pause_round = 0
        self._copies = _Copies(wire, tape, replica)
        self._entries = _Entries(wire, tape, replica)
        if agreed.tolerates_death:
            wire.tolerate_deaths("gone")
        self._waiting = [number for number, row in sorted(tape.rounds.items()) if str(wire.rank) in row.contributors]
        self._give()

    @property
    def standing(self) -> Any:
        return self

    # -- contributions of this worker

    def blank(self) -> Flat:
        return empty_vector(self._layout)

    def lay_out(self, layout: Layout) -> None:
        """See `Rounds.lay_out`."""
        self._layout = layout
        if self._coding is not None:
            self._coding.lay_out(layout)

    def lay_out_fragments(self, fragments: Fragments) -> None:
        """See `Rounds.lay_out_fragments`."""
        assert self._handed is not None, "rounds are of fragments where that was agreed"
        self._handed.lay_out(fragments)

    @property
    def ledger(self) -> Any:
        """The ledger of this worker's contributions."""
        return self._pending.ledger

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
    ) -> Decided:
        self._end_if_dead()
        if vector is not None:
            version = self.version if version is None else version
            self._gradients.add(vector, weight, version, step, options, measures, is_lent=is_lent)
            self._give()
        return Decided(self.version + 1)

    def hand_in(
        self,
        vectors: Sequence[Flat],
        *,
        fresh: float,
        step: float,
        measures: Any,
        waits: bool = False,
        slack: Any = 0,
        began: int | None = None,
    ) -> Decided:
        self._end_if_dead()
        assert self._handed is not None, "rounds are of fragments where that was agreed"
        self._handed.hand_in(vectors, fresh, self.version, step, measures, began=began)
        self._give()
        return Decided(self.version + 1)

    def hand_in_last(
        self, vectors: Sequence[Flat], *, fresh: float, step: float, measures: Any, began: int | None = None
    ) -> Decided | None:
        self._end_if_dead()
        assert self._handed is not None, "rounds are of fragments where that was agreed"
        if any(self._look < look < (self._pauses + 1, 0) for look in self._tape.looks):
            return Decided(self.version + 1)  # it had to look once more before it could
        self._handed.hand_in(vectors, fresh, self.version, step, measures, began=began)
        self._give()
        return None

    def _give(self) -> None:
        while self._waiting and self._times(self._waiting[0]) <= self._pending.times:
            number = self._waiting.pop(0)
            contribution = self._taken(number).contribution
            self._own[number] = contribution
            self._send(contribution)

    def _taken(self, number: int) -> Snapshot:
        row = self._tape.rounds[number]
        versions = [number - 1 - staleness for staleness, _ in row.contributors[str(self._wire.rank)]]
        of = {entry.version: entry for entry in self._gradients.entries}
        self._gradients.entries = [of.pop(version) for version in versions if version in of]
        snapshot = self._pending.take(number, is_pause=row.settles is True)
        self._gradients.entries = list(of.values())
        return snapshot

    def _times(self, number: int) -> int:
        return (self._tape.rounds[number].times or {})[str(self._wire.rank)]

    def _send(self, sent: Contribution) -> None:
        parts, number = () if sent.vector is None else sent.vector.parts, sent.number
        for other in self._tape.ranks:
            if other not in (self._wire.rank, *self._wire.dead) and number > self._tape.begins.get(other, 0):
                self._wire.send(Message(parts, sent.header(), shared=True), other, f"round {number}")

    # -- what it applies

    def completed(self, *, in_step: bool = False, up_to: float = 0.0) -> Iterator[Round]:
        self._end_if_dead()
        self._looks += 1
        newest = self._tape.looks.get(self._look, self.version)
        self._jump()
        yield from self._apply_up_to(newest)

    def _apply_up_to(self, newest: int) -> Iterator[Round]:
        while self.version < newest:
            formed = self._formed(self.version + 1)
            yield formed
            self._applied(formed)
            if self.version == newest:
                self._watching.looked(self._look, newest)
        self._give_entries()

    def _give_entries(self) -> None:
        self._entries.give(Position(*self._look, self.version, self._pending.times), self._place)

    def _place(self, replica: dict[str, Any]) -> Place:
        return Place(replica, self.version, self.progress, self._step, self._options)

    def _jump(self) -> None:
        number = self._copies.due(self._look)
        if number is None:
            return
        self._become(*self._copies.take(number))

    def _become(self, source: int, place: Place) -> None:
        self.version, self.progress = place.number, place.progress
        self._step, self._options = place.step, place.options
        self._watching.looked(self._look, self.version, source)

    def _applied(self, formed: Round) -> None:
        self.version, self.progress = formed.number, formed.progress
        self._copies.give(formed.number, self._place)
        self._give_entries()

    def _formed(self, number: int) -> Round:
        row, rank = self._tape.rounds.get(number), self._wire.rank
        if row is None:
            raise ConfigurationError(f"the records have no round {number}, which rank {rank} is to apply")
        asked = sorted(int(other) for other in row.contributors)
        received = {other: self._own.pop(number) if other == rank else self._of(other, number) for other in asked}
        for dead in self._tape.last_in(number) - {rank}:
            self._wire.send(Message(), dead, _LAST)
        self._step, self._options = furthest(received.values(), self._step, self._options)
        formed = Round(
            number=number,
            term=0,
            sum=total_of(self.agreed, number, row.hosts or [asked], received).vector,
            weight=row.weight,
            live=row.live,
            alive=row.alive or row.live,
            options=self._options,
            step=self._step,
            progress=row.progress or 0.0,
            contributors={other: each.stalenesses for other, each in received.items() if each.vector is not None},
            quorum=row.quorum or 0,
            is_pause=row.settles is True,
            is_last=row.is_last is True,
            joined=self._tape.joined_by(number),
            settings=dict(row.settings or {}),
            why=row.why,
            measures={int(other): list(measures) for other, measures in (row.told or {}).items()},
            times={other: each.times for other, each in received.items()},
            window=row.window or 0.0,
        )
        compare(formed, row)
        return formed

    def _of(self, other: int, number: int) -> Contribution:
        _, message = self._wire.receive(other, f"round {number}").wait()
        return Contribution.read(message.header, vector=self._laid_out(message, number) if message.tensors else None)

    def _laid_out(self, message: Message, number: int) -> Flat:
        if self._handed is None:
            return Flat(message.tensors, self._layout)
        is_pause = self._tape.rounds[number].settles is True
        return Flat(message.tensors, self._handed.fragments.layout(number, is_pause=is_pause))

    # -- pauses

    def pause(self, *, ended: bool, apply: Callable[[Round], None]) -> None:
        self._end_if_dead()
        self._looks += 1
        while not self.is_over:
            self._jump()
            row = self._tape.rounds.get(self.version)
            if row is None or not row.settles or self._pause_round == self.version:
                formed = self._formed(self.version + 1)
                apply(formed)
                self._applied(formed)
                row = self._tape.rounds[formed.number]
            if not row.settles:
                continue
            self._pause_round = self.version
            self.is_over, self._pauses, self._looks = row.is_last is True, self._pauses + 1, 0
            joined = self._tape.joined_by(self.version)
            self._meeting.meet(self.version, joined, is_over=self.is_over, meanwhile=lambda: None)
            self._give_entries()
            if not ended:
                return

    @property
    def _look(self) -> Look:
        return self._pauses, self._looks

    def _end_if_dead(self) -> None:
        tape = self._tape
        self._give_entries()
        if (
            tape.is_dead
            and not self._entries.are_left
            and self._pending.times >= tape.last_times
            and self._look >= tape.last_look
        ):
            self.end()

    def end(self) -> None:
        """End this worker as in the records, when the others have all its contributions."""
        rank, last = self._wire.rank, self._tape.last_rounds.get(self._wire.rank, 0)
        self._entries.give(None, self._place)
        for other in self._tape.ranks:
            if last and other != rank and self._tape.applies(other, last):
                self._wire.receive(other, _LAST).wait()
        self._wire.crash()

    def is_back(self) -> Iterator[Round]:
        """Yield the rounds to apply, as `completed`."""
        yield from self.completed()

    def enter(self, *, is_further: bool = False) -> Iterator[Round]:
        looks = sorted(look for look in {*self._tape.looks, *self._tape.copies.get(self._wire.rank, {})} if not look[0])
        if self._wire.rank not in self._tape.joined:
            raise Stopped(0)
        for _, self._looks in looks:
            entry = self._entries.take(self._look)
            if entry is not None:
                self._become(*entry)
            yield from self._apply_up_to(self._tape.looks.get(self._look, self.version))
        self._pauses, self._looks = 1, 0
        self._wire.enter()
        if not looks:
            self.end()  # it died before it gave anything, and its records do not say how it joined


@dataclass(frozen=True)
class Decided:
    """The work of a contribution, done at once: it is known when each round comes."""

    number: int
    is_called_for: bool = True

    def done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> int:
        return self.number


@dataclass(frozen=True)
class Place(Fields):
    """The place of a worker in its rounds, as it goes with a copy of its replica."""

    replica: dict[str, Any]  # open: see `entering.Replica.capture`
    number: int
    progress: float
    step: float
    options: Any


def compare(formed: Round, recorded: RoundRow) -> None:
    """Raise `Diverged` where a round takes in something else than the recorded run did."""
    takes = json.loads(json.dumps({str(rank): pairs for rank, pairs in formed.contributors.items()}))
    took = json.loads(json.dumps(recorded.contributors))
    if takes != took:
        raise Diverged(
            f"round {formed.number} takes in {takes} in the replay, and took in {took} (by rank, pairs of staleness "
            "and number): the script does something else than the recorded run did",
            tuple(formed.contributors),
        )


class _Entries:
    """The copies for newcomers, of one worker: those it sends, and its own."""

    def __init__(self, wire: Wire, tape: OptimizerTape, replica: Replica) -> None:
        self._wire, self._replica = wire, replica
        self._taken = {look: (number, source) for look, number, source in tape.entries_of(wire.rank)}
        self._given: list[tuple[Position, int]] = []  # the time and the newcomer of each copy to send, in order
        for to in tape.joined:
            for _, number, source in tape.entries_of(to):
                if source == wire.rank:
                    self._given.append((_when(tape, source, to, number), to))
        self._given.sort()

    def take(self, look: Look) -> tuple[int, Place] | None:
        if look not in self._taken:
            return None
        number, source = self._taken.pop(look)
        _, message = self._wire.receive(source, f"entry {number}").wait()
        place = Place.read(message.header)
        self._replica.adopt(place.replica, message.tensors)
        return source, place

    @property
    def are_left(self) -> bool:
        return bool(self._given)

    def give(self, now: Position | None, place: Callable[[dict[str, Any]], Place]) -> None:
        while self._given and (now is None or self._given[0][0] <= now):
            at, to = self._given.pop(0)
            copied, tensors = self._replica.capture(is_whole=True)
            message = Message(tuple(tensors), place(copied).header(), shared=True)
            self._wire.send(message, to, f"entry {at.round}")


def _when(tape: OptimizerTape, source: int, to: int, number: int) -> Position:
    positions = [at for at, other in tape.sent_copies.get(source, ()) if other == to and at.round == number]
    if not positions:
        raise ConfigurationError(
            f"rank {to} joined with a copy from rank {source}, and the records do not say when that rank sent it; such "
            "a run cannot be replayed"
        )
    return min(positions)


class _Copies:
    """The copies for workers that train, of one worker: those it sends, and its own."""

    def __init__(self, wire: Wire, tape: OptimizerTape, replica: Replica) -> None:
        self._wire, self._replica = wire, replica
        self._taken = dict(_copies_of(tape, wire.rank))
        self._given: dict[int, list[int]] = {}
        for rank in tape.ranks:
            for number in _copies_of(tape, rank).values():
                if rank != wire.rank and _giver(tape, rank, number) == wire.rank:
                    self._given.setdefault(number, []).append(rank)
                elif rank == wire.rank and _giver(tape, rank, number) is None:
                    raise ConfigurationError(
                        f"rank {rank} went on from a copy after round {number}, and no other worker is known to "
                        "have applied that round; such a run cannot be replayed"
                    )
        self._givers = {number: _giver(tape, wire.rank, number) for number in self._taken.values()}

    def due(self, look: Look) -> int | None:
        """Return the round after which this worker becomes a copy in this look; None for none. To be asked once."""
        return self._taken.pop(look, None)

    def take(self, number: int) -> tuple[int, Place]:
        giver = self._givers[number]
        assert giver is not None
        _, message = self._wire.receive(giver, f"copy {number}").wait()
        place = Place.read(message.header)
        self._replica.adopt(place.replica, message.tensors)
        return giver, place

    def give(self, number: int, place: Callable[[dict[str, Any]], Place]) -> None:
        for rank in self._given.pop(number, ()):
            copied, tensors = self._replica.capture(is_whole=False)
            message = Message(tuple(tensors), place(copied).header(), shared=True)
            self._wire.send(message, rank, f"copy {number}")


def _giver(tape: OptimizerTape, to: int, number: int) -> int | None:
    return min((rank for rank in tape.ranks if rank != to and tape.applies(rank, number)), default=None)


def _copies_of(tape: OptimizerTape, rank: int) -> Mapping[Look, int]:
    joins = {look for look, _, _ in tape.entries_of(rank)}
    return {look: number for look, number in tape.copies.get(rank, {}).items() if look not in joins}
