"""The rounds that each worker has, as the leader knows; a worker that misses some gets them, or a copy of a replica."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quorate.core.fields import Fields, Header
from quorate.core.vectors import Flat
from quorate.rounds.calls import Calls
from quorate.rounds.copies import CopyFor
from quorate.rounds.forming import Forming, are_apart, on_one_host, spans_hosts
from quorate.rounds.gathering import Carrying
from quorate.rounds.log import Log, Round
from quorate.rounds.messages import Envelope, RoundSignal, Signal
from quorate.rounds.terms import PASSED_ON, Agreed

Send = Callable[[int, Header, Flat | None], None]
"""(to, header, vector)"""


@dataclass(frozen=True, slots=True)
class Announcement:
    """The message of the leader that a round is formed."""

    round: Round  # without its sum where `attempt` is not 0
    votes: bool  # whether it is only proposed: see `votes`
    acknowledged: int  # the newest round that all are known to have
    after: int | None
    attempt: int = 0  # the attempt of the hosts that its sum comes of, or `PASSED_ON`; 0: the sum is here
    head: int | None = None  # the worker that the sum comes from, where that is not the leader
    is_own: bool = False  # whether the sum is the receiver's contribution, as no other one is in the round

    def header(self) -> dict[str, Any]:
        about = {"acknowledged": self.acknowledged, "attempt": self.attempt, "after": self.after}
        header = {"kind": "round", "votes": self.votes, **about, **self.round.header()}
        if self.head is not None:
            header["head"] = self.head
        if self.is_own:
            header["is_own"] = True
        return header

    @classmethod
    def read(cls, header: Header, vector: Flat | None) -> Announcement:
        about = header["votes"], header["acknowledged"], header["after"], header["attempt"], header.get("head")
        return cls(Round.read(header, vector), *about)


@dataclass(frozen=True, slots=True)
class PassOn(Fields):
    """The message of the leader to a worker that has to pass the sum of round `number` on to worker `to`."""

    to: int
    number: int

    def header(self) -> dict[str, Any]:
        return {"kind": "pass on", "for": self.to, "number": self.number}

    @classmethod
    def read(cls, header: Header, **others: Any) -> PassOn:
        return cls(header["for"], header["number"])


AGAIN_SECONDS = 2.0  # seconds after which a copy that did not come is asked for again
_FAR = 4  # missing rounds from which on a copy of a replica is less to carry between hosts


class Holdings:
    """The rounds of all workers, as their leader `rank` knows them."""

    def __init__(
        self, agreed: Agreed, rank: int, log: Log, calls: Calls, send: Send, host_of: Callable[[int], int]
    ) -> None:
        self._agreed, self._rank, self._log, self._calls, self._send = agreed, rank, log, calls, send
        self.told = dict.fromkeys(agreed.ranks, log.newest)  # by rank, the newest round that was sent; -1: it is absent
        self._logged = dict.fromkeys(agreed.ranks, 0)
        self._left_out: set[int] = set()  # workers that are brought up when they have what is on its way to them
        self._on_its_way: dict[int, tuple[int, float]] = {}  # by rank, the result on its way there, and since when
        self._newest_there: dict[int, int] = {}
        self._there = [Carrying(agreed) for _ in agreed.ranks]
        self._copies = Copies(rank, host_of)
        self._proposed: Round | None = None
        self._first_there: dict[int, int] = {}  # by host, the worker that has the newest sum first, and passes it on
        self._host_of, self.are_apart = host_of, are_apart(host_of, agreed.ranks)

    # -- what is known

    def are_absent(self, ranks: Iterable[int]) -> None:
        """Note that `ranks` do not answer."""
        for rank in ranks:
            self.told[rank] = -1
            self._left_out.discard(rank)
            self._on_its_way.pop(rank, None)
        if self.are_apart:
            self._first_there = {host: rank for host, rank in self._first_there.items() if self.told[rank] >= 0}

    def heard(self, rank: int, envelope: Envelope, now: float) -> None:
        """Note the newest round of `rank`."""
        logged = envelope.logged
        if rank in self._on_its_way and logged >= self._on_its_way[rank][0]:
            del self._on_its_way[rank]
        if logged != self._logged[rank]:
            self.know(rank, envelope)
        if rank in self._left_out and logged >= self.told[rank] and self._calls.workers[rank].is_present:
            self.bring_up(rank, logged, envelope.log_term, now)

    def know(self, rank: int, envelope: Envelope) -> None:
        """Note the newest round of `rank`, if it is in this log."""
        if self._log.term_of(envelope.logged) == envelope.log_term:
            self._logged[rank] = envelope.logged

    def got(self, rank: int, number: int, now: float) -> None:
        """Note that `rank` has the result of round `number`."""
        if rank in self._on_its_way and self._on_its_way[rank][0] == number:
            self._there[rank].took(now - self._on_its_way.pop(rank)[1])
            self._newest_there[rank] = number
        if rank in self._left_out and number >= self.told[rank] and self._calls.workers[rank].is_present:
            if number > self._log.newest:
                self._left_out.discard(rank)  # it holds what is voted on
            else:
                self.bring_up(rank, number, self._log.term_of(number), now)

    def seconds_there(self, rank: int) -> float:
        """Return how much longer `rank` may take to answer, as a result is on its way to it."""
        return min(self._there[rank].seconds, self._agreed.patience) if rank in self._on_its_way else 0.0

    def newest_there(self, rank: int) -> tuple[int, float]:
        """Return the newest round whose result is known to have reached `rank`, and the seconds it took."""
        return self._newest_there.get(rank, 0), self._there[rank].latest

    def on_its_way(self, rank: int, now: float) -> float:
        """Return the seconds that a result has been on its way to `rank`; 0 where none is."""
        return now - self._on_its_way[rank][1] if rank in self._on_its_way else 0.0

    def leaves_out(self, rank: int) -> None:
        """Send `rank` no new rounds until it has those that are on their way to it."""
        self._left_out.add(rank)

    def acknowledged(self, now: float) -> int:
        """Return the newest round that all have, and that no copy under way may miss."""
        alive, newest = self._calls.members.alive, self._log.newest
        newest = min([newest if rank == self._rank else self._logged[rank] for rank in alive])
        oldest = self._copies.needs(now)
        return newest if oldest is None else min(newest, oldest - 1)

    def tell(
        self,
        formed: Round,
        forming: Forming | None,
        now: float,
        *,
        voters: Collection[int] = (),
        holders: Collection[int] = (),
    ) -> int:
        """Send a round to all that have the one before it; return the newest round that all have. With `voters` it is
        only proposed (see `votes`), and `holders` hold it already."""
        number, self._proposed = formed.number, formed if voters else None
        heads = {} if forming is None else forming.head_of
        if self.are_apart:
            self._first_there = {self._host_of(rank): rank for rank in (*heads.values(), self._rank)}
        acknowledged = self.acknowledged(now)
        announcement = self._announcement(formed, acknowledged)
        header = announcement.header()
        for rank in self._agreed.ranks:
            is_asked = rank in voters and self._calls.workers[rank].activity == "away"  # it has said so just now
            if rank == self._rank or rank in self._left_out or not (self.told[rank] == number - 1 or is_asked):
                continue
            self.told[rank] = -1 if is_asked else number
            if rank in holders:
                self._send(rank, RoundSignal("hold", number).header(), None)
                continue
            if self._is_of(rank, formed) and forming is None:
                self._send(rank, replace(announcement, is_own=True).header(), None)
            elif forming is not None and (head := heads.get(rank)) is not None:
                self._send(rank, replace(announcement, attempt=forming.attempt, head=head).header(), None)
            else:
                self._send_newest(rank, announcement, header)
            if formed.sum is not None and (self._agreed.is_large or forming is not None):
                self._on_its_way.setdefault(rank, (number, now))
        return acknowledged

    def _is_of(self, rank: int, formed: Round) -> bool:
        """Whether the sum of a round is the contribution of `rank` on this host, which has it: it is not sent back."""
        agreed = self._agreed
        is_sole = (
            agreed.is_large and agreed.pieces == 1 and agreed.combine is None and list(formed.contributors) == [rank]
        )
        return is_sole and self._host_of(rank) == self._host_of(self._rank)

    def _send_newest(self, to: int, newest: Announcement, header: Header, *, from_here: bool = False) -> None:
        first = self._first_there.setdefault(self._host_of(to), to) if self.are_apart else self._rank
        self._send_from(self._rank if from_here else first, to, newest, header)

    def _send_from(self, source: int, to: int, announcement: Announcement, header: Header) -> None:
        formed = announcement.round
        if source in (self._rank, to) or formed.sum is None:
            self._send(to, header, formed.sum)
        else:
            self._send(to, replace(announcement, attempt=PASSED_ON, head=source).header(), None)
            self._send(source, PassOn(to, formed.number).header(), None)

    def _announcement(self, formed: Round, acknowledged: int) -> Announcement:
        is_proposed = self._proposed is not None and self._proposed.number == formed.number
        return Announcement(formed, is_proposed, acknowledged, self._log.term_of(formed.number - 1))

    def in_force(self, number: int) -> None:
        """Tell all that hold round `number` that it is in force."""
        self._proposed = None
        for rank, newest in self.told.items():
            if newest == number and rank != self._rank:
                self._send(rank, RoundSignal("force", number).header(), None)

    # -- those that miss something

    def behind(self, rank: int, envelope: Envelope, now: float) -> None:
        """Bring up `rank`, which says that it misses rounds."""
        self._copies.ended(rank)
        self.bring_up(rank, envelope.logged, envelope.log_term, now, from_here=True)

    def have_died(self, ranks: Iterable[int]) -> None:
        """Tell the workers that wait for a copy from one of `ranks` to ask again."""
        self.are_absent(ranks)
        for other in self._copies.have_died(ranks):
            self._send(other, Signal("again").header(), None)

    def bring_up(self, rank: int, logged: int, term: int | None, now: float, *, from_here: bool = False) -> None:
        """Send `rank` the rounds after `logged`, which it has as of `term`, or have a replica copied to it. Among
        several hosts sums come from the nearest worker that has them, and not all from the leader, unless
        `from_here`."""
        self._left_out.discard(rank)
        newest = self._log.newest
        if self._proposed is not None and logged == self._proposed.number:
            self.told[rank] = logged  # the leader before this one has said that it is in force
            return
        missing = [self._log.whole(number) for number in range(logged + 1, newest + 1)]
        spans = spans_hosts(self._agreed, self._host_of, [*self._calls.inside, rank])
        is_far = spans and len(missing) > _FAR
        if logged > newest or self._log.term_of(logged) != term or None in missing or is_far:
            workers = self._calls.workers
            fit = [r for r, has in self.told.items() if has >= newest and workers[r].is_present]
            source = self._copies.source_for(rank, fit, now, self._log.oldest)
            self.told[rank] = -1  # until it says what it has then
            if source is not None:
                is_new = rank not in self._calls.members
                self._send(source, CopyFor(rank, is_new).header(), None)
            return
        source = self._source_of_rounds(rank) if spans and not from_here else self._rank
        for formed in missing:
            assert formed is not None
            announcement = self._announcement(formed, 0)
            self._send_from(source, rank, announcement, announcement.header())
        self.told[rank] = newest
        if spans and missing:
            self._on_its_way.setdefault(rank, (newest, now))
        if self._proposed is not None:
            announcement = self._announcement(self._proposed, 0)
            self._send_newest(rank, announcement, announcement.header(), from_here=from_here)
            self.told[rank] = self._proposed.number

    def _source_of_rounds(self, to: int) -> int:
        """Return the worker that passes rounds on to `to`: on its host also one that they are still on the way to."""
        workers, host, newest = self._calls.workers, self._host_of(to), self._log.newest
        there = [rank for rank in self._calls.inside if workers[rank].is_present and rank != to]
        near = {r for r in there if self._host_of(r) == host and r in self._on_its_way and self.told[r] >= newest}
        order = [self._rank, *(rank for rank in there if self._logged[rank] == newest or rank in near)]
        return min(order, key=lambda rank: (self._host_of(rank) != host, (rank - to) % len(workers)))


class Copies:
    """The copies under way, as leader `rank` knows them."""

    def __init__(self, rank: int, host_of: Callable[[int], int] = on_one_host) -> None:
        self._rank, self._host_of = rank, host_of
        self._until: dict[int, float] = {}
        self._sources: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        self._needs: dict[int, int] = {}

    def needs(self, now: float) -> int | None:
        """Return the oldest round that workers may miss after the copies under way; None where there are none."""
        if not self._until:
            return None
        return min([self._needs[to] for to, until in self._until.items() if until > now], default=None)

    def ended(self, to: int) -> None:
        self._until.pop(to, None)

    def source_for(self, to: int, fit: Sequence[int], now: float, oldest: int) -> int | None:
        """Return the worker whose replica `to` copies: the leader, or another of `fit` when it asks again. Where there
        are several hosts, first those on the host of `to`, then the others from the next rank on, so that not every
        copy comes from the leader's host. None while a copy is on its way. The rounds from `oldest` on, which is what
        the log has now, are kept until the copy has arrived (see `needs`)."""
        if self._until.get(to, now) > now:
            return None
        self._until[to], self._needs[to] = now + AGAIN_SECONDS, oldest
        others = [self._rank, *(rank for rank in fit if rank not in (self._rank, to))]
        if len({self._host_of(rank) for rank in (*others, to)}) > 1:
            host, most = self._host_of(to), max(others) + 1
            others.sort(key=lambda rank: (self._host_of(rank) != host, (rank - to) % most))
        asked = self._asked[to] = self._asked.get(to, -1) + 1
        self._sources[to] = others[asked % len(others)]
        return self._sources[to]

    def have_died(self, ranks: Iterable[int]) -> list[int]:
        """Note that `ranks` have died; return the workers that wait for a copy of one of them."""
        dead = set(ranks)
        left = [to for to, source in self._sources.items() if source in dead and to in self._until]
        for to in [*left, *dead]:
            self._until.pop(to, None)
            self._sources.pop(to, None)
        return [to for to in left if to not in dead]
