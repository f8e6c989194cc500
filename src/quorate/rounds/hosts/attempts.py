"""How a leader has the hosts form a round's sum among themselves: one attempt after the other, until one is through."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping

from quorate.core.hosts import by_host
from quorate.rounds.calls import Calls
from quorate.rounds.forming import decided, spans_hosts
from quorate.rounds.gathering import Carrying, Contribution, OpenRound
from quorate.rounds.holdings import Holdings, Send
from quorate.rounds.terms import Agreed

_SLACK = 4
"""An answer may take one of so many parts of what an exchange takes."""


class Attempts:
    """Those of leader `rank`."""

    def __init__(
        self,
        agreed: Agreed,
        rank: int,
        calls: Calls,
        holdings: Holdings,
        send: Send,
        host_of: Callable[[int], int],
    ) -> None:
        self._agreed, self._rank, self._calls = agreed, rank, calls
        self._holdings, self._send, self._host_of = holdings, send, host_of
        self._took = Carrying(agreed)
        self._came: dict[int, float] = {}
        """Of the attempt under way, by head: when its piece of the sum came."""
        self._slow: dict[int, int] = {}
        """Heads at the end of thin links, as far as known, since which round."""

    def span(self, ranks: Iterable[int]) -> bool:
        """Whether a round of these is formed so; of learners of several workers none is, and none that is no sum."""
        return (
            not self._agreed.learners
            and self._agreed.combine is None
            and spans_hosts(self._agreed, self._host_of, ranks)
        )

    def order(self, gathering: OpenRound, given: Mapping[int, Contribution]) -> list[list[int]]:
        """In which the contributions are added, host by host, wherever that is done; none where there is one host."""
        if gathering.forming is not None:
            return gathering.forming.order
        found = by_host(self._host_of, (rank for rank, one in given.items() if one.gives))
        return found if len(found) > 1 else []

    @property
    def seconds(self) -> float:
        """What an exchange may take: as long one of its members may be busy with it."""
        return self._took.between_hosts

    @property
    def slack(self) -> float:
        """How much longer to wait for answers: who is left out has to get the sum over the same links once more, which
        takes as long as the exchange."""
        return self._took.latest / _SLACK

    def are_needed(self, gathering: OpenRound) -> bool:
        """Whether to decide (again): nothing is, or somebody that is needed has died or fallen silent."""
        return gathering.forming is None or not self._gone(gathering).isdisjoint(gathering.forming.needed)

    def decide(self, gathering: OpenRound, now: float) -> bool:
        """Say who forms the sum of what was given; False where nobody gives anything any more."""
        told, given = self._holdings.told, gathering.given
        usual, clogged = self._agreed.grace + 2 * self._took.latest, set[int]()
        for rank in given.keys() - {self._rank}:
            late = self._holdings.on_its_way(rank, now) > usual or told[rank] < 0  # a copy is on its way there
            if late and not gathering.settles:
                clogged.add(rank)
            newest, seconds = self._holdings.newest_there(rank)
            if newest > self._slow.get(rank, newest) and seconds <= usual:
                del self._slow[rank]
        before = gathering.forming
        gathering.forming = forming = decided(
            self._rank,
            self._host_of,
            answered={*given.keys() - clogged, self._rank},
            gives={rank for rank, one in given.items() if one.gives},
            tells=[
                r for r in self._agreed.ranks if told[r] == gathering.number - 1 and r not in (self._rank, *clogged)
            ],
            before=before,
            gone=self._gone(gathering),
            slow=self._slow,
            now=now,
        )
        # What a head has of its host is one or the other, for all attempts of a round.
        sizes = {rank: one.sizes for rank, one in given.items()}
        forming.gathers = forming.is_less_in_codes(sizes) if before is None else before.gathers
        self._came = {}
        for rank in clogged:  # it gets the round when it has those that are on their way
            self._holdings.leaves_out(rank)
        if not forming.contributors:
            return False
        for rank, header in forming.messages():
            self._send(rank, {"number": gathering.number, "settles": gathering.settles, **header}, None)
        return True

    def whole(self, gathering: OpenRound | None, head: int, number: int, attempt: int) -> None:
        """`head` has all that its host gives to round `number`."""
        if _is_under_way(gathering, number, attempt):
            assert gathering is not None and gathering.forming is not None
            gathering.forming.whole(head)

    def came(self, gathering: OpenRound | None, head: int, number: int, attempt: int, now: float) -> None:
        """The piece of the sum that `head` forms is here."""
        if _is_under_way(gathering, number, attempt):
            assert gathering is not None and gathering.forming is not None
            self._came[head] = now - gathering.forming.since

    def is_through(self, gathering: OpenRound | None, number: int, attempt: int, now: float) -> bool:
        """Whether this is the attempt that counts, the sum of which is here now."""
        if not _is_under_way(gathering, number, attempt):
            return False
        assert gathering is not None and gathering.forming is not None
        self._took.took(now - gathering.forming.since)
        usual = self._agreed.grace + 2 * statistics.median_low(self._came.values() or [0.0])
        self._slow |= {head: number for head, seconds in self._came.items() if seconds > usual}
        return True

    def _gone(self, gathering: OpenRound) -> set[int]:
        """Who had answered, and has died or is silent by now."""
        workers = self._calls.workers
        there = {rank for rank, one in enumerate(workers) if one.activity != "gone"}
        if not gathering.settles:  # where all settle everybody is waited for
            there = {rank for rank in there if workers[rank].is_present}
        return gathering.given.keys() - there - {self._rank}


def _is_under_way(gathering: OpenRound | None, number: int, attempt: int) -> bool:
    if gathering is None or gathering.forming is None:
        return False
    return gathering.number == number and gathering.forming.attempt == attempt
