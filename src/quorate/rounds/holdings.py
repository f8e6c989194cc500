"""Which rounds each worker has, as the leader knows; who misses some gets them, or a copy of a replica."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from quorate.core.vectors import Flat
from quorate.rounds.calls import Calls
from quorate.rounds.copies import Copies
from quorate.rounds.forming import Forming, spans_hosts
from quorate.rounds.gathering import Carrying
from quorate.rounds.log import BRIDGE, Log, Round
from quorate.rounds.terms import PASSED_ON, Agreed

Send = Callable[[int, dict[str, Any], Flat | None], None]
"""(to, header, vector)"""


class Holdings:
    """Those of all workers, as their leader `rank` knows them."""

    def __init__(
        self, agreed: Agreed, rank: int, log: Log, calls: Calls, send: Send, host_of: Callable[[int], int]
    ) -> None:
        self._agreed, self._rank, self._log, self._calls, self._send = agreed, rank, log, calls, send
        self.told = dict.fromkeys(agreed.ranks, log.newest)
        """The newest round that was sent to each; -1: it is absent."""
        self._acknowledged = dict.fromkeys(agreed.ranks, 0)
        """The newest round that each is known to have."""
        self._logged = dict.fromkeys(agreed.ranks, 0)
        """The newest round that each has said to have."""
        self._left_out: set[int] = set()
        """Who is brought up when it has what is on its way to it."""
        self._on_its_way: dict[int, tuple[int, float]] = {}
        """By rank, the result that is on its way there, and since when."""
        self._newest_there: dict[int, int] = {}
        self._there = [Carrying(agreed) for _ in agreed.ranks]
        self._copies = Copies(rank, host_of)
        self._proposed: Round | None = None
        """What everyone is told to hold: see `votes`."""
        self._first_there: dict[int, int] = {}
        """By host, who has the sum of the newest round first there, and passes it on."""
        self._host_of = host_of

    # -- what is known

    def are_absent(self, ranks: Iterable[int]) -> None:
        """They do not answer."""
        for rank in ranks:
            self.told[rank] = -1
            self._left_out.discard(rank)
            self._on_its_way.pop(rank, None)
        self._first_there = {host: rank for host, rank in self._first_there.items() if self.told[rank] >= 0}

    def heard(self, rank: int, header: dict[str, Any], now: float) -> None:
        """`rank` says which is the newest round that it has."""
        logged = header["logged"]
        if rank in self._on_its_way and logged >= self._on_its_way[rank][0]:
            del self._on_its_way[rank]
        self.know({rank: header})
        if rank in self._left_out and logged >= self.told[rank] and self._calls.workers[rank].is_present:
            self.bring_up(rank, header, now)

    def know(self, states: Mapping[int, dict[str, Any]]) -> None:
        """What a new leader was told, by rank."""
        for rank, header in states.items():
            if self._log.term_of(header["logged"]) == header["log_term"]:
                self._logged[rank] = header["logged"]

    def got(self, rank: int, number: int, now: float) -> None:
        """`rank` has the result of round `number`."""
        if rank in self._on_its_way and self._on_its_way[rank][0] == number:
            self._there[rank].took(now - self._on_its_way.pop(rank)[1])
            self._newest_there[rank] = number
        if rank in self._left_out and number >= self.told[rank] and self._calls.workers[rank].is_present:
            if number > self._log.newest:
                self._left_out.discard(rank)  # it holds what is voted on
            else:
                self.bring_up(rank, {"logged": number, "log_term": self._log.term_of(number)}, now)

    def seconds_there(self, rank: int) -> float:
        """How much longer `rank` may take to answer, as a result is on its way to it."""
        return min(self._there[rank].seconds, self._agreed.patience) if rank in self._on_its_way else 0.0

    def newest_there(self, rank: int) -> tuple[int, float]:
        """The newest round of which it is known how long its result took to `rank`, and how long."""
        return self._newest_there.get(rank, 0), self._there[rank].latest

    def on_its_way(self, rank: int, now: float) -> float:
        """How long a result has been on its way to `rank`; 0 where none is."""
        return now - self._on_its_way[rank][1] if rank in self._on_its_way else 0.0

    def leaves_out(self, rank: int) -> None:
        """`rank` is not told the rounds that are formed until it has those that are on their way to it."""
        self._left_out.add(rank)

    def tell(
        self,
        formed: Round,
        had: Iterable[int],
        forming: Forming | None,
        now: float,
        *,
        voters: Collection[int] = (),
        holders: Collection[int] = (),
    ) -> int:
        """Send a round to all that have the one before it, and nothing but its header where the hosts have formed it;
        returns the newest round that all are known to have. Those of `had` have answered for this one. With `voters`
        it is to be held: see `votes`; the `holders` do, under another leader."""
        number, self._proposed = formed.number, formed if voters else None
        heads = () if forming is None else (one.head for one in forming.hosts)
        self._first_there = {self._host_of(rank): rank for rank in (*heads, self._rank)}
        for rank in had:  # what was sent to them before they had when they answered; or as far as they have said
            known = number - 1 if forming is None else self._logged[rank]
            self._acknowledged[rank] = min(self.told[rank], known)
        acknowledged = min(self._acknowledged[rank] for rank in self._calls.inside)
        header = self._about(formed, acknowledged)
        for rank in self._agreed.ranks:
            is_asked = rank in voters and self._calls.workers[rank].activity == "away"  # it has said so just now
            if rank == self._rank or rank in self._left_out or not (self.told[rank] == number - 1 or is_asked):
                continue
            self.told[rank] = -1 if is_asked else number
            if rank in holders:
                self._send(rank, {"kind": "hold", "number": number}, None)
                continue
            if forming is not None and (head := forming.told.get(rank)) is not None:
                self._send(rank, {**header, "attempt": forming.attempt, "head": head}, None)
            else:
                self._send_newest(rank, formed, header)
            if formed.sum is not None and (self._agreed.is_large or forming is not None):
                self._on_its_way.setdefault(rank, (number, now))
        return acknowledged

    def _send_newest(self, to: int, one: Round, header: dict[str, Any], *, from_here: bool = False) -> None:
        """The round that was formed last: its sum from the first that has it on the host of `to`."""
        first = self._first_there.setdefault(self._host_of(to), to)
        self._send_from(self._rank if from_here else first, to, one, header)

    def _send_from(self, source: int, to: int, one: Round, header: dict[str, Any]) -> None:
        if source in (self._rank, to) or one.sum is None:
            self._send(to, header, one.sum)
        else:
            self._send(to, {**header, "attempt": PASSED_ON, "head": source}, None)
            self._send(source, {"kind": "pass on", "for": to, "number": one.number}, None)

    def _about(self, one: Round, acknowledged: int) -> dict[str, Any]:
        is_proposed = self._proposed is not None and self._proposed.number == one.number
        about = {"acknowledged": acknowledged, "attempt": 0, "after": self._log.term_of(one.number - 1)}
        return {"kind": "round", "votes": is_proposed, **about, **one.header}

    def in_force(self, number: int) -> None:
        """All that hold round `number` may take it."""
        self._proposed = None
        for rank, told in self.told.items():
            if told == number and rank != self._rank:
                self._send(rank, {"kind": "force", "number": number}, None)

    # -- those that miss something

    def behind(self, rank: int, header: dict[str, Any], now: float) -> None:
        """`rank` says that it misses rounds."""
        self._copies.ended(rank)
        self.bring_up(rank, header, now, from_here=True)

    def have_died(self, ranks: Iterable[int]) -> None:
        """Who waits for a copy from one of them asks anew."""
        self.are_absent(ranks)
        for other in self._copies.have_died(ranks):
            self._send(other, {"kind": "again"}, None)

    def bring_up(self, rank: int, header: dict[str, Any], now: float, *, from_here: bool = False) -> None:
        """See to it that `rank` gets what it misses, or a copy of a replica. Among several hosts sums come from a
        worker on its host, or from the next one that has them, and not all from the leader, unless `from_here`."""
        self._left_out.discard(rank)
        logged, newest = header["logged"], self._log.newest
        if self._proposed is not None and logged == self._proposed.number:
            self.told[rank] = logged  # the leader before this one has said that it is in force
            return
        missing = [self._log.get(number) for number in range(logged + 1, newest + 1)]
        spans = spans_hosts(self._agreed, self._host_of, [*self._calls.inside, rank])
        is_far = spans and len(missing) > BRIDGE  # a copy is less to carry
        if logged > newest or self._log.term_of(logged) != header["log_term"] or None in missing or is_far:
            workers = self._calls.workers
            fit = [r for r, has in self.told.items() if has >= newest and workers[r].is_present]
            source = self._copies.source_for(rank, fit, now)
            self.told[rank] = -1  # until it says what it has then
            if source is not None:
                is_new = workers[rank].activity == "gone"
                self._send(source, {"kind": "copy for", "rank": rank, "is_new": is_new}, None)
            return
        source = self._source_of_rounds(rank) if spans and not from_here else self._rank
        for one in missing:
            assert one is not None
            self._send_from(source, rank, one, self._about(one, 0))
        self.told[rank] = newest
        if spans and missing:
            self._on_its_way.setdefault(rank, (newest, now))
        if self._proposed is not None:
            self._send_newest(rank, self._proposed, self._about(self._proposed, 0), from_here=from_here)
            self.told[rank] = self._proposed.number

    def _source_of_rounds(self, to: int) -> int:
        """Who passes on to `to` what all rounds so far have formed; on its host also one to which they are on the way,
        so that they come to the host once."""
        workers, host, newest = self._calls.workers, self._host_of(to), self._log.newest
        there = [rank for rank in self._calls.inside if workers[rank].is_present and rank != to]
        near = {r for r in there if self._host_of(r) == host and r in self._on_its_way and self.told[r] >= newest}
        order = [self._rank, *(rank for rank in there if self._logged[rank] == newest or rank in near)]
        return min(order, key=lambda rank: (self._host_of(rank) != host, (rank - to) % len(workers)))
