"""The attempts of a leader to have the hosts form a round's sum: one after the other, until one is through."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping

from quorate.core.members import by_host
from quorate.rounds.buffer import Contribution
from quorate.rounds.calls import Calls
from quorate.rounds.forming import Forming, decided, spans_hosts
from quorate.rounds.gathering import Carrying, OpenRound
from quorate.rounds.holdings import Holdings, Send
from quorate.rounds.messages import Whole
from quorate.rounds.terms import Agreed

_SLACK = 4  # an answer may take the time of an exchange, divided by this


class Attempts:
    """The attempts of leader `rank`."""

    def __init__(
        self, agreed: Agreed, rank: int, calls: Calls, holdings: Holdings, send: Send, host_of: Callable[[int], int]
    ) -> None:
        self._agreed, self._rank, self._calls = agreed, rank, calls
        self._holdings, self._send, self._host_of = holdings, send, host_of
        self._took = Carrying(agreed)
        self._seconds_of: dict[int, float] = {}  # in this attempt, by head, the seconds until its piece of the sum came
        self._slow: dict[int, int] = {}

    def span(self, ranks: Iterable[int]) -> bool:
        """Return whether hosts form the rounds of `ranks`: only sums, and not with learners of several workers."""
        return (
            not self._agreed.learners
            and self._agreed.combine is None
            and spans_hosts(self._agreed, self._host_of, ranks)
        )

    def order(self, gathering: OpenRound, contributions: Mapping[int, Contribution]) -> list[list[int]]:
        """Return the contributors in the order in which they are added, by host; none where there is one host."""
        if gathering.forming is not None:
            return gathering.forming.order
        hosts = by_host(self._host_of, (rank for rank, sent in contributions.items() if sent.gives))
        return hosts if len(hosts) > 1 else []

    @property
    def seconds(self) -> float:
        """The seconds that an exchange may take, and that its members may be busy."""
        return self._took.between_hosts

    @property
    def slack(self) -> float:
        """The additional seconds to wait for answers: to a worker that is left out, the sum takes one exchange more."""
        return self._took.latest / _SLACK

    def are_needed(self, gathering: OpenRound) -> bool:
        """Return whether to decide (again): nothing is decided, or a worker that is needed has died or is silent."""
        return gathering.forming is None or not self._absent(gathering).isdisjoint(gathering.forming.needed)

    def decide(self, gathering: OpenRound, now: float) -> bool:
        """Choose who forms the sum; return False where nobody contributes any more."""
        newest_of, contributions = self._holdings.told, gathering.contributions
        usual, clogged = self._agreed.grace + 2 * self._took.latest, set[int]()
        for rank in contributions.keys() - {self._rank}:
            late = self._holdings.on_its_way(rank, now) > usual or newest_of[rank] < 0  # a copy is on its way there
            if late and not gathering.is_pause:
                clogged.add(rank)
            newest, seconds = self._holdings.newest_there(rank)
            if newest > self._slow.get(rank, newest) and seconds <= usual:
                del self._slow[rank]
        before = gathering.forming
        gathering.forming = forming = decided(
            self._rank,
            self._host_of,
            answered={*contributions.keys() - clogged, self._rank},
            gives={rank for rank, sent in contributions.items() if sent.gives},
            tells=[
                r
                for r in self._agreed.ranks
                if newest_of[r] == gathering.number - 1 and r not in (self._rank, *clogged)
            ],
            before=before,
            absent=self._absent(gathering),
            slow=self._slow,
            now=now,
        )
        # What a head has of its host is one or the other, for all attempts of a round.
        sizes = {rank: sent.sizes for rank, sent in contributions.items()}
        forming.gathers = forming.is_less_in_codes(sizes) if before is None else before.gathers
        self._seconds_of = {}
        for rank in clogged:  # it gets the round when it has those that are on their way
            self._holdings.leaves_out(rank)
        if not forming.contributors:
            return False
        for rank, message in forming.messages(gathering.number, gathering.is_pause):
            self._send(rank, message.header(), None)
        return True

    def whole(self, gathering: OpenRound | None, head: int, message: Whole) -> None:
        """Note that `head` has all contributions of its host."""
        if (forming := _under_way(gathering, message.number, message.attempt)) is not None:
            forming.whole(head)

    def has_piece(self, gathering: OpenRound | None, head: int, number: int, attempt: int, now: float) -> None:
        """Note that the piece of the sum that `head` forms is here."""
        if (forming := _under_way(gathering, number, attempt)) is not None:
            self._seconds_of[head] = now - forming.since

    def is_through(self, gathering: OpenRound | None, number: int, attempt: int, now: float) -> bool:
        """Return whether this is the attempt that counts, the sum of which is here now."""
        if (forming := _under_way(gathering, number, attempt)) is None:
            return False
        self._took.took(now - forming.since)
        usual = self._agreed.grace + 2 * statistics.median_low(self._seconds_of.values() or [0.0])
        self._slow |= {head: number for head, seconds in self._seconds_of.items() if seconds > usual}
        return True

    def _absent(self, gathering: OpenRound) -> set[int]:
        workers, there = self._calls.workers, set(self._calls.inside)
        if not gathering.is_pause:  # in a pause all workers are waited for
            there = {rank for rank in there if workers[rank].is_present}
        return gathering.contributions.keys() - there - {self._rank}


def _under_way(gathering: OpenRound | None, number: int, attempt: int) -> Forming | None:
    forming = None if gathering is None or gathering.number != number else gathering.forming
    return None if forming is None or forming.attempt != attempt else forming
