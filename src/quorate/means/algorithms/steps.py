"""Steps of an all-reduce, in each of which a worker sends and receives one message or none; and their cost. Pure.

Algorithms for a power of two of workers take any number of them: surplus workers contribute first, and get the result
last. Let p be the largest power of two that is at most P, and r = P - p. Each odd one of the first 2 r workers sends
its full vector to the even one before it. It takes no other part (Thakur, Rabenseifner and Gropp 2005; MPICH, where
even ones send).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message, seen from one of its two ends."""

    peer: int
    """The other end: the receiver, or the sender."""
    pieces: range
    """The pieces of the vector in the message."""
    adds: bool
    """Whether the receiver adds them to its own; otherwise they are sums of all workers, and replace its own."""


@dataclass(frozen=True, slots=True)
class Step:
    """The messages that one worker sends and receives at the same time; the next step begins when both are over."""

    send: Transfer | None = None
    receive: Transfer | None = None


@dataclass(frozen=True)
class Cost:
    """The cost of an all-reduce of n bytes, where each worker sends and receives one message at a time.

    The three terms of its time are those along the longest chain of messages that wait for each other. All workers
    begin together, links are alike, and n is a multiple of the pieces. Where the number of workers is no power of two,
    `recursive-doubling` and `tree` may take less: some messages arrive before they are needed.
    """

    messages: int
    """Messages in the chain."""
    moved: float
    """Bytes in these messages, in units of n."""
    added: float
    """Bytes that are added to others along the chain, in units of n."""
    sent: float
    """Bytes sent by the worker that sends most, in units of n."""

    def seconds(self, nbytes: float, latency: float, bandwidth: float, adding: float = 0.0) -> float:
        """Return alpha `messages` + beta `moved` n + gamma `added` n.

        alpha is the `latency` of a message in seconds, beta is 1 / `bandwidth` in seconds per byte, and gamma is
        `adding`, the seconds that it takes to add one byte.
        """
        return self.messages * latency + self.moved * nbytes / bandwidth + self.added * nbytes * adding


def power_of_two(size: int) -> int:
    """Return the largest power of two that is at most `size`."""
    return 1 << (size.bit_length() - 1)


def with_surplus(size: int, rank: int, pieces: int, among: Callable[[int, int], Iterator[Step]]) -> Iterator[Step]:
    """Yield the steps of `rank`; `among(p, place)` yields those of one of p workers, with places for ranks."""
    core = power_of_two(size)
    surplus, whole = size - core, range(pieces)
    is_paired = rank < 2 * surplus
    if is_paired and rank % 2:
        yield Step(send=Transfer(rank - 1, whole, adds=True))
        yield from (Step() for _ in among(core, 0))
        yield Step(receive=Transfer(rank - 1, whole, adds=False))
        return
    if surplus:
        yield Step(receive=Transfer(rank + 1, whole, adds=True)) if is_paired else Step()
    for step in among(core, rank // 2 if is_paired else rank - surplus):
        yield Step(_to_rank(step.send, surplus), _to_rank(step.receive, surplus))
    if surplus:
        yield Step(send=Transfer(rank + 1, whole, adds=False)) if is_paired else Step()


def _to_rank(transfer: Transfer | None, surplus: int) -> Transfer | None:
    if transfer is None:
        return None
    place = transfer.peer
    return Transfer(2 * place if place < surplus else place + surplus, transfer.pieces, transfer.adds)


def cost_with_surplus(size: int, of_core: Cost) -> Cost:
    """Return the cost of p workers, and of two more messages of the whole vector if there is a surplus."""
    if size == power_of_two(size):
        return of_core
    return Cost(of_core.messages + 2, of_core.moved + 2, of_core.added + 1, of_core.sent + 1)
