"""Algorithms for a power of two of workers, with any number: surplus workers contribute first, and get the result last.

Let p be the largest power of two that is at most P, and r = P - p. Each odd one of the first 2 r workers sends its full
vector to the even one before it. It takes no other part (Thakur, Rabenseifner and Gropp 2005; MPICH, where even ones
send).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quorate.means.algorithms.steps import Cost, Step, Transfer


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
