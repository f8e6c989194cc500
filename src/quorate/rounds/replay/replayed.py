"""The rounds of one worker in a replay: what each takes in, and when it is applied, is as it was recorded.

Nobody leads. Once a worker has handed in as often as it had when a round asked it, it sends all others what that round
gets. Whoever is to apply the round adds up what it is sent, in order of rank, as the leader did.

What is known beforehand in a replay: when rounds come, and what they take in.

Copies of replicas for workers that join, in a replay: from whom each was, and as that was then.

Unlike other copies such a one has what is the giver's own as well: where it was in the data, and what its script keeps.

A worker that went on from another replica, after a silence, does so at the same place in a replay.

All replicas are the same after a round, as far as a copy goes, so that any worker that applied the round may give it:
the one of the lowest rank does.

Calls that have nothing to do in a replay are empty here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quorate.core.contracts import Message, Wire
from quorate.core.errors import ConfigurationError, Diverged, Stopped
from quorate.core.vectors import Flat, Layout, empty_vector
from quorate.records.round_rows import RoundRow
from quorate.records.tape import Look, OptimizerTape, Position
from quorate.rounds.arrival import OtherRounds
from quorate.rounds.buffer import Kept, Snapshot
from quorate.rounds.coding import Coding
from quorate.rounds.entering import Replica, Watching
from quorate.rounds.formed import total_of
from quorate.rounds.fragments import Fragments, PendingFragments
from quorate.rounds.gathering import Contribution, furthest, given_from
from quorate.rounds.log import Round
from quorate.rounds.meeting import Meeting
from quorate.rounds.pending import PendingGradients
from quorate.rounds.terms import Agreed, check


class IdleInReplays:
    """The part of `rounds.Rounds` that is idle."""

    def goes_away(self) -> None:
        """Nobody waits for anybody."""

    def waits(self) -> None:
        """Likewise."""

    def goes_on(self) -> None:
        """Likewise."""

    def give_copies(self) -> None:
        """Nobody wants one."""

    some_joined = False

    def run_beside(self, others: OtherRounds) -> None:
        """No worker waits for the steps of another one."""

    def close(self) -> None:
        """There is no task beside the training thread."""

    def agree(self, *, why: str = "", **settings: Any) -> None:
        """What was agreed on is recorded."""

    def ask_for_save(self, request: int) -> None:
        """A replay keeps no checkpoints."""

    def keep(self) -> Kept:
        """Raises `ConfigurationError`."""
        raise ConfigurationError("a replay writes no checkpoints")

    def restore(self, kept: Kept) -> None:
        """Raises `ConfigurationError`."""
        raise ConfigurationError("a replay begins at the first step and cannot load a checkpoint")


_LAST = "last"


class ReplayedRounds(IdleInReplays):
    """As `rounds.Rounds`, from a tape. Cost per round: each that is in it sends its vector to all others."""

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
        self._step, self._options, self._rests, self._looks = 0.0, None, 0, 0
        self._own: dict[int, Contribution] = {}
        self._settled = 0
        """The newest round in which all had settled."""
        self._copies = ReplayedCopies(wire, tape, replica)
        self._entries = ReplayedEntries(wire, tape, replica)
        if agreed.tolerates_death:
            wire.tolerate_deaths("gone")
        self._waiting = [number for number, one in sorted(tape.rounds.items()) if str(wire.rank) in one.contributors]
        self._give()

    @property
    def standing(self) -> Any:
        """Its `version` alone: in a replay no worker asks what others hold."""
        return self

    # -- what this worker hands in

    def blank(self) -> Flat:
        """See `Rounds`; so with the others."""
        return empty_vector(self._layout)

    def lay_out(self, layout: Layout) -> None:
        """As of `Rounds`."""
        self._layout = layout
        if self._coding is not None:
            self._coding.lay_out(layout)

    def lay_out_fragments(self, fragments: Fragments) -> None:
        """As of `Rounds`."""
        assert self._handed is not None, "rounds are of fragments where that was agreed"
        self._handed.lay_out(fragments)

    @property
    def ledger(self) -> Any:
        """What became of this worker's contributions."""
        return self._pending.ledger

    def contribute(
        self, vector: Flat | None, *, weight: float, step: float, options: Any, waits: bool = True, measures: Any = None
    ) -> Decided:
        self._end_if_gone()
        if vector is not None:
            self._gradients.add(vector, weight, self.version, step, options, measures)
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
        self._end_if_gone()
        assert self._handed is not None, "rounds are of fragments where that was agreed"
        self._handed.hand_in(vectors, fresh, self.version, step, measures, began=began)
        self._give()
        return Decided(self.version + 1)

    def hand_in_last(
        self, vectors: Sequence[Flat], *, fresh: float, step: float, measures: Any, began: int | None = None
    ) -> Decided | None:
        self._end_if_gone()
        assert self._handed is not None, "rounds are of fragments where that was agreed"
        if any(self._look < look < (self._rests + 1, 0) for look in self._tape.looks):
            return Decided(self.version + 1)  # it had to look once more before it could
        self._handed.hand_in(vectors, fresh, self.version, step, measures, began=began)
        self._give()
        return None

    def _give(self) -> None:
        """To the rounds that asked this worker before it handed in once more."""
        while self._waiting and self._times(self._waiting[0]) <= self._pending.times:
            number = self._waiting.pop(0)
            given = self._taken(number)
            self._own[number] = given_from(given.header, given.vector)
            self._send(number, given)

    def _taken(self, number: int) -> Snapshot:
        """What round `number` took: what was on its way to another round then, which left it out, is not in it."""
        row = self._tape.rounds[number]
        versions = [number - 1 - staleness for staleness, _ in row.contributors[str(self._wire.rank)]]
        of = {entry.version: entry for entry in self._gradients.entries}
        self._gradients.entries = [of.pop(version) for version in versions if version in of]
        given = self._pending.take(number, settles=row.settles is True)
        self._gradients.entries = list(of.values())
        return given

    def _times(self, number: int) -> int:
        return (self._tape.rounds[number].times or {})[str(self._wire.rank)]

    def _send(self, number: int, given: Snapshot) -> None:
        parts = () if given.vector is None else given.vector.parts
        for other in self._tape.ranks:
            if other not in (self._wire.rank, *self._wire.dead) and number > self._tape.begins.get(other, 0):
                self._wire.send(Message(parts, given.header, shared=True), other, f"round {number}")

    # -- what it applies

    def completed(self, *, in_step: bool = False, up_to: float = 0.0) -> Iterator[Round]:
        self._end_if_gone()
        self._looks += 1
        newest = self._tape.looks.get(self._look, self.version)
        self._jump()
        yield from self._apply_up_to(newest)

    def _apply_up_to(self, newest: int) -> Iterator[Round]:
        while self.version < newest:
            one = self._formed(self.version + 1)
            yield one
            self._applied(one)
            if self.version == newest:
                self._watching.looked(self._look, newest)
        self._give_entries()

    def _give_entries(self) -> None:
        """The copies that others joined with, and that this worker had given by now."""
        self._entries.give(Position(*self._look, self.version, self._pending.times), self._about)

    def _about(self) -> dict[str, Any]:
        return {"number": self.version, "progress": self.progress, "step": self._step, "options": self._options}

    def _jump(self) -> None:
        """Be a copy of another replica, if this worker became one in this look."""
        number = self._copies.due(self._look)
        if number is None:
            return
        self._become(self._copies.take(number))

    def _become(self, header: Mapping[str, Any]) -> None:
        self.version, self.progress = header["number"], header["progress"]
        self._step, self._options = header["step"], header["options"]
        self._watching.looked(self._look, self.version, header["source"])

    def _applied(self, one: Round) -> None:
        self.version, self.progress = one.number, one.progress
        self._copies.give(one.number, self._about)
        self._give_entries()

    def _formed(self, number: int) -> Round:
        row, rank = self._tape.rounds.get(number), self._wire.rank
        if row is None:
            raise ConfigurationError(f"the records have no round {number}, which rank {rank} is to apply")
        asked = sorted(int(other) for other in row.contributors)
        given = {other: self._own.pop(number) if other == rank else self._of(other, number) for other in asked}
        for gone in self._tape.last_in(number) - {rank}:
            self._wire.send(Message(), gone, _LAST)
        self._step, self._options = furthest(given.values(), self._step, self._options)
        one = Round(
            number=number,
            term=0,
            sum=total_of(self.agreed, number, row.hosts or [asked], given).vector,
            weight=row.weight,
            live=row.live,
            alive=row.alive or row.live,
            options=self._options,
            step=self._step,
            progress=row.progress or 0.0,
            contributors={other: each.stalenesses for other, each in given.items() if each.vector is not None},
            quorum=row.quorum or 0,
            settles=row.settles is True,
            is_last=row.is_last is True,
            joined=self._tape.joined_by(number),
            settings=dict(row.settings or {}),
            why=row.why,
            measures={int(other): list(told) for other, told in (row.told or {}).items()},
            times={other: each.times for other, each in given.items()},
            window=row.window or 0.0,
        )
        compare(one, row)
        return one

    def _of(self, other: int, number: int) -> Contribution:
        _, message = self._wire.receive(other, f"round {number}").wait()
        return given_from(dict(message.header), self._laid_out(message, number) if message.tensors else None)

    def _laid_out(self, message: Message, number: int) -> Flat:
        if self._handed is None:
            return Flat(message.tensors, self._layout)
        settles = self._tape.rounds[number].settles is True
        return Flat(message.tensors, self._handed.fragments.layout(number, settles=settles))

    # -- rests

    def settle(self, *, ended: bool, apply: Callable[[Round], None]) -> None:
        """As of `Rounds`."""
        self._end_if_gone()
        self._looks += 1
        while not self.is_over:
            self._jump()
            row = self._tape.rounds.get(self.version)
            if row is None or not row.settles or self._settled == self.version:
                one = self._formed(self.version + 1)
                apply(one)
                self._applied(one)
                row = self._tape.rounds[one.number]
            if not row.settles:
                continue
            self._settled = self.version
            self.is_over, self._rests, self._looks = row.is_last is True, self._rests + 1, 0
            joined = self._tape.joined_by(self.version)
            self._meeting.meet(self.version, joined, is_over=self.is_over, meanwhile=lambda: None)
            self._give_entries()
            if not ended:
                return

    @property
    def _look(self) -> Look:
        return self._rests, self._looks

    def _end_if_gone(self) -> None:
        """This worker died once it had done all that the records say of it."""
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
        """The records of this worker end here; it dies again, when the others have all that it gave."""
        rank, last = self._wire.rank, self._tape.last_rounds.get(self._wire.rank, 0)
        self._entries.give(None, self._about)
        for other in self._tape.ranks:
            if last and other != rank and self._tape.applies(other, last):
                self._wire.receive(other, _LAST).wait()
        self._wire.crash()

    def is_back(self) -> Iterator[Round]:
        """As `completed`."""
        yield from self.completed()

    def enter(self, *, is_further: bool = False) -> Iterator[Round]:
        """As of `Rounds`. Raises `Stopped` for one that came too late."""
        looks = sorted(look for look in {*self._tape.looks, *self._tape.copies.get(self._wire.rank, {})} if not look[0])
        if self._wire.rank not in self._tape.joined:
            raise Stopped(0)
        for _, self._looks in looks:
            header = self._entries.take(self._look)
            if header is not None:
                self._become(header)
            yield from self._apply_up_to(self._tape.looks.get(self._look, self.version))
        self._rests, self._looks = 1, 0
        self._wire.enter()
        if not looks:
            self.end()  # it died before it gave anything, and its records do not say how it joined


@dataclass(frozen=True)
class Decided:
    """The work of a contribution: nothing is waited for, as it is known when each round comes."""

    number: int
    is_called_for: bool = True

    def done(self) -> bool:
        """Always."""
        return True

    def wait(self, timeout: float | None = None) -> int:
        """The number of the next round."""
        return self.number


def compare(one: Round, recorded: RoundRow) -> None:
    """Raise `Diverged` where a round takes in something else than the recorded run did."""
    found = json.loads(json.dumps({str(rank): given for rank, given in one.contributors.items()}))
    took = json.loads(json.dumps(recorded.contributors))
    if found != took:
        raise Diverged(
            f"round {one.number} takes in {found} in the replay, and took in {took} (by rank, pairs of staleness and "
            "number): the script does something else than the recorded run did",
            tuple(one.contributors),
        )


class ReplayedEntries:
    """Those of one worker, given and taken."""

    def __init__(self, wire: Wire, tape: OptimizerTape, replica: Replica) -> None:
        self._wire, self._replica = wire, replica
        self._taken = {look: (number, source) for look, number, source in tape.entries_of(wire.rank)}
        self._given: list[tuple[Position, int]] = []
        """When, and to whom; the next one first."""
        for to in tape.joined:
            for _, number, source in tape.entries_of(to):
                if source == wire.rank:
                    self._given.append((_when(tape, source, to, number), to))
        self._given.sort()

    def take(self, look: Look) -> Mapping[str, Any] | None:
        """Become the replica that this worker, which joins, became in that look; what came with it."""
        if look not in self._taken:
            return None
        number, source = self._taken.pop(look)
        _, message = self._wire.receive(source, f"entry {number}").wait()
        header = {**message.header, "source": source}
        self._replica.adopt(header["replica"], message.tensors)
        return header

    @property
    def are_left(self) -> bool:
        """Whether there are copies to give."""
        return bool(self._given)

    def give(self, now: Position | None, about: Callable[[], Mapping[str, Any]]) -> None:
        """Give those copies that were given up to `now` (None: all); `about` is what goes with them."""
        while self._given and (now is None or self._given[0][0] <= now):
            at, to = self._given.pop(0)
            header, tensors = self._replica.capture(is_whole=True)
            message = Message(tuple(tensors), {"replica": header, **about()}, shared=True)
            self._wire.send(message, to, f"entry {at.round}")


def _when(tape: OptimizerTape, source: int, to: int, number: int) -> Position:
    found = [at for at, other in tape.sent_copies.get(source, ()) if other == to and at.round == number]
    if not found:
        raise ConfigurationError(
            f"rank {to} joined with a copy from rank {source}, and the records do not say when that rank sent it; such "
            "a run cannot be replayed"
        )
    return min(found)


class ReplayedCopies:
    """Those of one worker, given and taken."""

    def __init__(self, wire: Wire, tape: OptimizerTape, replica: Replica) -> None:
        self._wire, self._replica = wire, replica
        self._taken = dict(_copies_of(tape, wire.rank))
        self._given: dict[int, list[int]] = {}
        """By round, whom this worker gives a copy as it is after that."""
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
        """The round after which this worker is a copy of another one in this look; None for none. Asked once."""
        return self._taken.pop(look, None)

    def take(self, number: int) -> Mapping[str, Any]:
        """Become one, as of round `number`; what came with it."""
        giver = self._givers[number]
        assert giver is not None
        _, message = self._wire.receive(giver, f"copy {number}").wait()
        header = {**message.header, "source": giver}
        self._replica.adopt(header["replica"], message.tensors)
        return header

    def give(self, number: int, about: Callable[[], Mapping[str, Any]]) -> None:
        """This worker has applied round `number`; `about` is what goes with a copy."""
        for rank in self._given.pop(number, ()):
            header, tensors = self._replica.capture(is_whole=False)
            message = Message(tuple(tensors), {"replica": header, **about()}, shared=True)
            self._wire.send(message, rank, f"copy {number}")


def _giver(tape: OptimizerTape, to: int, number: int) -> int | None:
    """Who gives the worker `to` a copy as of round `number`."""
    return min((rank for rank in tape.ranks if rank != to and tape.applies(rank, number)), default=None)


def _copies_of(tape: OptimizerTape, rank: int) -> Mapping[Look, int]:
    """But for those with which it joined: see `replayed_entries`."""
    joins = {look for look, _, _ in tape.entries_of(rank)}
    return {look: number for look, number in tape.copies.get(rank, {}).items() if look not in joins}
