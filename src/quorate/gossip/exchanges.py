"""Exchanges with neighbours: their members, the messages of each neighbour, and how long a worker waits for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import PeerFailed, WireTimeout
from quorate.core.fields import Fields, Header
from quorate.core.neighbours import NeighbourShare, SentVector, UnderWay, Written
from quorate.core.vectors import Flat
from quorate.observe.step_times import StepTimer


@dataclass(frozen=True, slots=True)
class Contribution(Fields):
    """A message with the numbers of the sender for one exchange."""

    round: int
    scalars: Sequence[float]
    weight: float
    before: float  # the mass that the sender has sent to the receiver since the newest pause, before this
    is_written: bool = False  # whether a codec has written the tensors

    def header(self) -> dict[str, Any]:
        header = {"round": self.round, "scalars": self.scalars, "weight": self.weight, "before": self.before}
        return header | {"written": True} if self.is_written else header

    @classmethod
    def read(cls, header: Header, **others: Any) -> Contribution:
        return cls(header["round"], header["scalars"], header["weight"], header["before"], "written" in header)


@dataclass(frozen=True, slots=True)
class Away(Fields):
    """The message that the sender begins no exchange until the next pause, or never again."""

    away: Literal["pauses", "ended"]
    round: int  # its newest exchange
    before: float


@dataclass(frozen=True)
class Encoded(Written):
    """A vector that a codec has written small, and its code."""

    tensors: Sequence[Tensor]
    """Not written to any more."""


def as_received(gift: SentVector, weight: float, scalars: Sequence[float], round: int) -> NeighbourShare:
    """Return `gift` as its receivers decode it."""
    x, is_written = (gift, False) if isinstance(gift, Flat) else (gift.x, True)
    return NeighbourShare(x, weight, tuple(scalars), round, is_written)


def message_of(gift: SentVector, decoded: NeighbourShare, before: float) -> Message:
    """Return the message that carries `gift`, which its receivers decode as `decoded`."""
    fields = Contribution(decoded.round, decoded.scalars, decoded.weight, before, decoded.is_written)
    assert isinstance(gift, Flat | Encoded), "Neighbours.written makes it"
    return Message(tuple(gift.parts if isinstance(gift, Flat) else gift.tensors), fields.header(), shared=True)


class StartedExchange:
    """Implements `core.neighbours.UnderWay`: an exchange that has begun, and may still wait for neighbours."""

    def __init__(
        self,
        rank: int,
        own: NeighbourShare | None,
        others: Mapping[int, Incoming],
        round: int,
        timer: StepTimer,
    ) -> None:
        self._missing, self._round, self._timer, self.own = dict(others), round, timer, own
        self._received: dict[int, NeighbourShare] = {} if own is None else {rank: own}

    def done(self) -> bool:
        return all(other.is_decided(self._round) for other in self._missing.values())

    def wait(self, timeout: float | None = None) -> dict[int, NeighbourShare]:
        return self._all(timeout, lambda other, left: other.receive(self._round, left))

    def within(self, seconds: float | None) -> dict[int, NeighbourShare]:
        return (
            self.wait()
            if seconds is None
            else self._all(seconds, lambda other, left: other.within(self._round, left or 0.0))
        )

    def _all(
        self, timeout: float | None, take: Callable[[Incoming, float | None], NeighbourShare | None]
    ) -> dict[int, NeighbourShare]:
        self._timer.arrived()
        clock = self._timer.clock
        until = None if timeout is None else clock.now() + timeout
        with self._timer.spending("wait"):
            for peer in list(self._missing):
                left = None if until is None else max(0.0, until - clock.now())
                contribution = take(self._missing[peer], left)
                del self._missing[peer]
                if contribution is not None:
                    self._received[peer] = contribution
        self._timer.contributors = max(1, len(self._received))
        return self._received


_: type[UnderWay] = StartedExchange


TAG = "exchange"
_FAR_AHEAD = 8
"""A contribution more than this many rounds ahead is taken in at once, so that contributions do not pile up."""


class Incoming:
    """Contributions that `source` sends to this worker, in order of rounds, and its notice that it pauses or ends.

    One message is requested at a time, so that no receive waits for a message that may never be sent.
    """

    def __init__(
        self, wire: Wire, source: int, read: Callable[[int, Contribution, Sequence[Tensor]], Flat], ledger: MassLedger
    ) -> None:
        self._wire, self._source, self._read, self.ledger = wire, source, read, ledger
        self._receive_work: Work[tuple[int, Message]] | None = None
        self._received: dict[int, NeighbourShare] = {}
        self._given_up: set[int] = set()
        self._taken_early: set[int] = set()
        self._is_silent = False
        self._sent_mass = 0.0
        """Mass that `source` has sent since the newest pause of all, up to its newest message, as its headers say."""
        self.is_away = self.has_ended = self.is_dead = False
        self.reached = -1
        """Newest exchange that `source` had begun when it paused or ended."""

    def is_decided(self, round: int) -> bool:
        """Return whether the contribution of `round` has arrived, or never will. Never waits."""
        while not self._is_known(round):
            if not self._begin_receive().done():
                return False
            self._take_message()
        return True

    def receive(self, round: int, timeout: float | None = None) -> NeighbourShare | None:
        """Wait for the contribution of `round`; None if `source` takes no part in it. Raises as `Work.wait`."""
        while not self._is_known(round):
            self._take_message(timeout)
        return self._received.pop(round, None)

    def within(self, round: int, seconds: float) -> NeighbourShare | None:
        """Wait as `receive`, but return None after `seconds`, or at once if `source` is silent since such a wait."""
        try:
            return self.receive(round, 0.0 if self._is_silent and not self.is_decided(round) else seconds)
        except WireTimeout:
            self._is_silent = True
            self._given_up.add(round)
            return None

    def late(self, round: int) -> list[NeighbourShare]:
        """Return contributions to rounds that were given up, or are far ahead of `round`. Never waits."""
        self.poll()
        early = {other for other in self._received if other > round + _FAR_AHEAD}
        self._taken_early = {other for other in self._taken_early if other >= round} | early
        late = [self._received.pop(other) for other in sorted(self._received.keys() & (self._given_up | early))]
        newest = max((contribution.round for contribution in late), default=-1)
        self._given_up = {other for other in self._given_up if other > newest}
        return late

    def poll(self) -> bool:
        """Take in the messages that have arrived; return whether `source` has paused, ended or died."""
        while not self.is_away and self._begin_receive().done():
            self._take_message()
        return self.is_away

    def drain(self, *, ended: bool) -> list[NeighbourShare]:
        """Wait until `source` has paused, or with `ended` until it has ended; return contributions not taken in yet."""
        while not (self.has_ended or (self.is_away and not ended)):
            self.is_away = False
            self._take_message()
        late = [self._received[round] for round in sorted(self._received)]
        self._received.clear()
        self._given_up.clear()
        self._taken_early.clear()
        self._sent_mass = 0.0
        return late

    def resume(self) -> None:
        """End the pause of all: `source` takes part again, unless it has ended."""
        self.is_away = self.has_ended

    def _is_known(self, round: int) -> bool:
        return (
            round in self._received
            or self.is_away
            or round in self._taken_early
            or any(other > round for other in self._received)
        )

    def _begin_receive(self) -> Work[tuple[int, Message]]:
        if self._receive_work is None:
            self._receive_work = self._wire.receive(self._source, TAG)
        return self._receive_work

    def _take_message(self, timeout: float | None = None) -> None:
        try:
            _, message = self._begin_receive().wait(timeout)
        except PeerFailed:
            if self._source not in self._wire.dead:
                raise
            self.is_away = self.has_ended = self.is_dead = True
            return
        self._receive_work, header = None, message.header
        self._is_silent = False
        fields = Away.read(header) if "away" in header else Contribution.read(header)
        if fields.before != self._sent_mass:  # messages in between were lost
            self.ledger.lost[self._source] += fields.before - self._sent_mass
        self._sent_mass = fields.before
        if isinstance(fields, Away):
            self._sent_mass = 0.0  # a pause begins a new ledger
            self.is_away, self.has_ended, self.reached = True, fields.away == "ended", fields.round
            return
        x = self._read(self._source, fields, message.tensors)
        contribution = NeighbourShare(x, fields.weight, tuple(fields.scalars), fields.round, fields.is_written)
        self._sent_mass += mass_of(contribution)
        self.ledger.received[self._source] += mass_of(contribution)
        self._received[contribution.round] = contribution


@dataclass(frozen=True, slots=True)
class Announcements(Fields):
    """The announcements of survivors of the same deaths, on the board."""

    said: Mapping[str, int] = field(default_factory=dict)  # by rank, the newest exchange that it begins with the dead
    begins: int | None = None  # the first exchange without them, once all have announced one


@dataclass
class _Loss:
    dead: frozenset[int]
    announced: int = -1
    """Newest exchange that this worker has announced to begin with the dead still in the graph."""
    begins: int | None = None
    """First exchange without the dead; None: not decided yet."""


class GraphMembers:
    """Workers of `wire` among which the graph of an exchange lies when some have died: the same on all. Never waits.

    `Wire.members` has a death at another moment on each worker, so survivors agree on the first exchange without it.
    After a death each survivor announces on the board, before an exchange, the number of the exchange that it begins
    with the dead still in the graph. When all survivors have announced one for the same dead, the greatest of these
    numbers is the last exchange with them. The last survivor to announce decides this in the same compare-and-set, so
    no worker has begun a later exchange by then.

    Cost: nothing while all live; after a death one or two accesses to the board per exchange until all have announced.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._losses: list[_Loss] = []

    def of(self, number: int) -> tuple[int, ...]:
        """Return the members of exchange `number`, in order of rank. Every worker calls this before it begins it.

        Numbers never fall.
        """
        dead = self._wire.dead.intersection(range(self._wire.size))  # newcomers were never in the graph
        if dead and all(loss.dead != dead for loss in self._losses):
            self._losses.append(_Loss(dead))
        for loss in self._losses:
            if loss.begins is None and number > loss.announced:
                self._announce(loss, number)
        begun = [loss for loss in self._losses if loss.begins is not None and loss.begins <= number]
        if not begun:
            return tuple(range(self._wire.size))
        newest = max(begun, key=lambda loss: len(loss.dead))
        self._losses = [loss for loss in self._losses if loss.dead >= newest.dead]
        return self._without(newest.dead)

    def _without(self, dead: Collection[int]) -> tuple[int, ...]:
        return tuple(rank for rank in range(self._wire.size) if rank not in dead)

    def _announce(self, loss: _Loss, number: int) -> None:
        board, key = self._wire.board, f"{self._wire.name}/without/{','.join(map(str, sorted(loss.dead)))}"
        while True:
            written = board.get(key)
            before = Announcements() if written is None else Announcements.from_bytes(written)
            if before.begins is not None:
                loss.begins = before.begins
                return
            said = {**before.said, str(self._wire.rank): number}
            are_all = len(said) == self._wire.size - len(loss.dead)
            new = Announcements(said, 1 + max(said.values()) if are_all else None)
            if board.swap(key, written, new.to_bytes()):
                loss.announced, loss.begins = number, new.begins
                return


def mass_of(contribution: NeighbourShare) -> float:
    """Return its weight times the first of its scalars: under push-sum, the weight that has come with it."""
    return contribution.weight * (contribution.scalars[0] if contribution.scalars else 1.0)


@dataclass
class MassLedger:
    """The masses that one worker has sent and received since the newest pause of all, by rank of the other worker."""

    sent: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    received: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    lost: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Sent to this worker, and lost on the way."""

    def balances(self) -> dict[int, float]:
        """Return the mass sent to each of the others, less the mass received from it."""
        return {rank: self.sent[rank] - self.received[rank] for rank in sorted({*self.sent, *self.received})}


def weight_of_the_dead(
    dead: Collection[int], began: Mapping[int, float], balances: Iterable[Mapping[int, float]]
) -> float:
    """Return the mass that was lost with the `dead`: theirs, and the mass in flight from them and to them.

    `began` holds the masses when all paused last (1 each, at the beginning), `balances` those of survivors' ledgers.
    All masses together: this, what survivors hold, and what is under way or lost among them.
    """
    held = sum(began[rank] for rank in dead)
    return held + sum(balance.get(rank, 0.0) for balance in balances for rank in dead)
