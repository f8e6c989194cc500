"""The one place at a time where rounds are decided and formed: a star, as told below. Knows no wire: takes and gives
messages.

A round takes three hops: the leader asks everyone (`start`), everyone gives what is pending (`give`), the leader adds
up in order of rank and tells the sum (`round`). Who has not answered within `grace` is left out, and asked for nothing
until it speaks again; then it is brought up from the log, or, where that does not reach back, by a copy of a replica.
Where vectors are large, carrying them is not silence: a worker answers at once that it is `here`, and says when it has
`got` a result; while one is on its way to it, it has longer to answer.

Cost per round with P workers, k contributors and d numbers: 3 (P - 1) small messages (5 where vectors are large), k d
numbers to the leader and (P - 1) d from it. That is the seam for larger worlds: a tree in place of the star needs
log2(P) hops each way and at most 2 d numbers per worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from quorate.core.vectors import Flat, Layout
from quorate.rounds.calls import Calls
from quorate.rounds.changes import Changes
from quorate.rounds.copies import Copies, Entrance
from quorate.rounds.gathering import Asking, Carrying, Contribution, OpenRound, furthest, sum_of
from quorate.rounds.log import Log, Round
from quorate.rounds.terms import Agreed

Send = Callable[[int, dict[str, Any], Flat | None], None]
"""(to, header, vector)"""


class Leader:
    """Decides when rounds start, forms them, and sees to it that everyone gets them; `accept` is for its own worker.

    `started` is the newest round that any worker has seen start (one more than the log's newest where it was under way
    when the last leader fell silent).
    """

    def __init__(
        self,
        agreed: Agreed,
        rank: int,
        term: int,
        log: Log,
        send: Send,
        accept: Callable[[Round, int], None],
        started: int,
        blank: Callable[[Layout], Flat] | None = None,
    ) -> None:
        self.agreed, self.rank, self.term = agreed, rank, term
        self._log, self._send, self._accept, self._blank = log, send, accept, blank
        self._changes = Changes(agreed, log)
        self.calls = Calls(self._changes.agreed, log.newest)
        self._resumes = started > log.newest
        self.gathering: OpenRound | None = None
        self._has = dict.fromkeys(agreed.ranks, log.newest)
        self._acknowledged = dict.fromkeys(agreed.ranks, 0)
        """The newest round that each is known to have: it came before what it has answered."""
        self._on_its_way: dict[int, tuple[int, float]] = {}
        """By rank, the result that is on its way there, and since when."""
        self._there = [Carrying(agreed) for _ in agreed.ranks]
        self._back = [Carrying(agreed) for _ in agreed.ranks]
        self._asking = Asking(agreed.grace)
        self._copies = Copies(rank)
        self._wanted = 0
        """The newest request that a round be kept."""
        self._entrance = Entrance(log)
        self.is_over = False
        for rank in log.joined:
            self.calls.comes(rank, log.newest)
        self.are_absent(rank for rank in agreed.ranks if self.is_outside(rank))

    # -- what workers say

    def is_outside(self, rank: int) -> bool:
        """Whether `rank` has not joined yet, or has died."""
        return self.calls.workers[rank].activity == "gone"

    def heard(self, rank: int, header: dict[str, Any], now: float) -> None:
        """Anything from `rank`: it is there, and `header["logged"]` is the newest round it has."""
        worker = self.calls.workers[rank]
        worker.heard_at = self.calls.now = now
        self._asking.heard(rank, now)
        self._wanted = max(self._wanted, header.get("wants", 0))
        self._changes.heard(header)
        if rank in self._on_its_way and header["logged"] >= self._on_its_way[rank][0]:
            del self._on_its_way[rank]
        if not worker.is_present and worker.activity != "away":
            worker.is_present = True
            self.bring_up(rank, header, now)

    def heard_outside(self, rank: int, header: dict[str, Any], now: float) -> None:
        """From `rank`, which is outside; what else it may say it says again when it is inside."""
        if header["kind"] == "behind":
            self.behind(rank, header, now)
        elif header["kind"] == "got":
            self.got(rank, header["number"], now)
        elif (logged := self._entrance.knocked(rank, header)) is not None:
            self.bring_up(rank, {**header, "logged": logged}, now)

    def behind(self, rank: int, header: dict[str, Any], now: float) -> None:
        """`rank` misses rounds."""
        self._copies.ended(rank)
        self.bring_up(rank, header, now)

    def are_absent(self, ranks: Iterable[int]) -> None:
        """They do not answer: nobody waits for them until they speak."""
        for rank in ranks:
            self.calls.workers[rank].is_present = False
            self._has[rank] = -1
            self._on_its_way.pop(rank, None)

    def have_died(self, ranks: Iterable[int], now: float) -> None:
        """They have died: they count for nothing any more. What they have given to the round under way is in it."""
        for rank in ranks:
            self.are_absent([rank])
            self.calls.is_gone(rank)
            self._asking.forget(rank)
            if self.gathering is not None:
                self.gathering.until.pop(rank, None)
        self._entrance.have_died(set(ranks))
        for other in self._copies.have_died(ranks):
            self._send(other, {"kind": "again"}, None)
        if self.gathering is not None:
            self._form_if_whole(self.gathering, now)

    def noted(self, rank: int, header: dict[str, Any], now: float) -> None:
        """What `rank` does: see `Member.note`."""
        kind = header["note"]
        if kind == "call":
            self.calls.called(rank, header["since"], header["computing"], header.get("slack"))
            is_over = header["since"] < self.calls.started and self.gathering is None
            if is_over and header["computing"] is None:
                self.calls.rode(rank, self._log.newest)  # the round it waits for is over already
        elif kind == "ride":
            self.calls.rode(rank, header["computing"])
        elif kind == "wait":
            self.calls.waits(rank)
        elif kind == "away":
            self.calls.went_away(rank)
            self.are_absent([rank])
        elif kind == "back":
            self.calls.rode(rank, header["computing"])
            self.heard(rank, header, now)
        elif kind in ("copy", "enter"):
            self.calls.rode(rank, self._log.newest)  # it is inside by now, as it will see
        else:
            self.calls.settled(rank, ended=header["note"] == "end")

    def got(self, rank: int, number: int, now: float) -> None:
        """`rank` has the result of round `number`."""
        if rank in self._on_its_way and self._on_its_way[rank][0] == number:
            self._there[rank].took(now - self._on_its_way.pop(rank)[1])

    def is_here(self, rank: int, number: int, now: float) -> None:
        """`rank` was asked for round `number`, and gives: its vector is on its way."""
        gathering = self.gathering
        if gathering is not None and gathering.number == number and rank in gathering.until:
            gathering.until[rank] = now + self.agreed.patience + self._back[rank].seconds

    def gave(self, rank: int, number: int, given: Contribution, now: float) -> None:
        """`rank` gives to round `number`; where that is over, it takes it back when it has the round."""
        gathering = self.gathering
        if gathering is not None and gathering.number == number:
            gathering.given[rank] = given
            if rank in gathering.until:
                self._back[rank].took(now - gathering.since)
            self._form_if_whole(gathering, now)

    # -- deciding

    def advance(self, now: float) -> None:
        """Start what may start, and end what has waited long enough."""
        gathering, self.calls.now = self.gathering, now
        if gathering is not None and now >= self.looks_at:
            self._look(gathering, now)
        while self.gathering is None and not self.is_over:
            if self._resumes or self.calls.may_start():
                self._resumes = False
                self._begin(now, settles=False)
            elif self.calls.may_settle():
                self._begin(now, settles=True)
            elif not self._finds_silent(now):
                break

    def _finds_silent(self, now: float) -> bool:
        """Ask those that a round waits for whether they are there, now and then; whether one is found not to be."""
        silent, there = self._asking.due(set(self.calls.held_by()) - {self.rank}, now)
        self.are_absent(silent)
        for rank in there:
            self._send(rank, {"kind": "look"}, None)
            self._asking.asked(rank, self._silent_at(rank, now))
        return bool(silent)

    def _begin(self, now: float, *, settles: bool) -> None:
        number = self.calls.begin()
        assert number == self._log.newest + 1
        asked = [r for r, w in enumerate(self.calls.workers) if w.is_present or (settles and w.activity != "gone")]
        self.gathering = OpenRound(number, now, settles, {rank: self._silent_at(rank, now) for rank in asked})
        for rank, worker in enumerate(self.calls.workers):
            if worker.activity != "gone":  # also the absent ones: it wakes them up
                self._send(rank, {"kind": "start", "number": number, "settles": settles}, None)

    def _silent_at(self, rank: int, now: float) -> float:
        """When `rank`, asked now, has not answered."""
        carrying = min(self._there[rank].seconds, self.agreed.patience) if rank in self._on_its_way else 0.0
        return now + self.agreed.grace + carrying

    @property
    def looks_at(self) -> float:
        """When somebody may turn out to be silent."""
        gathering = self.gathering
        if gathering is None:
            return min(self._asking.looks_at, self.calls.opens_at)
        if gathering.settles:
            return math.inf
        return min((at for rank, at in gathering.until.items() if rank not in gathering.given), default=math.inf)

    def _look(self, gathering: OpenRound, now: float) -> None:
        if now >= self.looks_at + self.agreed.grace and not gathering.is_extended:
            gathering.is_extended = True  # it is this worker that stood still: the answers may be here already
            gathering.until = {rank: max(at, now + self.agreed.grace) for rank, at in gathering.until.items()}
            return
        answered = gathering.given.keys() | {self.rank}
        silent = [rank for rank, at in gathering.until.items() if rank not in answered and now >= at]
        self.are_absent(silent)
        gathering.until = {rank: at for rank, at in gathering.until.items() if rank not in silent}
        self._form_if_whole(gathering, now)

    def _form_if_whole(self, gathering: OpenRound, now: float) -> None:
        if gathering.until.keys() <= gathering.given.keys():
            self._form(gathering, now)

    def _form(self, gathering: OpenRound, now: float) -> None:
        self.gathering, self.calls.window.exchange = None, now - gathering.since
        given = dict(sorted(gathering.given.items()))
        best_step, best_options = furthest(given.values(), self._log.step, self._log.options)
        workers = self.calls.workers
        entering = self._entrance.let_in(gathering.number, self._has, settles=gathering.settles)
        contributors = {rank: one.stalenesses for rank, one in given.items() if one.vector is not None}
        live = self.calls.live if gathering.settles else max(1, self.calls.counted_at(now), len(contributors))
        formed = Round(
            number=gathering.number,
            term=self.term,
            sum=sum_of([one.vector for one in given.values() if one.vector is not None], self._blank),
            weight=sum(one.weight for one in given.values()),
            live=live,
            alive=live if gathering.settles else max(live, self.calls.counted_at(now) + self.calls.ended),
            options=best_options,
            step=best_step,
            progress=self._log.progress + sum(one.used_up for one in given.values()) / max(1, self.calls.live),
            contributors=contributors,
            settles=gathering.settles,
            saves=self._wanted if self._wanted > self._log.saves else 0,
            is_last=gathering.settles and self.calls.all_ended,
            quorum=self.calls.quorum,
            joined=(*self._log.joined, *entering),
            stretch=gathering.number if gathering.settles else self._log.stretch,
            measures={rank: one.measures for rank, one in given.items() if one.measures},
            times={rank: one.times for rank, one in given.items()},
            window=self.calls.window.used,
            **self._changes.answered(),
        )
        self.is_over = formed.is_last
        if gathering.settles:
            self.calls.resumed(gathering.number)
        self.calls.completed(gathering.number)
        for rank in entering:
            self.calls.comes(rank, gathering.number)
        self._acknowledged.update((rank, min(self._has[rank], formed.number - 1)) for rank in given)
        acknowledged = min(self._acknowledged[rank] for rank, one in enumerate(workers) if one.activity != "gone")
        for rank in [r for r in self.agreed.ranks if r != self.rank]:
            if self._has[rank] == formed.number - 1:
                self._send(rank, {"kind": "round", "acknowledged": acknowledged, **formed.header}, formed.sum)
                self._has[rank] = formed.number
                if self.agreed.is_large and formed.sum is not None:
                    self._on_its_way.setdefault(rank, (formed.number, now))
        self._accept(formed, acknowledged)
        self.calls.agreed = self._changes.agreed
        self._has[self.rank] = formed.number

    # -- those that miss something

    def bring_up(self, rank: int, header: dict[str, Any], now: float) -> None:
        """Send `rank` what it misses, or see to it that it gets a copy of a replica."""
        logged, newest = header["logged"], self._log.newest
        missing = [self._log.get(number) for number in range(logged + 1, newest + 1)]
        if logged > newest or self._log.term_of(logged) != header["log_term"] or None in missing:
            workers = self.calls.workers
            fit = [r for r, has in self._has.items() if has == newest and workers[r].is_present]
            source = self._copies.source_for(rank, fit, now)
            if source is not None:
                self._send(source, {"kind": "copy for", "rank": rank, "is_new": self.is_outside(rank)}, None)
            return
        for one in missing:
            assert one is not None
            self._send(rank, {"kind": "round", "acknowledged": 0, **one.header}, one.sum)
        self._has[rank] = newest
