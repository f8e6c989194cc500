"""The workers that form the sum of a round across hosts, as its leader chooses them; pure: see `exchange`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from quorate.core.fields import Fields
from quorate.core.members import by_host
from quorate.rounds.terms import Agreed

HUB_BYTES = 1 << 18
"""The bytes of a round up to which vectors go to the leader and from it, as on one host."""
_LEFT_OUT = 3  # one host in so many may be slow and own no piece: the others own more, and send at most 2.5 d anyway


def on_one_host(rank: int) -> int:
    """Return the host of `rank` where there is one host."""
    return 0


def are_apart(host_of: Callable[[int], int], ranks: Iterable[int]) -> bool:
    """Return whether `ranks` are on several hosts."""
    return len({host_of(rank) for rank in ranks}) > 1


def spans_hosts(agreed: Agreed, host_of: Callable[[int], int], ranks: Iterable[int]) -> bool:
    """Return whether hosts form the sums of rounds among `ranks`, in pieces."""
    known = list(ranks)
    return agreed.vector_bytes * len(known) > HUB_BYTES and are_apart(host_of, known)


@dataclass(frozen=True)
class Plan(Fields):
    """The message to the head of a host: one attempt to form the sum of a round."""

    number: int
    is_pause: bool
    kind: str = field(init=False, default="form")
    attempt: int
    heads: list[int]  # in the order in which hosts are added
    giving: list[int]  # places, in `heads`, of the hosts that contribute
    owners: list[int]  # places, in `heads`: piece j is formed by the head at `owners[j]`
    codes: list[list[int]]  # instead of pieces: workers whose codes are sent, by host, in the order of adding
    contributors: list[int]
    others: list[int]  # on this host, the workers that get the result


@dataclass(frozen=True)
class Lend(Fields):
    """The message to a contributor that has to send its vector, or its code, to the head of its host."""

    number: int
    is_pause: bool
    kind: str = field(init=False, default="lend")
    attempt: int
    head: int
    coded: bool


@dataclass
class OnHost:
    """The workers of one host."""

    head: int
    contributors: list[int]
    others: list[int]
    is_whole: bool = False  # whether the head has all contributions of the host


@dataclass
class Forming:
    """One attempt; hosts are in order of their lowest ranks."""

    attempt: int
    hosts: list[OnHost]
    slow: Collection[int] = ()
    since: float = 0.0
    gathers: bool = False
    _owners: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for host in self.hosts:
            host.is_whole = host.is_whole or host.contributors in ([], [host.head])
        slow = [place for place, host in enumerate(self.hosts) if host.head in self.slow][
            : len(self.hosts) // _LEFT_OUT
        ]
        self._owners = [place for place in range(len(self.hosts)) if place not in slow]

    @property
    def contributors(self) -> list[int]:
        """The workers whose vectors are added, by rank."""
        return sorted(rank for host in self.hosts for rank in host.contributors)

    @property
    def order(self) -> list[list[int]]:
        """The contributors of each host, in the order in which hosts are added."""
        return [host.contributors for host in self.hosts if host.contributors]

    @property
    def head_of(self) -> dict[int, int]:
        """The head that each worker has the result from; a head has it from itself."""
        return {rank: host.head for host in self.hosts for rank in (host.head, *host.others)}

    @property
    def needed(self) -> set[int]:
        """The workers without which the attempt fails."""
        return {rank for host in self.hosts for rank in (host.head, *(() if host.is_whole else host.contributors))}

    def whole(self, head: int) -> None:
        """Note that `head` has all contributions of its host."""
        for host in self.hosts:
            host.is_whole = host.is_whole or host.head == head

    def messages(self, number: int, is_pause: bool) -> Iterable[tuple[int, Plan | Lend]]:
        """Yield the messages for round `number`, by rank: plans to heads, and to others where to send vectors."""
        giving = [place for place, host in enumerate(self.hosts) if host.contributors]
        of_all = [host.head for host in self.hosts], giving, self._owners, self.order if self.gathers else []
        for host in self.hosts:
            yield host.head, Plan(number, is_pause, self.attempt, *of_all, host.contributors, host.others)
            if not host.is_whole:
                for rank in host.contributors:
                    if rank != host.head:
                        yield rank, Lend(number, is_pause, self.attempt, host.head, self.gathers)

    def is_less_in_codes(self, sizes: Mapping[int, Sequence[int] | None]) -> bool:
        """Return whether sending all codes to all hosts costs each host less than forming the sum in pieces. `sizes`,
        by rank: the bytes of the code and of the vector, None where there is no code."""
        all_sizes = [sizes[rank] for rank in self.contributors]
        coded = [pair for pair in all_sizes if pair is not None]
        if not coded or len(coded) < len(all_sizes):
            return False
        counts, others = [len(host.contributors) for host in self.hosts], len(self.hosts) - 1
        most = max(max(count * others, len(all_sizes) - count) for count in counts)
        return most * max(code for code, _ in coded) < 2 * others / (others + 1) * max(whole for _, whole in coded)


def decided(
    leader: int,
    host_of: Callable[[int], int],
    *,
    answered: Collection[int],
    gives: Collection[int],
    tells: Collection[int],
    before: Forming | None,
    absent: Collection[int],
    slow: Collection[int],
    now: float,
) -> Forming:
    """Return the next attempt, of the workers that have `answered`; some contribute, and some are `absent` since. A
    contribution that the head of a host has stays in, also of an absent worker. All of `tells` get the result: on a
    host of which nobody has answered, from the leader."""
    old = {} if before is None else {host_of(host.head): host for host in before.hosts}
    hosts: list[OnHost] = []
    for own in by_host(host_of, answered):
        known, fit = old.get(host_of(own[0])), [rank for rank in own if rank not in absent]
        if not fit:
            continue
        if known is not None and known.head not in absent:
            keeps = known.contributors if known.is_whole else [rank for rank in known.contributors if rank in fit]
            hosts.append(OnHost(known.head, keeps, [], known.is_whole))
        else:
            hosts.append(OnHost(leader if leader in fit else fit[0], [rank for rank in fit if rank in gives], []))
    places = {host_of(host.head): host for host in hosts}
    first = next(host for host in hosts if host.head == leader)
    for rank in sorted(tells):
        host = places.get(host_of(rank), first)
        if rank != host.head:
            host.others.append(rank)
    return Forming(1 if before is None else before.attempt + 1, hosts, slow, now)
