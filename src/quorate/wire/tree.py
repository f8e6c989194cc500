"""The tree of a broadcast: the worker that sends to each other one; pure.

The workers of a host that share memory read one copy, whose place they get from one of them, its head. A head sends to
two other heads at most, as does each worker without shared memory. So a worker sends at most twice, and a host receives
once.
"""

from __future__ import annotations

from collections.abc import Sequence

CHILDREN = 2


def children_of(hosts: Sequence[int], root: int, *, shares: bool) -> list[list[int]]:
    """Return the workers to which each worker sends, those of other hosts first.

    `hosts` has the host of each rank; `shares`: whether the workers of a host share memory.
    """
    order = sorted(range(len(hosts)), key=lambda rank: (rank != root, hosts[rank] != hosts[root], hosts[rank], rank))
    head_of: dict[int, int] = {}
    for rank in order:
        head_of.setdefault(hosts[rank] if shares else rank, rank)
    heads = list(head_of.values())
    children = [list[int]() for _ in hosts]
    for place, head in enumerate(heads):
        children[head] += heads[CHILDREN * place + 1 : CHILDREN * (place + 1) + 1]
    if shares:
        for rank in order:
            if (head := head_of[hosts[rank]]) != rank:
                children[head].append(rank)
    return children
