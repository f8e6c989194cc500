"""Which workers form the sum of a round that spans several hosts, as its leader decides; pure: see `exchange`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quorate.core.hosts import by_host
from quorate.rounds.terms import Agreed

HUB_BYTES = 1 << 18
"""What the leader may carry of one round: below that its vectors go to the leader and from it, as on one host."""
_LEFT_OUT = 3
"""One host in so many may be slow, and owns no piece: the others own more, and send at most 2.5 d all the same."""


def are_apart(host_of: Callable[[int], int], ranks: Iterable[int]) -> bool:
    """Whether they are on several hosts."""
    return len({host_of(rank) for rank in ranks}) > 1


def spans_hosts(agreed: Agreed, host_of: Callable[[int], int], ranks: Iterable[int]) -> bool:
    """Whether the sums of rounds among `ranks` are formed host by host, and in pieces."""
    known = list(ranks)
    return agreed.vector_bytes * len(known) > HUB_BYTES and are_apart(host_of, known)


@dataclass
class OnHost:
    """What one host does."""

    head: int
    contributors: list[int]
    others: list[int]
    """That get the result from the head."""
    is_whole: bool = False
    """The head has all that the host gives."""


@dataclass
class Forming:
    """One attempt; hosts are in order of their lowest ranks."""

    attempt: int
    hosts: list[OnHost]
    slow: Collection[int] = ()
    """Heads that are to own no piece, if they are few."""
    since: float = 0.0
    gathers: bool = False
    """Codes travel, and no pieces."""
    _owners: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for one in self.hosts:
            one.is_whole = one.is_whole or one.contributors in ([], [one.head])
        slow = [place for place, one in enumerate(self.hosts) if one.head in self.slow][: len(self.hosts) // _LEFT_OUT]
        self._owners = [place for place in range(len(self.hosts)) if place not in slow]

    @property
    def contributors(self) -> list[int]:
        """Those whose vectors are added, by rank."""
        return sorted(rank for one in self.hosts for rank in one.contributors)

    @property
    def order(self) -> list[list[int]]:
        """Those of each host, in the order in which hosts are added."""
        return [one.contributors for one in self.hosts if one.contributors]

    @property
    def told(self) -> dict[int, int]:
        """Those that will have the result, and the head that each has it from."""
        return {rank: one.head for one in self.hosts for rank in (one.head, *one.others)}

    @property
    def needed(self) -> set[int]:
        """Those without whom it cannot be formed as it is."""
        return {rank for one in self.hosts for rank in (one.head, *(() if one.is_whole else one.contributors))}

    def whole(self, head: int) -> None:
        """`head` has all that its host gives."""
        for one in self.hosts:
            one.is_whole = one.is_whole or one.head == head

    def messages(self) -> Iterable[tuple[int, dict[str, Any]]]:
        """Who is told what: heads their plans, and others on their hosts where to send what they give."""
        about: dict[str, Any] = {
            "attempt": self.attempt,
            "heads": [one.head for one in self.hosts],
            "giving": [place for place, one in enumerate(self.hosts) if one.contributors],
            "owners": self._owners,
            "codes": self.order if self.gathers else [],
        }
        for one in self.hosts:
            yield one.head, {"kind": "form", **about, "contributors": one.contributors, "others": one.others}
            if not one.is_whole:
                for rank in one.contributors:
                    if rank != one.head:
                        yield rank, {"kind": "lend", "attempt": self.attempt, "head": one.head, "coded": self.gathers}

    def is_less_in_codes(self, sizes: Mapping[int, Sequence[int] | None]) -> bool:
        """Whether no host sends or gets as much where all have the codes of all, as where they form the sum in pieces;
        `sizes`, by rank: the bytes of the code and of the vector, None where there is no code."""
        known = [sizes[rank] for rank in self.contributors]
        there = [one for one in known if one is not None]
        if not there or len(there) < len(known):
            return False
        counts, others = [len(one.contributors) for one in self.hosts], len(self.hosts) - 1
        most = max(max(count * others, len(known) - count) for count in counts)
        return most * max(code for code, _ in there) < 2 * others / (others + 1) * max(whole for _, whole in there)


def decided(
    leader: int,
    host_of: Callable[[int], int],
    *,
    answered: Collection[int],
    gives: Collection[int],
    tells: Collection[int],
    before: Forming | None,
    gone: Collection[int],
    slow: Collection[int],
    now: float,
) -> Forming:
    """The next attempt: of those that have `answered`, some of which give something, and some are `gone` since.

    What the head of a host has already stays in, also of one that is gone. All of `tells` get the result: on a host of
    which nobody has answered, from the leader.
    """
    old = {} if before is None else {host_of(one.head): one for one in before.hosts}
    hosts: list[OnHost] = []
    for own in by_host(host_of, answered):
        known, fit = old.get(host_of(own[0])), [rank for rank in own if rank not in gone]
        if not fit:
            continue
        if known is not None and known.head not in gone:
            keeps = known.contributors if known.is_whole else [rank for rank in known.contributors if rank in fit]
            hosts.append(OnHost(known.head, keeps, [], known.is_whole))
        else:
            hosts.append(OnHost(leader if leader in fit else fit[0], [rank for rank in fit if rank in gives], []))
    places = {host_of(one.head): one for one in hosts}
    first = next(one for one in hosts if one.head == leader)
    for rank in sorted(tells):
        one = places.get(host_of(rank), first)
        if rank != one.head:
            one.others.append(rank)
    return Forming(1 if before is None else before.attempt + 1, hosts, slow, now)
