"""Rounds with a quorum, by events: calls, starts, and contributions; times alone.

The decisions are those of real rounds (`rounds.calls`), and so are the messages. A call is sent to the leading worker,
rank 0, which asks all workers, receives pending contributions, and sends the sum. Each direction takes a latency, and
vectors the time of their bytes. Messages of the leader wait until earlier ones are on their way. No worker falls silent
or ends. Between hosts a round is in force when a majority has confirmed it, and large sums are formed in pieces: see
`rounds.hosts.exchange`. The leader's work for each worker (`Links.leader`) is spread over its four messages to all.

Cost: two events for each contribution; some 10 microseconds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from heapq import heappop, heappush

from quorate.rounds.terms import Agreed
from quorate.simulation.calls import CountedCalls
from quorate.simulation.played import Case, Formed, Played

_ARRIVES, _SAYS, _GIVES, _FORMS = range(4)
_LEADS = 0
_LOOKS = 20_000
"""Events between two progress reports."""


class QuorumRun:
    """One run. `every` is the number of steps that a worker takes alone before it contributes."""

    def __init__(self, case: Case, agreed: Agreed, *, every: int = 1, overlap: bool = False) -> None:
        agreed = replace(agreed, vector_bytes=case.nbytes)
        self._case, self._agreed, self._every, self._overlap = case, agreed, every, overlap
        self._busy = case.drawn
        self._size, self._latency = case.workers, case.links.latency
        self._in_pieces = case.links.in_pieces(case.nbytes, case.workers)
        self._votes = case.links.per_host > 0 and case.links.ports(case.workers) > 1
        self._turn = case.links.leader * case.workers / 4
        self._coding = 0.0 if case.codes is None else case.codes.written(case.codes.numel)
        self._sent_in_codes = 0
        """Bytes that hosts exchange for the round in formation, where they do so in codes."""
        self._calls = CountedCalls(agreed)
        self._events: list[tuple[float, int, int, int, int]] = []
        """(time, kind, rank, since (-1: it rides), computing (-1: nothing, it waits))"""
        self._version = [0] * self._size
        self._begin = [0.0] * self._size
        self._steps = [0] * self._size
        self._pending: dict[int, list[int]] = {}
        """By rank, the rounds on whose parameters its contributions were computed that no round has taken."""
        self._arrived: dict[int, float] = {}
        """By rank, when the newest of these arrived."""
        self._sends_until = [0.0] * self._size
        """By rank, when its last contribution is on its way: later messages follow it."""
        self._given: dict[int, list[int]] = {}
        self._last_given = 0.0
        self._gathering = False
        self._begun = [(0.0, 0.0)]
        """By round, when it started at the leader, and when the others heard of it."""
        self._there: list[tuple[float, float, float]] = [(0.0, 0.0, 0.0)]
        """By formed round: when it was complete at the leader, when it left it, and the seconds between two others'
        receiving it."""
        self._own: dict[int, int] = {}
        """By formed round with a single contribution, the worker that it is from: the sum is not sent to it."""
        self._last: list[float] = [0.0]
        """By formed round, when the last contribution that it took had arrived."""
        self._port_free = 0.0
        self._waiting: dict[int, list[tuple[int, int]]] = {}
        """By round, the workers that wait for it, and the indices of their steps."""
        self._until = math.inf
        """When the fastest worker has taken its steps."""
        self._ended = [0.0] * self._size
        self._at_work = self._size
        """Workers that have not ended a step at that time, or later."""
        self.played = Played()

    def run(self) -> Played:
        """Run until all have been active for as long as the fastest takes for its steps."""
        for rank in range(self._size):
            self._go_on(rank, 0.0)
        count = 0
        while self._at_work:
            time, kind, rank, since, computing = heappop(self._events)
            if kind == _ARRIVES:
                self._arrives(rank, time)
            elif kind == _SAYS:
                self._says(rank, since, computing, time)
            elif kind == _GIVES:
                self._gives(time)
            else:
                self._forms(time)
            count += 1
            if count % _LOOKS == 0:
                self._case.watch(min(1.0, max(self._steps) / self._case.steps))
        return self.played

    # -- a worker

    def _go_on(self, rank: int, now: float) -> None:
        """Let the worker compute until it contributes next, alone."""
        busy = self._busy
        for _ in range(self._every - 1):
            arrive = now + busy.before(rank, self._steps[rank])
            end = arrive + busy.after(rank, self._steps[rank])
            self.played.step(rank, now, arrive, arrive, arrive, end)
            self._stepped(rank, end)
            now = end
        self._begin[rank] = now
        heappush(self._events, (now + busy.before(rank, self._steps[rank]), _ARRIVES, rank, 0, 0))

    def _arrives(self, rank: int, now: float) -> None:
        started, version = self._known(rank, now), self._version[rank]
        if self._agreed.late == "replace":
            self._pending[rank] = [version]
        else:
            self._pending.setdefault(rank, []).append(version)
        self._arrived[rank] = now
        rides = started > version
        number = started if rides else started + 1
        heard = max(now, self._sends_until[rank]) + self._latency if rank != _LEADS else now
        computing = version if self._overlap else started if rides else -1
        heappush(self._events, (heard, _SAYS, rank, -1 if rides else started, computing))
        if self._overlap:
            self._resumes(rank, now, now, now)
        elif number < len(self._there):
            self._resumes(rank, now, max(now, self._at(number, rank)), self._last[number])
        else:
            self._waiting.setdefault(number, []).append((rank, len(self.played.rank)))
            self.played.step(rank, self._begin[rank], now, now, now, now)

    def _resumes(self, rank: int, arrive: float, now: float, last: float) -> None:
        """Let the worker go on, as it need not wait, or for a known time only."""
        end = now + self._busy.after(rank, self._steps[rank])
        self.played.step(rank, self._begin[rank], arrive, last, now, end)
        self._applied(rank, now, end)

    def _applied(self, rank: int, now: float, end: float) -> None:
        version = self._version[rank]
        while version + 1 < len(self._there) and self._at(version + 1, rank) <= now:
            version += 1
        self._version[rank] = version
        self._stepped(rank, end)
        self._go_on(rank, end)

    def _stepped(self, rank: int, end: float) -> None:
        self._steps[rank] += 1
        if self._ended[rank] < self._until <= end:
            self._at_work -= 1
        self._ended[rank] = end
        if self._steps[rank] == self._case.steps and end < self._until:
            self._until = end
            self._at_work = sum(last < end for last in self._ended)

    def _known(self, rank: int, now: float) -> int:
        """Return the newest round that this worker knows to have started."""
        newest = len(self._begun) - 1
        while newest and self._begun[newest][rank != _LEADS] > now:
            newest -= 1
        return newest

    def _at(self, number: int, rank: int) -> float:
        """Return when the result of the formed round `number` arrives."""
        formed, left, between = self._there[number]
        if rank == _LEADS:
            return formed
        own = self._own.get(number, self._size)
        if rank == own and self._case.links.is_mesh:
            return left - self._case.links.carrying(self._case.nbytes) + self._latency
        return left + (rank - (rank >= own)) * between + self._latency

    def _has_own(self, contributor: int) -> bool:
        """Whether a sum of this contribution alone is not sent back: see `Holdings`."""
        is_near = not self._case.links.per_host or contributor < self._case.links.per_host
        return contributor != _LEADS and is_near and self._agreed.is_large and self._agreed.combine is None

    # -- the leader

    def _says(self, rank: int, since: int, computing: int, now: float) -> None:
        calls = self._calls
        if since < 0:
            calls.rode(rank, computing)
        else:
            calls.called(rank, since, computing if computing >= 0 else None)
            if since < calls.started and not self._gathering and computing < 0:
                calls.rode(rank, calls.started)  # the round it waits for is over already
        self._advance(now)

    def _advance(self, now: float) -> None:
        if self._gathering or not self._calls.may_start():
            return
        self._calls.begin()
        self._gathering = True
        asked = max(now, self._port_free) + self._latency + self._turn
        self._begun.append((now, asked))
        self._given, self._last_given = {}, 0.0
        self._take([_LEADS])
        if self._size > 1:
            heappush(self._events, (asked, _GIVES, 0, 0, 0))
        else:
            heappush(self._events, (now, _FORMS, 0, 0, 0))

    def _take(self, ranks: list[int]) -> None:
        agreed, number = self._agreed, self._calls.started
        oldest = 0 if agreed.late == "drop" else agreed.max_staleness
        for rank in ranks:
            fit = [number - 1 - version for version in self._pending.pop(rank, ()) if number - 1 - version <= oldest]
            if fit:
                self._given[rank] = fit
                self._last_given = max(self._last_given, self._arrived[rank])

    def _gives(self, now: float) -> None:
        self._take([rank for rank in self._pending if rank != _LEADS])
        vectors = len(self._given) - (_LEADS in self._given)
        nbytes = self._case.nbytes
        if self._given:
            now += self._coding
            self.played.coding += len(self._given) * self._coding
        if self._in_pieces is not None:
            exchange = self._latency + self._exchanged(self._in_pieces) if self._given else 0.0
            heappush(self._events, (now + self._latency + self._turn + exchange, _FORMS, 0, 0, 0))
            return
        self.played.bytes_out += len(self._given) * nbytes  # the leader's own counts as well, as in records
        carrying = self._case.links.carrying(nbytes, vectors) if vectors else 0.0
        vector_seconds = self._case.links.carrying(nbytes)
        for rank in self._given:
            self._sends_until[rank] = now + vector_seconds
        heappush(self._events, (now + self._latency + self._turn + carrying, _FORMS, 0, 0, 0))

    def _exchanged(self, in_pieces: float) -> float:
        """Return the seconds until hosts have the sum of the contributions; by codes where that is less
        (`rounds.forming`)."""
        case, codes, self._sent_in_codes = self._case, self._case.codes, 0
        if codes is None:
            return in_pieces
        hosts = case.links.ports(self._size)
        counts = [0] * hosts
        for rank in self._given:
            counts[rank // case.links.per_host] += 1
        most = max(max(count * (hosts - 1), len(self._given) - count) for count in counts)
        if most * codes.nbytes >= 2 * (hosts - 1) / hosts * case.nbytes:
            return in_pieces
        self._sent_in_codes = len(self._given) * (hosts - 1) * codes.nbytes
        read = len(self._given) * codes.numel * codes.cost.decode
        self.played.coding += hosts * read
        return self._latency + case.links.carrying(most * codes.nbytes) + read

    def _forms(self, now: float) -> None:
        number, links = self._calls.started, self._case.links
        nbytes = self._case.nbytes if self._given else 0
        if self._in_pieces is None:
            vector_seconds = links.carrying(nbytes)
            left, receivers = max(now, self._port_free), self._size - 1
            if len(self._given) == 1 and self._has_own(contributor := next(iter(self._given))):
                self._own[number] = contributor
                receivers -= 1
            self._port_free = left + (vector_seconds if links.is_mesh else vector_seconds * receivers)
            self.played.bytes_out += receivers * nbytes
        else:
            vector_seconds, left, hosts = 0.0, now, links.ports(self._size)
            self.played.bytes_out += self._sent_in_codes or 2 * (hosts - 1) * nbytes
        if self._votes:
            now += 2 * self._latency + self._turn
            left = max(left, now) + self._turn
        self._there.append((now, left + vector_seconds, 0.0) if links.is_mesh else (now, left, vector_seconds))
        self._last.append(self._last_given)
        stalenesses: dict[int, int] = {}
        for ages in self._given.values():
            for age in ages:
                stalenesses[age] = stalenesses.get(age, 0) + 1
        self.played.rounds.append(Formed(now, len(self._given), stalenesses))
        self._calls.completed(number)
        self._gathering = False
        for rank, place in self._waiting.pop(number, ()):
            at = self._at(number, rank)
            end = at + self._busy.after(rank, self._steps[rank])
            self.played.last[place] = self._last_given
            self.played.done[place], self.played.end[place] = at, end
            self._applied(rank, at, end)
        self._advance(now)
