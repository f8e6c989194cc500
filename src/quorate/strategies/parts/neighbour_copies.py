"""Copies that neighbours keep of each other's replicas, and tell each other by differences which codecs write small.

A copy of worker i, its x^_i, is the same to the bit at i itself and at all its neighbours. All advance it by the vector
that neighbours decode from the same code. Who has missed an exchange of i (it paused, or has only now become a
neighbour) gets the whole copy with the next one. Both ends of an edge know that, as both know in which exchange both
took part last. So an edge counts at both ends or at none, and what its ends draw each other by adds up to zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.core.neighbours import EdgeCodec, SentVector, UnderWay
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies.parts.gossip import OnGraph, edges_of_next

Advance = Callable[[Flat, Flat, int], Flat]
"""(copy, what was read, number of the exchange): the copy afterwards, in place."""


@dataclass(kw_only=True)
class NeighbourCopies(OnGraph):
    """This worker's own copy, and those of its neighbours; the state of a strategy, or a part of it.

    With another number of workers all begin at the mean of the old copies of their own, and tell them whole once.
    """

    own: Flat = kept("average")
    """x^_i, as all its neighbours have it. Never written to: it may have been given to others."""
    of: dict[int, Flat] = kept("keyed", default_factory=dict)
    """x^_j, by rank of the neighbour."""
    met: dict[int, int] = kept("keyed", default_factory=dict)
    """By rank of the neighbour: the newest exchange after which it had this worker's copy, and this one its."""
    pull: Flat | None = kept("average", default=None)
    """sum_j W_ij (x^_j - x^_i) of an exchange that has ended, and that no step has taken in."""
    under_way: UnderWay | None = kept("drop", default=None)


def equal_copies(worker: Worker) -> dict[str, Any]:
    """Return the fields `own` and `met` while all replicas are equal: every copy is that of the parameters now."""
    near = worker.neighbours
    met = {} if near.codec is None else dict.fromkeys(range(worker.size), near.round)
    return {"own": worker.parameters.bare(), "met": met}


def tell(worker: Worker, x: Flat, difference: Callable[[], Flat], advance: Advance) -> None:
    """Begin the next exchange: copies of this replica advance by the decoded `difference()`.

    Without a codec they become `x`; do not write to it any more.
    """
    s: NeighbourCopies = worker.state
    near = worker.neighbours
    to, source = edges_of_next(worker)
    number, others = near.round + 1, [edge.peer for edge in to if edge.peer != worker.rank]
    current = {peer for peer in others if near.codec is not None and s.met.get(peer) == number - 1}
    s.of = {peer: s.of[peer] if peer in s.of else s.own.clone() for peer in current}
    code = None if near.codec is None else near.written(difference())
    s.own = x if code is None else advance(s.own.clone(), code.x, number)
    gifts: dict[int, SentVector] = {peer: code if code is not None and peer in current else s.own for peer in others}
    s.under_way = near.exchange({worker.rank: s.own, **gifts}, to, source)


def take_in(worker: Worker, advance: Advance) -> None:
    """Wait for the exchange in flight, if any: the copies of neighbours advance, and `pull` becomes their pull."""
    s: NeighbourCopies = worker.state
    if s.under_way is None:
        return
    received, s.under_way, s.pull = s.under_way.wait(), None, s.own * 0.0
    for peer, message in sorted(received.items()):
        if peer == worker.rank:
            continue
        if message.is_written != (peer in s.of):  # a message between the two was lost: both restart
            s.met.pop(peer, None)
            continue
        x = message.x
        s.of[peer] = advance(s.of[peer], x, message.round) if message.is_written else _own_memory(worker, x)
        s.met[peer] = message.round
        s.pull.add_(s.of[peer] - s.own, message.weight)


def pulled(worker: Worker, pull: Flat | None) -> tuple[Flat, float]:
    """Return the consensus: the parameters, plus the pull of the newest exchange, and its weight."""
    x = worker.parameters
    return (x if pull is None else x.add_(worker.replica.parameters_of(pull))), 1.0


def added(copy: Flat, read: Flat, number: int) -> Flat:
    """Copies that advance by all that was read."""
    return copy.add_(read)


def check_unbiased(codec: EdgeCodec | None, label: str) -> None:
    """Raise `ConfigurationError` for a biased codec, whose errors would be lost."""
    if codec is not None and codec.is_biased:
        raise ConfigurationError(
            f"{label} loses what codes leave out, so it needs a codec that is right in the mean (qsgd, natural, "
            "terngrad, atomo, half, blocks:rounding=stochastic, random-k:scaled=true); choco-sgd takes any"
        )


def held_by(codec: EdgeCodec | None) -> tuple[float, float]:
    """The share of what is read that copies advance by, and the share of a vector that they hold then.

    Where codes are right in the mean, an error of w times the squared norm is w / (1 + w) of it for 1 / (1 + w) of the
    code. Raises `ConfigurationError` where what is read is no nearer to the vector than nothing is.
    """
    if codec is None:
        return 1.0, 1.0
    share = 1.0 if codec.is_biased else 1.0 / (1.0 + codec.left_out)
    held = 1.0 - codec.left_out if codec.is_biased else share
    if not held > 0:
        raise ConfigurationError(
            "choco-sgd needs codes that hold part of any vector, small ones as well, and these hold nothing of small "
            "numbers (votes without a scale, thresholds that are absolute). Choose another codec or its settings"
        )
    return share, held


def by_coding(x: Flat, coded: float, dense: float = 1.0) -> Flat:
    """`x`, its coded parts multiplied by one number, and the others by another."""
    parts = [part * (coded if about.coded else dense) for part, about in zip(x.parts, x.layout.parts, strict=True)]
    return Flat(parts, x.layout)


def _own_memory(worker: Worker, x: Flat) -> Flat:
    """Return memory that may be written: without a codec, no copy is written to."""
    return x if worker.neighbours.codec is None else x.clone()
